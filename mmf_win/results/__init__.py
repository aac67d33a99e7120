"""What runs are worth: predictions checked, blended and scored."""

"""What mmfw adds inside a run."""

"""What an unmodified MMF needs to import and run on today's Python, torch and transformers."""

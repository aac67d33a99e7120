"""Hashes of files, recorded and verified. Knows only files."""

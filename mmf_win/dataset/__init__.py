"""Hateful Memes: splits, known checksums, and the way from an archive to MMF's layout."""

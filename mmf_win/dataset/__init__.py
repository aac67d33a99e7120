"""Hateful Memes dataset: splits, annotations, images, and conversion of an archive to MMF's layout."""

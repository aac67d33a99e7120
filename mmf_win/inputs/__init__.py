"""Input files of a run: which they are, where they are, whether they are intact, and how to get them."""

"""The files that a run reads: which they are, where, whether they are intact, and how to get them."""

"""Many experiments at once: what to run, where, how far they are, and what came of them."""

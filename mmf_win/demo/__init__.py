"""Everything that makes the synthetic dataset of ``mmfw demo``."""

"""How tests try random input: the same each time, a fixed number of times, and with no notes left on disk."""

from __future__ import annotations

from hypothesis import settings

FIXED_BUDGET = settings(derandomize=True, database=None, deadline=None, print_blob=False)
"""To be given to ``settings`` with a number of examples."""

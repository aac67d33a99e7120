"""Hashes of files, recorded and verified. Knows only files."""

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.tree import Difference, differences

__all__ = ["Difference", "differences", "file_digest"]

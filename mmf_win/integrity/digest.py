"""The hash of one file, read in pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mmf_win.threads import Advance, ignore

_PIECE = 1 << 20


def file_digest(path: Path, progress: Advance = ignore) -> bytes:
    """The SHA-256 of a file.

    Args:
        path: the file.
        progress: called with the number of bytes of each piece.

    Raises:
        OSError: the file cannot be read.
    """
    hasher = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            hasher.update(piece)
            progress(len(piece))
    return hasher.digest()

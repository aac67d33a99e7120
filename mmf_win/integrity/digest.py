"""The hash of one file, read in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

_PIECE = 1 << 20


def file_digest(
    path: Path,
    algorithm: str = "sha256",
    *,
    prefix: bytes = b"",
    progress: Callable[[int], None] | None = None,
    observe: Callable[[bytes], object] | None = None,
) -> bytes:
    """The hash of ``prefix`` and then the file.

    Args:
        path: the file.
        algorithm: a name that :func:`hashlib.new` knows.
        prefix: what is hashed before the content; git's object ids need one.
        progress: called with the number of bytes of each piece.
        observe: called with each piece.

    Raises:
        OSError: the file cannot be read.
    """
    # A system in FIPS mode refuses SHA-1, which names git's objects, unless told that it guards nothing.
    hasher = hashlib.new(algorithm, prefix, usedforsecurity=False)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            hasher.update(piece)
            if observe is not None:
                observe(piece)
            if progress is not None:
                progress(len(piece))
    return hasher.digest()

"""The hash of a file, and the ids that git gives to files and folders, computed without git."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from mmf_win.files import require_end
from mmf_win.threads import Advance, ignore

GitFile: TypeAlias = tuple[str, str]
"""``100644`` for a file, ``100755`` for a program or ``120000`` for a link, and the id of the content.

Of a link, the content is the target's path.
"""

_PIECE = 1 << 20


def file_digest(path: Path, progress: Advance = ignore) -> bytes:
    """The SHA-256 of a file; an OSError where it cannot be read."""
    hasher = hashlib.sha256()
    require_end(path)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            hasher.update(piece)
            progress(len(piece))
    return hasher.digest()


def git_id(content: bytes, kind: str = "blob") -> str:
    """The id of an object with this content (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects)."""
    # A system in FIPS mode refuses SHA-1 unless the caller says that nothing is guarded by it.
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def git_tree_id(files: Mapping[str, GitFile]) -> str:
    """The id of a folder that holds these files, each by its path relative to the folder, with ``/``.

    It stands for every byte, name and mode. As in git, a folder without files does not exist.
    """
    entries: dict[bytes, bytes] = {}
    folders: dict[str, dict[str, GitFile]] = defaultdict(dict)
    for path, (mode, blob) in files.items():
        name, is_nested, rest = path.partition("/")
        if is_nested:
            folders[name][rest] = mode, blob
        else:
            entries[_encoded(name)] = _entry(mode, name, blob)
    for name, inside in folders.items():  # ordered as if its name ended in a slash
        entries[_encoded(name) + b"/"] = _entry("40000", name, git_tree_id(inside))
    return git_id(b"".join(entries[name] for name in sorted(entries)), "tree")


def _entry(mode: str, name: str, identity: str) -> bytes:
    return mode.encode() + b" " + _encoded(name) + b"\0" + bytes.fromhex(identity)


def _encoded(name: str) -> bytes:
    # A name in a tree is bytes; tarfile hands over those that are no UTF-8 with surrogates in their place.
    return name.encode("utf-8", "surrogateescape")

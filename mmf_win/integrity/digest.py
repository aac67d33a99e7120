"""The hash of a file, and the ids that git gives to files and folders, computed without git."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from mmf_win.console import Progress
from mmf_win.files import require_no_special_file
from mmf_win.threads import AdvanceCallback, ignore_progress

#: ``100644`` for a file, ``100755`` for a program or ``120000`` for a link, and the id of the content.
#:
#: Of a link, the content is the target's path.
GitTreeEntry: TypeAlias = tuple[str, str]

_BLOCK_BYTES = 1 << 20


def file_digest(path: Path, progress: AdvanceCallback = ignore_progress) -> bytes:
    """The SHA-256 of a file; an OSError where it cannot be read."""
    hasher = hashlib.sha256()
    require_no_special_file(path)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_BLOCK_BYTES):
            hasher.update(piece)
            progress(len(piece))
    return hasher.digest()


def hash_file(path: Path, title: str) -> str:
    """Return the SHA-256 of a file in hexadecimal digits, with a progress bar of this title."""
    with Progress(title, path.stat().st_size) as bar:
        return file_digest(path, bar.advance).hex()


def git_object_id(content: bytes, kind: str = "blob") -> str:
    """The id of an object with this content (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects)."""
    # A system in FIPS mode refuses SHA-1 unless the caller says that nothing is guarded by it.
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def git_tree_id(files: Mapping[str, GitTreeEntry]) -> str:
    """The id of a folder that holds these files, each by its path relative to the folder, with ``/``.

    It stands for every byte, name and mode. As in git, a folder without files does not exist.
    """
    entries = {name: entry for name, entry in files.items() if "/" not in name}
    folders: dict[str, dict[str, GitTreeEntry]] = defaultdict(dict)
    for path in files.keys() - entries.keys():
        name, _, rest = path.partition("/")
        folders[name][rest] = files[path]
    # A folder is ordered as if its name ended in a slash.
    entries |= {f"{name}/": ("40000", git_tree_id(inside)) for name, inside in folders.items()}
    # A name in a tree is bytes; tarfile hands over those that are no UTF-8 with surrogates in their place.
    encoded = {name.encode("utf-8", "surrogateescape"): entry for name, entry in entries.items()}
    content = b"".join(
        mode.encode() + b" " + name.removesuffix(b"/") + b"\0" + bytes.fromhex(identity)
        for name, (mode, identity) in sorted(encoded.items())
    )
    return git_object_id(content, "tree")

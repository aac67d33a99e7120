"""SHA-256 of files, and the IDs that git gives to files and folders, computed without git."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from mmf_win.console import Progress
from mmf_win.files import require_no_special_file
from mmf_win.threads import AdvanceCallback, ignore_progress

#: Mode (``100644`` for a file, ``100755`` for a program, ``120000`` for a link) and ID of the content.
#:
#: The content of a link is the path of its target.
GitTreeEntry: TypeAlias = tuple[str, str]

_BLOCK_BYTES = 1 << 20


def file_digest(path: Path, progress: AdvanceCallback = ignore_progress) -> bytes:
    """Return the SHA-256 of a file; raise an OSError if it cannot be read."""
    hasher = hashlib.sha256()
    require_no_special_file(path)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_BLOCK_BYTES):
            hasher.update(piece)
            progress(len(piece))
    return hasher.digest()


def hash_file(path: Path, title: str) -> str:
    """Return the SHA-256 of a file in hex, showing a progress bar."""
    with Progress(title, path.stat().st_size) as bar:
        return file_digest(path, bar.advance).hex()


def git_object_id(content: bytes, kind: str = "blob") -> str:
    """Return the ID of a git object (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects)."""
    # In FIPS mode, hashlib rejects SHA-1 unless it is declared as not used for security.
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def git_tree_id(files: Mapping[str, GitTreeEntry]) -> str:
    """Return the git ID of a folder, which covers every byte, name and mode of its files.

    Args:
        files: Files by path relative to the folder, with ``/``. Like in git, empty folders do not exist.

    Returns:
        The ID in hex.
    """
    entries = {name: entry for name, entry in files.items() if "/" not in name}
    folders: dict[str, dict[str, GitTreeEntry]] = defaultdict(dict)
    for path in files.keys() - entries.keys():
        name, _, rest = path.partition("/")
        folders[name][rest] = files[path]
    # git sorts a folder as if its name ended in a slash.
    entries |= {f"{name}/": ("40000", git_tree_id(inside)) for name, inside in folders.items()}
    # Names in a git tree are bytes; tarfile decodes bytes that are not UTF-8 as surrogates.
    encoded = {name.encode("utf-8", "surrogateescape"): entry for name, entry in entries.items()}
    content = b"".join(
        mode.encode() + b" " + name.removesuffix(b"/") + b"\0" + bytes.fromhex(object_id)
        for name, (mode, object_id) in sorted(encoded.items())
    )
    return git_object_id(content, "tree")

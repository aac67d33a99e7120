"""The ids that git gives to files and folders, computed without git.

An id is the SHA-1 of ``<type> <length>\\0<content>``. A folder's content is one ``<mode> <name>\\0<id>`` for
each entry, ordered by name as if a folder's name ended in ``/``; so the id of the top folder stands for every
byte, name and mode below it (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["100644", "100755", "120000"]
_FOLDER_MODE = "40000"


@dataclass(frozen=True)
class GitFile:
    """A file as git sees it.

    Attributes:
        mode: ``100644`` for a file, ``100755`` for a program, ``120000`` for a symbolic link.
        blob: the id of the content; of a link, the content is the target's path.
    """

    mode: Mode
    blob: str


def blob_id(content: bytes) -> str:
    """The id of a file with this content."""
    return _object_id(b"blob", content).hex()


def file_blob_id(path: Path) -> str:
    """The id of the file at ``path``.

    Raises:
        OSError: the file cannot be read.
    """
    return blob_id(path.read_bytes())


def tree_id(files: Mapping[str, GitFile]) -> str:
    """The id of a folder that holds these files, each by its path relative to the folder, with ``/``.

    As in git, a folder without files does not exist.
    """
    return _tree_digest(files).hex()


def _tree_digest(files: Mapping[str, GitFile]) -> bytes:
    entries: list[tuple[bytes, bytes]] = []
    folders: dict[str, dict[str, GitFile]] = {}
    for path, file in files.items():
        name, is_nested, rest = path.partition("/")
        if is_nested:
            folders.setdefault(name, {})[rest] = file
        else:
            entries.append((_encoded(name), _entry(file.mode, name, bytes.fromhex(file.blob))))
    for name, inside in folders.items():
        entries.append((_encoded(name) + b"/", _entry(_FOLDER_MODE, name, _tree_digest(inside))))
    return _object_id(b"tree", b"".join(entry for _, entry in sorted(entries)))


def _entry(mode: str, name: str, digest: bytes) -> bytes:
    return mode.encode() + b" " + _encoded(name) + b"\0" + digest


def _encoded(name: str) -> bytes:
    # A name in a tree is bytes; tarfile hands over those that are no UTF-8 with surrogates in their place.
    return name.encode("utf-8", "surrogateescape")


def _object_id(kind: bytes, content: bytes) -> bytes:
    # A system in FIPS mode refuses SHA-1 unless the caller says that nothing is guarded by it.
    return hashlib.sha1(b"%s %d\0" % (kind, len(content)) + content, usedforsecurity=False).digest()

"""Validation of member names: an archive may be malicious."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from mmf_win.paths import MAX_NAME_BYTES, is_portable

_DRIVE_PREFIX = re.compile(r"[A-Za-z]:")
# Longer than any system allows, deeper than any real archive.
_MAX_NAME_LENGTH, _MAX_DEPTH = 4096, 128


def safe_name(raw: str) -> str:
    """Return a member's name as a relative path with ``/`` as separator.

    Args:
        raw: Name as the archive has it.

    Returns:
        The path, without empty and ``.`` components.

    Raises:
        ValueError: The name is unsafe, for example because it points out of the folder that the archive is
            extracted to; the text says why.
    """
    if len(raw) > _MAX_NAME_LENGTH:
        raise ValueError(f"name too long ({len(raw)} characters)")
    name = raw.replace("\\", "/")
    if "\0" in name:
        raise ValueError("name contains a NUL character")
    if name.startswith("//"):
        raise ValueError("name is a network path")
    if name.startswith("/"):
        raise ValueError("name is an absolute path")
    if _DRIVE_PREFIX.match(name):
        raise ValueError("name begins with a drive letter")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > _MAX_DEPTH:
        raise ValueError(f"path too deep ({len(parts) - 1} folders)")
    if ".." in parts:
        raise ValueError("name leaves the folder with '..'")
    if not parts:
        raise ValueError("name is empty")
    return "/".join(parts)


def find_name_problem(name: str) -> str | None:
    """Return why a file with this safe name cannot be written on every system, or None if it can."""
    try:
        name.encode()
    except UnicodeEncodeError:  # tarfile decodes bytes that are not UTF-8 as lone surrogates
        return "name is not valid text"
    if any(len(part.encode()) > MAX_NAME_BYTES for part in name.split("/")):
        return "name too long"
    if not all(is_portable(part) for part in name.split("/")):
        return "name is not allowed on Windows"
    return None


def collision_key(name: str) -> str:
    """Return a key that is equal for names that collide on case-insensitive file systems."""
    # NTFS and APFS ignore case; APFS also treats composed and decomposed characters as equal.
    return unicodedata.normalize("NFC", name).casefold()


def group_colliding_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names by their :func:`collision_key`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(collision_key(name), []).append(name)
    return groups


def find_name_collisions(names: Iterable[str]) -> dict[str, str]:
    """Return the names that collide with another file or with a folder, each with the reason."""
    groups = group_colliding_names(names)
    folders = _parent_folders(groups)
    collisions: dict[str, str] = {}
    for key, group in groups.items():
        first, *others = dict.fromkeys(group)
        if others:
            for name in (first, *others):
                other = first if name != first else others[0]
                collisions[name] = f"on Windows and macOS, {name!a} is the same name as {other!a}"
        elif len(group) > 1:
            collisions[first] = "name occurs twice in the archive"
        elif key in folders:
            collisions[first] = "name is also the name of a folder"
    return collisions


def _parent_folders(names: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for name in names:
        folder = name
        while (folder := folder.rpartition("/")[0]) and folder not in folders:
            folders.add(folder)
    return folders

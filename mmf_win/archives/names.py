"""Names of archive members, made safe: an archive may come from anybody."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from mmf_win.paths import MAX_NAME_BYTES, is_portable

_DRIVE_PREFIX = re.compile(r"[A-Za-z]:")
# More than any system takes, or any real archive has.
_MAX_NAME_LENGTH, _MAX_DEPTH = 4096, 128


def safe_name(raw: str) -> str:
    """``raw`` as a relative path with ``/`` between its parts.

    Raises ValueError, which says how, where it points out of the folder that it would be unpacked in.
    """
    if len(raw) > _MAX_NAME_LENGTH:
        raise ValueError(f"its name has {len(raw)} characters")
    name = raw.replace("\\", "/")
    if "\0" in name:
        raise ValueError("its name holds a NUL")
    if name.startswith("//"):
        raise ValueError("its name is a network path")
    if name.startswith("/"):
        raise ValueError("its name is an absolute path")
    if _DRIVE_PREFIX.match(name):
        raise ValueError("its name begins with a drive letter")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > _MAX_DEPTH:
        raise ValueError(f"it lies in {len(parts) - 1} folders, one in another")
    if ".." in parts:
        raise ValueError("its name climbs out of the folder with '..'")
    if not parts:
        raise ValueError("its name is empty")
    return "/".join(parts)


def find_name_problem(name: str) -> str | None:
    """Why a file of this safe name cannot be written on every system; None when it can."""
    try:
        name.encode()
    except UnicodeEncodeError:  # a tar's bytes that are not UTF-8 arrive as lone surrogates
        return "its name is not valid text"
    if any(len(part.encode()) > MAX_NAME_BYTES for part in name.split("/")):
        return "its name is too long"
    if not all(is_portable(part) for part in name.split("/")):
        return "its name is not legal on Windows"
    return None


def collision_key(name: str) -> str:
    """What is the same for two names that would land on one file.

    NTFS and APFS fold case, and APFS takes composed and decomposed letters for the same.
    """
    return unicodedata.normalize("NFC", name).casefold()


def group_colliding_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Return names by what is the same for those that look the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(collision_key(name), []).append(name)
    return groups


def find_name_collisions(names: Iterable[str]) -> dict[str, str]:
    """Names that would land on one file, or on a folder of others, each with the reason."""
    groups = group_colliding_names(names)
    folders = _parent_folders(groups)
    twins: dict[str, str] = {}
    for key, group in groups.items():
        first, *others = dict.fromkeys(group)
        if others:
            for name in (first, *others):
                other = first if name != first else others[0]
                twins[name] = f"to Windows and macOS, {name!a} is the same name as {other!a}"
        elif len(group) > 1:
            twins[first] = "the archive holds it twice"
        elif key in folders:
            twins[first] = "it is the name of a folder, too"
    return twins


def _parent_folders(names: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for name in names:
        folder = name
        while (folder := folder.rpartition("/")[0]) and folder not in folders:
            folders.add(folder)
    return folders

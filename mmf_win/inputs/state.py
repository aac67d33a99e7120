"""Whether what a run needs is there and whole, and who vouches for that."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from mmf_win.console import Progress, say
from mmf_win.dataset.features import built_version
from mmf_win.errors import ArchiveError, DataError
from mmf_win.inputs.caches import git_id_in_name, hash_in_name
from mmf_win.inputs.keys import image_keys
from mmf_win.inputs.ledger import Ledger
from mmf_win.inputs.listing import Need
from mmf_win.integrity import FIRST_READING, Manifest, last_check, record, torch_file, verify
from mmf_win.paths import Places
from mmf_win.unpacking.extract import manifest_of

State = Literal["ok", "recorded", "unchecked", "missing", "broken"]
"""``recorded``: as it was found one day, and nothing vouches for more; ``unchecked``: it has to be read."""


@dataclass(frozen=True)
class Status:
    """What is known of a need.

    Attributes:
        need: what is meant.
        state: see :data:`State`.
        size: bytes of its files that are there.
        checked: when they were last found right, in seconds since the epoch; None if they changed later.
        against: what vouches for them, for people.
        problems: what is wrong, a line for each file.
    """

    need: Need
    state: State
    size: int = 0
    checked: float | None = None
    against: str = ""
    problems: tuple[str, ...] = ()


def look(need: Need, places: Places) -> Status:
    """What is known without reading any of its files."""
    if not need.is_there:
        return _missing(need)
    status = Status(need, "unchecked", _size(need))
    if not need.is_ours:
        ledger = Ledger(places)
        checks = [ledger.last_check(path) for path in need.files]
        known = [check for check in checks if check is not None]
        return status if len(known) < len(checks) else _settled(status, min(known), _named(need))
    try:
        manifest = _manifest(need)
    except DataError as error:
        return replace(status, state="broken", problems=(str(error),))
    if manifest is None:
        return status
    against = manifest.verified_against
    if problem := _of_another_archive(need, manifest):
        return replace(status, state="broken", problems=(problem,), against=against)
    for name, path in zip(need.found_names, need.files, strict=True):
        there, size = path.stat().st_size, manifest.files[name].size
        if size not in (None, there):
            problem = f"changed: {name} ({there} instead of {size} bytes)"
            return replace(status, state="broken", problems=(problem,), against=against)
    files = {name: manifest.files[name] for name in need.found_names}
    checked = last_check(replace(manifest, files=files))
    return replace(status, against=against) if checked is None else _settled(status, checked, against)


def examine(need: Need, places: Places, *, full: bool = False) -> Status:
    """Make sure of it, reading what was touched since it was read last.

    Files without a manifest get one: against their archive where that lies beside them as MMF left it, and
    else as they are, once they were read to their end.

    Args:
        need: what is meant.
        places: MMF's folders.
        full: read everything.
    """
    if not need.is_there:
        return _missing(need)
    try:
        if not need.is_ours:
            wrong, against = Ledger(places).verify(need.files, full=full), _named(need)
        elif (manifest := _manifest(need) or _adopted(need)) is None:
            return Status(need, "recorded", _size(need), against="nothing: its folder cannot be written to")
        elif problem := _of_another_archive(need, manifest):
            return Status(need, "broken", _size(need), problems=(problem,))
        else:
            wrong = verify(manifest, full=full, only=need.found_names, title=f"Verifying {need.title}")
            against = manifest.verified_against
    except DataError as error:
        return Status(need, "broken", _size(need), problems=(str(error),))
    status = look(need, places)
    if wrong:
        return replace(status, state="broken", problems=tuple(map(str, wrong)))
    # It may have been changed so shortly before that the times of this check will not be trusted later.
    return _settled(status, time.time(), against) if status.state == "unchecked" else status


def _manifest(need: Need) -> Manifest | None:
    """The folder's manifest, if it knows all of the files."""
    manifest = Manifest.load(need.folder)
    known = manifest is not None and set(need.found_names) <= manifest.files.keys()
    return manifest if known else None


def _adopted(need: Need) -> Manifest | None:
    """A manifest for files that another hand has put there; None where none can be kept.

    Raises:
        DataError: they are not whole.
    """
    manifest = None
    if need.entry and need.entry.archive.is_file():
        try:
            manifest = manifest_of(
                need.entry.archive,
                need.folder,
                choose=need.choose,
                expected_sha256=need.entry.sha256,
                title=f"Comparing {need.title} with its archive",
            )
        except ArchiveError as error:
            say(f"note: {error}")
    if manifest is not None and set(need.found_names) <= manifest.files.keys():
        with suppress(OSError):
            manifest.save()
        return manifest
    _require_structure(need)
    others = Manifest.load(need.folder)
    names = {*(others.files if others else ()), *need.found_names}
    try:
        return record(need.folder, names, title=f"Recording {need.title}")
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return None
        raise


def _require_structure(need: Need) -> None:
    """Find in the files themselves what can be found, where nobody vouches for them.

    Raises:
        DataError: they are not whole, or those of another MMF.
    """
    if need.entry and (version := built_version(need.entry.marker)) not in (None, need.entry.version):
        raise DataError(
            f"{need.folder}: version {version} by MMF's {need.entry.marker.name}, and the installed MMF "
            f"wants {need.entry.version}"
        )
    if need.kind == "features":
        image_keys(need.files[0].parent, walk=True)
    if need.kind == "weights":
        for path in need.files:
            with Progress(f"Reading {need.title}", path.stat().st_size) as bar:
                problem = torch_file.problem(path, bar.advance)
            if problem:
                raise DataError(f"{path}: {problem}")


def _of_another_archive(need: Need, manifest: Manifest) -> str | None:
    """Why files are not those of the installed MMF, though they are whole: each version has its own."""
    sha256 = need.entry.sha256 if need.entry else None
    source = manifest.source
    if manifest.basis != "published" or source is None or need.entry is None or sha256 is None:
        return None
    if source.sha256 == sha256:
        return None
    wanted = need.entry.file_name
    return f"{need.folder}: made of another archive ({source.name}) than the installed MMF's {wanted}"


def _missing(need: Need) -> Status:
    """What is gone from beside a manifest was there once, so it can be mended."""
    absent = [str(path) for path in need.files if not path.is_file()] or [str(need.folder)]
    problems = tuple(f"missing: {path}" for path in absent)
    with suppress(DataError):
        if need.is_ours and _manifest(need):
            return Status(need, "broken", _size(need), problems=problems)
    return Status(need, "missing", _size(need), problems=problems)


def _size(need: Need) -> int:
    return sum(path.stat().st_size for path in need.files if path.is_file())


def _settled(status: Status, checked: float, against: str) -> Status:
    return replace(
        status, state="recorded" if against == FIRST_READING else "ok", checked=checked, against=against
    )


def _named(need: Need) -> str:
    """What vouches for files that lie in caches of others."""
    if all(hash_in_name(path) or git_id_in_name(path) for path in need.files):
        return "the hash in its name"
    return FIRST_READING

"""Whether the files that a run reads are intact, and what that was verified against.

Files in a folder of MMF's downloads have a manifest beside them. For those in folders of others, such as the
caches of transformers and torchvision, ``<MMF's cache folder>/mmfw-checked.json`` keeps the hash of each, and
the state in which it was read.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path

from mmf_win.console import Progress
from mmf_win.dataset.features import built_version
from mmf_win.errors import ArchiveError, DamagedFeatures, DataError, HostileFeatures
from mmf_win.files import read_json, write_json
from mmf_win.inputs.caches import contradicts_hash, hash_in_name
from mmf_win.inputs.keys import image_keys
from mmf_win.inputs.listing import Need
from mmf_win.integrity import torch_file
from mmf_win.integrity.finding import Difference, Finding, State
from mmf_win.integrity.manifest import FIRST_READING, Check, Entry, Manifest
from mmf_win.integrity.verify import find_damage, hash_files, last_check, record_hashes
from mmf_win.paths import Places
from mmf_win.unpacking.extract import manifest_of
from mmf_win.unpacking.staging import require_finished

_CHECKED, _FORMAT = "mmfw-checked.json", 1
_UNKNOWN = "0" * 64  # in place of the hash of a file that was never intact; no file has this one
_log = logging.getLogger(__name__)


def state_without_reading(need: Need, places: Places) -> Finding:
    """What is known of files without reading any of them."""
    finding = _finding(need, "not verified")
    try:
        if need.has_manifest:
            require_finished(need.folder)
        if not need.is_there:
            return _missing(need, places)
        manifest = _manifest(need, places)
    except DataError as error:
        return _damaged(finding, str(error))
    if manifest is None:
        return finding
    finding = replace(finding, against=_against(need, manifest))
    if problem := _of_another_archive(need, manifest):
        return _damaged(finding, problem)
    files = {name: manifest.files[name] for name in _listed_names(need)}
    for (name, entry), path in zip(files.items(), need.files, strict=True):
        there = path.stat().st_size
        if entry.size not in (None, there):
            return _damaged(finding, f"changed: {name} ({there} instead of {entry.size} bytes)")
    verified = last_check(replace(manifest, files=files))
    return finding if verified is None else _intact(finding, verified, finding.against)


def verify_need(need: Need, places: Places, *, full: bool = False) -> Finding:
    """Verify files, reading those that were touched since they were read last.

    Files without a manifest get one: against their archive where that lies beside them as MMF left it, and
    else as they are, once they were read to their end.

    Args:
        need: the files.
        places: MMF's folders.
        full: read every file.

    Raises:
        HostileFeatures: MMF would run code that is in one.
    """
    try:
        if need.has_manifest:
            require_finished(need.folder)
        if not need.is_there:
            return _missing(need, places)
        manifest = _manifest(need, places)
        if manifest is None:
            manifest = _new_manifest(need) if need.has_manifest else read_elsewhere(places)
        if manifest is None:
            return _finding(need, "recorded", "nothing: its folder cannot be written to")
        if problem := _of_another_archive(need, manifest):
            return _damaged(_finding(need), problem)
        if need.has_manifest:
            wrong = find_damage(manifest, full=full, only=need.found_names, title=f"Verifying {need.title}")
            if full and need.kind == "features" and not wrong:
                with suppress(DamagedFeatures):  # it came so: a run says what is wrong with it
                    image_keys(need.files[0].parent, walk=True)  # a hash does not tell what MMF would run
        else:
            wrong = _verify_elsewhere(need, manifest, full)
    except HostileFeatures:  # to write them again from the same archive would not help
        raise
    except DataError as error:
        return _damaged(_finding(need), str(error))
    finding = state_without_reading(need, places)
    if wrong:
        return _damaged(finding, *map(str, wrong))
    # It may have been changed so shortly before that the times of this check will not be trusted later.
    if finding.state == "not verified":
        return _intact(finding, time.time(), _against(need, manifest))
    return finding


def _manifest(need: Need, places: Places) -> Manifest | None:
    """The manifest that lists the files; None where it does not list all of them."""
    manifest = Manifest.load(need.folder) if need.has_manifest else read_elsewhere(places)
    return manifest if manifest and manifest.files.keys() >= set(_listed_names(need)) else None


def _listed_names(need: Need) -> Sequence[str]:
    """What the manifest calls the files."""
    return need.found_names if need.has_manifest else [str(path) for path in need.files]


def _against(need: Need, manifest: Manifest) -> str:
    if need.has_manifest or not all(map(hash_in_name, need.files)):
        return manifest.verified_against
    return "the hash in its name"


def _new_manifest(need: Need) -> Manifest | None:
    """A manifest for files that another program has put there; None where none can be written.

    Raises:
        DataError: they are damaged.
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
            _log.warning("%s", error)
    if manifest is not None and set(need.found_names) <= manifest.files.keys():
        with suppress(OSError):
            manifest.save()
        return manifest
    _require_structure(need)
    others = Manifest.load(need.folder)
    names = {*(others.files if others else ()), *need.found_names}
    try:
        return record_hashes(need.folder, names, title=f"Recording {need.title}")
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return None
        raise


def _require_structure(need: Need) -> None:
    """Check the format of files that there is nothing to verify against.

    Raises:
        DataError: they are damaged, or those of another version of MMF.
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
    """Why intact files are not those of the installed MMF: each version has its own."""
    source = manifest.source
    if manifest.basis != "published" or source is None or need.entry is None:
        return None
    if need.entry.sha256 in (None, source.sha256):
        return None
    wanted = need.entry.file_name
    return f"{need.folder}: made of another archive ({source.name}) than the installed MMF's {wanted}"


def _finding(need: Need, state: State = "not verified", against: str = "") -> Finding:
    size = sum(path.stat().st_size for path in need.files if path.is_file())
    return Finding("features", need.title, need.folder, state, against, size=size)


def _damaged(finding: Finding, *problems: str) -> Finding:
    return replace(finding, state="damaged", problems=problems)


def _intact(finding: Finding, verified: float, against: str) -> Finding:
    state: State = "recorded" if against == FIRST_READING else "intact"
    return replace(finding, state=state, verified=verified, against=against)


def _missing(need: Need, places: Places) -> Finding:
    """Files that a manifest lists were there once, so they are damaged and can be repaired."""
    elsewhere = () if need.has_manifest else map(Path, read_elsewhere(places).files)
    read = [path for path in elsewhere if path.parent == need.place]
    absent = [path for path in dict.fromkeys((*need.files, *read)) if not path.is_file()] or [need.folder]
    finding = replace(_finding(need, "missing"), problems=tuple(f"missing: {path}" for path in absent))
    with suppress(DataError):
        if read or (need.has_manifest and _manifest(need, places)):
            return replace(finding, state="damaged")
    return finding


def read_elsewhere(places: Places) -> Manifest:
    """What was read so far of files in folders of others, each by its absolute path."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        value = read_json(places.cache_dir / _CHECKED)
        if value["format"] == _FORMAT:
            files = {path: Entry(str(sha256)) for path, (sha256, _) in value["files"].items()}
            checks = {path: Check(*map(int, check)) for path, (_, check) in value["files"].items()}
            return Manifest(places.cache_dir, files, checks=checks)
    return Manifest(places.cache_dir, {})


def _verify_elsewhere(need: Need, manifest: Manifest, full: bool) -> list[Difference]:
    """Verify files against the hash that is known of them, or else against an earlier reading.

    A file without one may be replaced by its owner: then it is recorded again, and that is logged. One whose
    content changes while its time and size stay is damaged.
    """
    files, checks, wrong = dict(manifest.files), manifest.checks, []
    paths = {str(path): path for path in need.files}
    if not full:
        paths = {n: p for n, p in paths.items() if n not in checks or not checks[n].still_holds(p.stat())}
    if not paths:
        return []
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    for name, sha256, check in hash_files(paths, sizes, f"Verifying {need.title}"):
        if problem := _problem(paths[name], sha256, check, files.get(name), checks.get(name)):
            wrong.append(problem)
            if before := checks.get(name, check):
                # So that it is read again the next time, and until it is repaired.
                files.setdefault(name, Entry(_UNKNOWN))
                checks[name] = replace(before, checked_ns=0)
        elif check is not None:
            files[name], checks[name] = Entry(str(sha256)), check
    listed = {name: (files[name].sha256, astuple(checks[name])) for name in sorted(files)}
    with suppress(OSError):  # where it cannot be remembered, everything is read again the next time
        manifest.folder.mkdir(parents=True, exist_ok=True)
        write_json(manifest.folder / _CHECKED, {"format": _FORMAT, "files": listed})
    return wrong


def _problem(
    path: Path, sha256: str | OSError, check: Check | None, entry: Entry | None, before: Check | None
) -> Difference | None:
    if isinstance(sha256, OSError):
        return Difference("unreadable", str(path), sha256.strerror or str(sha256))
    if contradicts_hash(path, sha256):
        return Difference("changed", str(path), "not what its name says")
    if entry and entry.sha256 != sha256 and not hash_in_name(path):
        if check and before and (before.size, before.mtime_ns) == (check.size, check.mtime_ns):
            return Difference("changed", str(path), "other content, though its time stayed the same")
        _log.warning("%s was replaced since it was last read", path)
    return None

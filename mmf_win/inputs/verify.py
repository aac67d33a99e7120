"""Whether the files that a run reads are intact, and what that was verified against.

Files in a folder of MMF's downloads have a manifest beside them. For those in folders of others, such as the
caches of transformers and torchvision, ``<MMF's cache folder>/mmfw-checked.json`` keeps the hash of each, and
the state in which it was read.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from mmf_win.console import Progress
from mmf_win.dataset.features import built_version
from mmf_win.errors import ArchiveError, DataError
from mmf_win.files import read_json, write_json
from mmf_win.inputs.caches import contradicts_name, has_hash_in_name
from mmf_win.inputs.keys import image_keys
from mmf_win.inputs.listing import Need
from mmf_win.integrity import torch_file
from mmf_win.integrity.finding import Difference, Finding, State
from mmf_win.integrity.manifest import FIRST_READING, Check, Manifest
from mmf_win.integrity.verify import hash_files, last_check, record, verify
from mmf_win.paths import Places
from mmf_win.unpacking.extract import manifest_of

_FORMAT = 1
_log = logging.getLogger(__name__)


def known(need: Need, places: Places) -> Finding:
    """What is known of files without reading any of them."""
    if not need.is_there:
        return _missing(need)
    finding = _finding(need, "not verified")
    if not need.is_ours:
        ledger = Ledger(places)
        checks = [check for path in need.files if (check := ledger.last_check(path)) is not None]
        return finding if len(checks) < len(need.files) else _intact(finding, min(checks), _by_name(need))
    try:
        manifest = _manifest(need)
    except DataError as error:
        return _damaged(finding, str(error))
    if manifest is None:
        return finding
    finding = replace(finding, against=manifest.verified_against)
    if problem := _of_another_archive(need, manifest):
        return _damaged(finding, problem)
    for name, path in zip(need.found_names, need.files, strict=True):
        there, size = path.stat().st_size, manifest.files[name].size
        if size not in (None, there):
            return _damaged(finding, f"changed: {name} ({there} instead of {size} bytes)")
    files = {name: manifest.files[name] for name in need.found_names}
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
    """
    if not need.is_there:
        return _missing(need)
    try:
        if not need.is_ours:
            wrong, against = Ledger(places).verify(need.files, full=full), _by_name(need)
        elif (manifest := _manifest(need) or _new_manifest(need)) is None:
            return _finding(need, "recorded", "nothing: its folder cannot be written to")
        elif problem := _of_another_archive(need, manifest):
            return _damaged(_finding(need), problem)
        else:
            wrong = verify(manifest, full=full, only=need.found_names, title=f"Verifying {need.title}")
            against = manifest.verified_against
    except DataError as error:
        return _damaged(_finding(need), str(error))
    finding = known(need, places)
    if wrong:
        return _damaged(finding, *map(str, wrong))
    # It may have been changed so shortly before that the times of this check will not be trusted later.
    return _intact(finding, time.time(), against) if finding.state == "not verified" else finding


def _manifest(need: Need) -> Manifest | None:
    """The folder's manifest, if it knows all of the files."""
    manifest = Manifest.load(need.folder)
    return manifest if manifest is not None and set(need.found_names) <= manifest.files.keys() else None


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
        return record(need.folder, names, title=f"Recording {need.title}")
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
    sha256 = need.entry.sha256 if need.entry else None
    source = manifest.source
    if manifest.basis != "published" or source is None or need.entry is None or sha256 is None:
        return None
    if source.sha256 == sha256:
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


def _missing(need: Need) -> Finding:
    """Files that a manifest lists were there once, so they are damaged and can be repaired."""
    absent = [path for path in need.files if not path.is_file()] or [need.folder]
    finding = replace(_finding(need, "missing"), problems=tuple(f"missing: {path}" for path in absent))
    with suppress(DataError):
        if need.is_ours and _manifest(need):
            return replace(finding, state="damaged")
    return finding


def _by_name(need: Need) -> str:
    """What files in caches of others are verified against."""
    return "the hash in its name" if all(map(has_hash_in_name, need.files)) else FIRST_READING


@dataclass(frozen=True)
class _Seen:
    """The hash of a file when it was read, and its state then."""

    sha256: str
    check: Check


class Ledger:
    """The files in folders of others that were read so far.

    Args:
        places: MMF's folders.
    """

    def __init__(self, places: Places) -> None:
        self._path = places.cache_dir / "mmfw-checked.json"
        self._seen: dict[str, _Seen] = {}
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            value = read_json(self._path)
            if value["format"] == _FORMAT:
                self._seen = {
                    path: _Seen(str(sha256), Check(*map(int, check)))
                    for path, (sha256, check) in value["files"].items()
                }

    @property
    def paths(self) -> list[Path]:
        """The files, there or not."""
        return [Path(path) for path in self._seen]

    def last_check(self, path: Path) -> float | None:
        """When a file was last found intact, in seconds since the epoch; None if it was touched since."""
        seen = self._seen.get(str(path))
        with suppress(OSError):
            if seen is not None and seen.check.still_holds(path.stat()):
                return seen.check.checked_ns / 1e9
        return None

    def verify(self, paths: Iterable[Path], *, full: bool = False) -> list[Difference]:
        """Verify files against the hash in their names, or else against an earlier reading.

        A file without a hash in its name may be replaced by its owner: then it is recorded anew, and that is
        logged. One whose content changes while its time and size stay is damaged.

        Args:
            paths: the files; all of them are there.
            full: read every file.

        Returns:
            what is wrong, each with the file's absolute path.
        """
        to_read = {str(path): path for path in paths if full or self.last_check(path) is None}
        wrong = []
        if to_read:
            sizes = {key: path.stat().st_size for key, path in to_read.items()}
            for key, sha256, check in hash_files(to_read, sizes, "Verifying"):
                if difference := self._compare(to_read[key], sha256, check):
                    wrong.append(difference)
            self._save()
        return wrong

    def _compare(self, path: Path, sha256: str | OSError, check: Check | None) -> Difference | None:
        before, problem = self._seen.get(str(path)), None
        if isinstance(sha256, OSError):
            problem = Difference("unreadable", str(path), sha256.strerror or str(sha256))
        elif contradicts_name(path, sha256):
            problem = Difference("changed", str(path), "not what its name says")
        elif before and not has_hash_in_name(path) and before.sha256 != sha256:
            if check and (before.check.size, before.check.mtime_ns) == (check.size, check.mtime_ns):
                problem = Difference("changed", str(path), "other content, though its time stayed the same")
            else:
                _log.warning("%s was replaced since it was last read", path)
        if problem is None and check is not None:
            self._seen[str(path)] = _Seen(str(sha256), check)
        elif problem is not None and (seen := before or (check and _Seen("", check))):
            # So that it is read again the next time, and until it is repaired.
            self._seen[str(path)] = replace(seen, check=replace(seen.check, checked_ns=0))
        return problem

    def _save(self) -> None:
        """Remember it; where that cannot be, everything is read again the next time."""
        files = {path: (seen.sha256, astuple(seen.check)) for path, seen in sorted(self._seen.items())}
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, {"format": _FORMAT, "files": files})

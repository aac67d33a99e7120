"""Manifest of a folder: hashes of its files, their origin, and the last check of each file.

::

    <folder>/
    ├── SHA256SUMS         hash and path of each file in the format of coreutils (``sha256sum -c`` reads it)
    ├── SHA256SUMS.json    data that this format cannot store: sizes, origin of the hashes, past checks
    └── …                  the files

``SHA256SUMS`` is written last: if it exists, the files were complete. It alone defines their content. The
sizes and checks in the JSON are a cache: without them, every file is read again at the next check. The origin
of the hashes is stored only in the JSON and is needed for repairs. If the JSON is missing or belongs to
another ``SHA256SUMS``, the hashes count as merely recorded.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from os import stat_result
from pathlib import Path
from sys import platform
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from mmf_win.console import format_command
from mmf_win.errors import DamagedManifestError, DataError
from mmf_win.files import iter_files, json_bytes, read_json, write_bytes
from mmf_win.integrity.digest import hash_file
from mmf_win.paths import DatasetPaths, data_dir_arguments
from mmf_win.records import from_stored

T = TypeVar("T")

#: Name of the file with the hashes.
MANIFEST_NAME = "SHA256SUMS"

#: Origin of the hashes, the strongest first.
#:
#: ``published``: the publisher has published the hash of the files or of their archive. ``archive``: the
#: files come from an intact archive without a published hash. ``built``: mmfw created the files from user
#: data and hashed them when it wrote them. ``recorded``: the files were hashed as found on the disk, so only
#: later changes can be detected.
HashOrigin: TypeAlias = Literal["published", "archive", "built", "recorded"]

#: Description of the hashes that files of unknown origin are verified against.
FIRST_READING = "hashes recorded at first use"

_NOTES_NAME = "SHA256SUMS.json"
_FORMAT = 1
_LINE_PATTERN = re.compile(r"(\\?)([0-9a-f]{64}) [ *]([^\0]+)")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {escape: character for character, escape in _ESCAPES.items()}
# FAT stores times in steps of two seconds: a change after the check may get the time of one just before it.
_COARSEST_CLOCK_NS = 2_000_000_000


@dataclass(frozen=True)
class ManifestEntry:
    """Expected content of a file.

    Attributes:
        sha256: SHA-256 in hex.
        size: Size in bytes, or None if unknown.
    """

    sha256: str
    size: int | None = None


@dataclass(frozen=True)
class ManifestSource:
    """Archive or folder that files were created from.

    Attributes:
        name: Name without its folder.
        size: Size in bytes; for a folder, of all its files.
        mtime_ns: Modification time in nanoseconds; for a folder, that of its newest file.
        path: Absolute path at that time.
        sha256: SHA-256 of an archive, or None for a folder.
    """

    name: str
    size: int
    mtime_ns: int
    path: str = field(compare=False)
    sha256: str | None = None

    @classmethod
    def from_path(cls, path: Path, sha256: str | None = None, *, exclude: Collection[Path] = ()) -> ManifestSource:
        """Return the source at ``path``, without reading any content.

        Args:
            path: Archive or folder.
            sha256: SHA-256 of the archive.
            exclude: Folders in ``path`` to ignore.

        Raises:
            OSError: There is no such archive or folder.
        """
        paths = iter_files(path, exclude) if path.is_dir() else [path]
        files = [file.stat() for file in paths if not file.name.startswith(".mmfw-")]
        newest = max((file.st_mtime_ns for file in files), default=0)
        return cls(path.name, sum(file.st_size for file in files), newest, str(path.absolute()), sha256)

    def is_same(self, path: Path, *, exclude: Collection[Path] = ()) -> bool:
        """Return whether ``path`` is this source; a file with another mtime but equal size is hashed."""
        if not path.exists() or (current := ManifestSource.from_path(path, exclude=exclude)).size != self.size:
            return False
        if current.mtime_ns == self.mtime_ns:
            return True
        if self.sha256 is None or path.is_dir():
            return False
        return hash_file(path, "Comparing") == self.sha256


@dataclass(frozen=True)
class FileStamp:
    """State of a file when it was last verified.

    Attributes:
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds, which programs can set.
        change_ns: Change time (``st_ctime``) in nanoseconds, which only the system sets; 0 on Windows.
        file_id: ID of the file (``st_ino``), which differs from that of another file with this name.
        checked_ns: Time of the check in nanoseconds.
    """

    size: int
    mtime_ns: int
    change_ns: int
    file_id: int
    checked_ns: int

    @classmethod
    def from_stat(cls, stat: stat_result) -> FileStamp:
        """Return the stamp of a file that was just checked and has the state ``stat``."""
        return cls(*_stat_key(stat), checked_ns=time.time_ns())

    def matches(self, stat: stat_result) -> bool:
        """Return whether ``stat`` equals the state that was checked."""
        return _stat_key(stat) == (self.size, self.mtime_ns, self.change_ns, self.file_id)

    def is_current(self, stat: stat_result) -> bool:
        """Return whether the file is certainly unchanged since it was checked."""
        # Uncertain if it was changed just before the check, or if the check is in the future (clock changes).
        return self.matches(stat) and self.mtime_ns + _COARSEST_CLOCK_NS < self.checked_ns <= time.time_ns()


@dataclass(frozen=True)
class Manifest:
    """Expected content of the files of a folder.

    Attributes:
        folder: The folder.
        files: Path relative to the folder, with ``/`` → expected content.
        hash_origin: Origin of the hashes.
        source: Archive or folder that the files were created from, if any.
        result: Data stored by the step that created the files.
        stamps: Path → last successful check; updated by :func:`~mmf_win.integrity.verify.find_damage`.
    """

    folder: Path
    files: Mapping[str, ManifestEntry]
    hash_origin: HashOrigin = "recorded"
    source: ManifestSource | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    stamps: dict[str, FileStamp] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, folder: Path) -> Manifest | None:
        """Return the manifest of a folder, or None; raise a DamagedManifestError if it cannot be read."""
        path = folder / MANIFEST_NAME
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise damaged_manifest_error(folder, f"cannot be read ({error.strerror})") from None
        hashes = _parse_manifest(folder, text)
        notes, manifest_sha256, sizes = _read_notes(folder)
        if manifest_sha256 != hashlib.sha256(text).hexdigest():
            notes, sizes = replace(notes, hash_origin="recorded", stamps={}), {}
        return replace(notes, files={name: ManifestEntry(sha256, sizes.get(name)) for name, sha256 in hashes.items()})

    def save(self) -> None:
        """Write the manifest to its folder; if this raises an OSError, no new ``SHA256SUMS`` exists."""
        lines = (_format_line(name, entry.sha256) for name, entry in self.files.items())
        text = "".join(lines).encode("utf-8", "surrogateescape")  # Linux allows names that are not UTF-8
        self._write_notes(text)
        write_bytes(self.folder / MANIFEST_NAME, text)

    def save_stamps(self) -> None:
        """Write only the stamps, without changing the existing ``SHA256SUMS``.

        Nothing is written if another process has replaced that file.

        Raises:
            OSError: The stamps cannot be written.
        """
        manifest_bytes = (self.folder / MANIFEST_NAME).read_bytes()
        with suppress(DataError):
            if _parse_manifest(self.folder, manifest_bytes) == {name: e.sha256 for name, e in self.files.items()}:
                self._write_notes(manifest_bytes)

    def _write_notes(self, manifest_bytes: bytes) -> None:
        notes = {
            "format": _FORMAT,
            "sums": hashlib.sha256(manifest_bytes).hexdigest(),
            "basis": self.hash_origin,
            "source": None if self.source is None else asdict(self.source),
            "result": dict(self.result),
            "sizes": {name: entry.size for name, entry in self.files.items()},
            "checks": {name: astuple(stamp) for name, stamp in self.stamps.items()},
        }
        write_bytes(self.folder / _NOTES_NAME, json_bytes(notes))

    @property
    def verified_against(self) -> str:
        """Description of the hashes that the files are verified against."""
        if self.hash_origin == "built":
            return "hashes of the files that mmfw wrote"
        if self.hash_origin == "recorded" or self.source is None:
            return FIRST_READING
        kind = "the published archive" if self.hash_origin == "published" else "the archive"
        return f"{kind} {self.source.name}"

    @property
    def was_changed(self) -> bool:
        """True if the hashes are no longer those written when the archive was extracted."""
        return self.hash_origin == "recorded" and self.source is not None and self.source.sha256 is not None


def load_intact_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, or None if it is missing or damaged."""
    with suppress(DamagedManifestError):
        return Manifest.load(folder)
    return None


def damaged_manifest_error(folder: Path, reason: str, line_number: int | None = None) -> DamagedManifestError:
    """Return the error for a damaged ``SHA256SUMS``; the hint repairs it if that is possible."""
    manifest = load_manifest_notes(folder)
    hint = repair_hint(folder) if manifest and manifest.source else None
    location = folder / MANIFEST_NAME if line_number is None else f"{folder / MANIFEST_NAME}:{line_number}"
    default_hint = "delete this file; mmfw then verifies the files again"
    return DamagedManifestError(f"{location}: {reason}", hint=hint or default_hint)


def repair_hint(folder: Path) -> str | None:
    """Return the hint to repair a dataset or features folder, or None for another folder."""
    for data_dir in folder.parents:
        paths = DatasetPaths.from_data_dir(data_dir)
        if folder in (paths.root, paths.features):
            part = "dataset" if folder == paths.root else "features"
            return f"run `{format_command('mmfw', 'repair', part, *data_dir_arguments(data_dir))}`"
    return None


def load_manifest_notes(folder: Path) -> Manifest | None:
    """Load a manifest without its list of files, even if ``SHA256SUMS`` is damaged; None if unknown."""
    with suppress(DamagedManifestError):
        manifest, manifest_sha256, _ = _read_notes(folder)
        return manifest if manifest_sha256 else None
    return None


def parse_notes(kind: type[T], values: object, folder: Path) -> T:
    """Return an instance of a dataclass with stored values, ignoring the fields of later versions.

    Args:
        kind: The dataclass.
        values: The stored values.
        folder: Folder of the manifest, for error messages.

    Returns:
        The instance.

    Raises:
        DamagedManifestError: A field is missing or has another type.
    """
    try:
        return from_stored(values, kind)
    except ValueError as error:
        message = f"{folder / _NOTES_NAME}: damaged: {error}"
        raise DamagedManifestError(message, hint="delete this file and convert or fetch again") from None


def _read_notes(folder: Path) -> tuple[Manifest, str | None, Mapping[str, int]]:
    """Return the manifest without its files, the SHA-256 of ``SHA256SUMS``, and the sizes of the files."""
    # All of them are empty if the notes are missing or damaged. An incomplete source raises an error instead.
    try:
        notes = read_json(folder / _NOTES_NAME)
        if notes["format"] != _FORMAT or notes["basis"] not in get_args(HashOrigin):
            raise ValueError("written by another version")
        source = notes["source"] and parse_notes(ManifestSource, notes["source"], folder)
        manifest, manifest_sha256 = (Manifest(folder, {}, notes["basis"], source, dict(notes["result"])), notes["sums"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Manifest(folder, {}), None, {}
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        stamps = {name: FileStamp(*map(int, values)) for name, values in notes["checks"].items()}
        return replace(manifest, stamps=stamps), manifest_sha256, dict(notes["sizes"])
    return manifest, manifest_sha256, {}


def manifest_files(folder: Path) -> list[Path]:
    """Return the files of a folder's manifest, ``SHA256SUMS`` first; they must be removed in this order."""
    return [folder / MANIFEST_NAME, folder / _NOTES_NAME]


def _stat_key(stat: stat_result) -> tuple[int, int, int, int]:
    # On Windows, st_ctime is the creation time.
    change_ns = 0 if platform == "win32" else stat.st_ctime_ns
    return stat.st_size, stat.st_mtime_ns, change_ns, stat.st_ino


def _format_line(name: str, sha256: str) -> str:
    escaped = re.sub(r"[\\\n\r]", lambda match: _ESCAPES[match[0]], name)
    return f"{'' if escaped == name else chr(92)}{sha256}  {escaped}\n"


def _parse_manifest(folder: Path, text: bytes) -> dict[str, str]:
    """Return the hashes by path, skipping comments like ``sha256sum -c``."""
    hashes = {}
    for number, raw in enumerate(text.split(b"\n"), 1):
        if not raw.strip() or raw.startswith(b"#"):
            continue
        line = _LINE_PATTERN.fullmatch(raw.decode("utf-8", "surrogateescape").rstrip("\r"))
        if line is None:
            raise damaged_manifest_error(folder, "not in sha256sum format", number)
        escaped, sha256, name = line.groups()
        if escaped:
            name = re.sub(r"\\[\\nr]", lambda match: _UNESCAPES[match[0]], name)
        is_windows_path = platform == "win32" and (":" in name or "\\" in name)
        if name.startswith("/") or ".." in name.split("/") or is_windows_path:
            raise damaged_manifest_error(folder, "path leaves the folder", number)
        hashes[name] = sha256
    if not hashes:  # may be the result of a power cut
        raise damaged_manifest_error(folder, "lists no files")
    return hashes

"""The manifest of a folder: what its files should be, who says so, and when each was last verified.

::

    <folder>/
    ├── SHA256SUMS         hash and path of each file, as coreutils writes them; ``sha256sum -c`` reads it
    ├── SHA256SUMS.json    what that format has no place for: sizes, where the hashes come from, past checks
    └── …                  the files

``SHA256SUMS`` is written last: where it is, the files were complete. It alone tells what they should hold.
The sizes and checks in the JSON are a cache: without them, every file is read again at the next check. What
it says about where the hashes come from is kept nowhere else, and repairing needs it; without that, or with
the JSON of another ``SHA256SUMS``, the hashes count as merely recorded.
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
from mmf_win.records import convert_to

T = TypeVar("T")

#: The file's name.
MANIFEST_NAME = "SHA256SUMS"

#: Where the hashes come from, the strongest first.
#:
#: ``published``: the files came out of an archive whose hash its publisher has made known, or have such a
#: hash themselves. ``archive``: they came out of an intact archive whose hash nobody has published.
#: ``built``: mmfw made them of the user's own files, and the hashes are those of what it wrote. ``recorded``:
#: they are what was found on the disk one day; only later changes can be seen.
HashOrigin: TypeAlias = Literal["published", "archive", "built", "recorded"]

#: What files without a better basis were verified against, for people.
FIRST_READING = "its first reading"

_NOTES_NAME = "SHA256SUMS.json"
_FORMAT = 1
_LINE_PATTERN = re.compile(r"(\\?)([0-9a-f]{64}) [ *]([^\0]+)")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {escape: character for character, escape in _ESCAPES.items()}
# FAT tells time in steps of two seconds, so a change may hide behind the time of one just before the check.
_COARSEST_CLOCK_NS = 2_000_000_000


@dataclass(frozen=True)
class ManifestEntry:
    """What a file should be: its SHA-256 in hex, and its size in bytes; None when only the hash is known."""

    sha256: str
    size: int | None = None


@dataclass(frozen=True)
class ManifestSource:
    """What files were made of: an archive or a folder.

    Attributes:
        name: without its folder.
        size: bytes, of all files in the case of a folder.
        mtime_ns: last change in nanoseconds, the newest in the case of a folder.
        path: where it lay, absolute.
        sha256: of an archive; None for a folder.
    """

    name: str
    size: int
    mtime_ns: int
    path: str = field(compare=False)
    sha256: str | None = None

    @classmethod
    def from_path(
        cls, path: Path, sha256: str | None = None, *, exclude: Collection[Path] = ()
    ) -> ManifestSource:
        """Return the archive, or the folder ``without`` some of its folders, at ``path``; nothing is read.

        Raises OSError where there is none.
        """
        found = iter_files(path, exclude) if path.is_dir() else [path]
        files = [file.stat() for file in found if not file.name.startswith(".mmfw-")]
        newest = max((file.st_mtime_ns for file in files), default=0)
        return cls(path.name, sum(file.st_size for file in files), newest, str(path.absolute()), sha256)

    def is_same(self, path: Path, *, exclude: Collection[Path] = ()) -> bool:
        """Whether ``path`` is this; a file that may only have been touched or copied is hashed to know."""
        if not path.exists() or (now := ManifestSource.from_path(path, exclude=exclude)).size != self.size:
            return False
        if now.mtime_ns == self.mtime_ns:
            return True
        if self.sha256 is None or path.is_dir():
            return False
        return hash_file(path, "Comparing") == self.sha256


@dataclass(frozen=True)
class FileStamp:
    """The state in which a file was when it was found to be what it should be.

    Attributes:
        mtime_ns: when its content was changed last, in nanoseconds; anybody can set that.
        change_ns: when anything about it was changed last, as the system alone sets it; 0 on Windows.
        file_id: what tells it from another file of the same name, as the system counts them.
    """

    size: int
    mtime_ns: int
    change_ns: int
    file_id: int
    checked_ns: int

    @classmethod
    def from_stat(cls, stat: stat_result) -> FileStamp:
        """A file that was checked just now, in the state ``stat``."""
        return cls(*_stat_key(stat), checked_ns=time.time_ns())

    def matches(self, stat: stat_result) -> bool:
        """Whether ``stat`` is the very state that was checked."""
        return _stat_key(stat) == (self.size, self.mtime_ns, self.change_ns, self.file_id)

    def is_current(self, stat: stat_result) -> bool:
        """Whether the file must be the one that was checked.

        It need not be when it was changed about as late as it was checked, or when the clock has stood
        elsewhere meanwhile: a time of that check that lies ahead says nothing.
        """
        return self.matches(stat) and self.mtime_ns + _COARSEST_CLOCK_NS < self.checked_ns <= time.time_ns()


@dataclass(frozen=True)
class Manifest:
    """What the files of a folder should be.

    Attributes:
        files: path relative to the folder, with ``/`` → what that file should be.
        basis: where the hashes come from.
        source: the archive or folder that the files were made of, if any.
        result: what the step that made the files wants to remember.
        checks: path → when it was last found to be so. :func:`~mmf_win.integrity.verify.find_damage` adds
            to it.
    """

    folder: Path
    files: Mapping[str, ManifestEntry]
    hash_origin: HashOrigin = "recorded"
    source: ManifestSource | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    stamps: dict[str, FileStamp] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, folder: Path) -> Manifest | None:
        """The manifest of a folder, or None. Raises DamagedManifest where it cannot be read or understood."""
        path = folder / MANIFEST_NAME
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise damaged_manifest_error(folder, f"it cannot be read ({error.strerror})") from None
        hashes = _parse_manifest(folder, text)
        known, sums, sizes = _read_notes(folder)
        if sums != hashlib.sha256(text).hexdigest():
            known, sizes = replace(known, hash_origin="recorded", stamps={}), {}
        return replace(
            known, files={name: ManifestEntry(sha256, sizes.get(name)) for name, sha256 in hashes.items()}
        )

    def save(self) -> None:
        """Write it into its folder; after an OSError, no ``SHA256SUMS`` has appeared."""
        lines = (_format_line(name, entry.sha256) for name, entry in self.files.items())
        text = "".join(lines).encode("utf-8", "surrogateescape")  # Linux allows names that are no UTF-8
        self._write_notes(text)
        write_bytes(self.folder / MANIFEST_NAME, text)

    def save_stamps(self) -> None:
        """Write only what is remembered of checks, beside the ``SHA256SUMS`` that is there.

        Nothing is written when another process has put another one there meanwhile. Raises OSError where it
        cannot be written.
        """
        sums = (self.folder / MANIFEST_NAME).read_bytes()
        with suppress(DataError):
            if _parse_manifest(self.folder, sums) == {name: e.sha256 for name, e in self.files.items()}:
                self._write_notes(sums)

    def _write_notes(self, manifest_bytes: bytes) -> None:
        notes = {
            "format": _FORMAT,
            "sums": hashlib.sha256(manifest_bytes).hexdigest(),
            "basis": self.hash_origin,
            "source": None if self.source is None else asdict(self.source),
            "result": dict(self.result),
            "sizes": {name: entry.size for name, entry in self.files.items()},
            "checks": {name: astuple(check) for name, check in self.stamps.items()},
        }
        write_bytes(self.folder / _NOTES_NAME, json_bytes(notes))

    @property
    def verified_against(self) -> str:
        """What the files are verified against, for people."""
        if self.hash_origin == "built":
            return "what mmfw wrote"
        if self.hash_origin == "recorded" or self.source is None:
            return FIRST_READING
        kind = "the published archive" if self.hash_origin == "published" else "the archive"
        return f"{kind} {self.source.name}"

    @property
    def was_changed(self) -> bool:
        """Whether this is not the list that was written when an archive was unpacked."""
        return self.hash_origin == "recorded" and self.source is not None and self.source.sha256 is not None


def load_intact_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none, or a damaged one."""
    with suppress(DamagedManifestError):
        return Manifest.load(folder)
    return None


def damaged_manifest_error(folder: Path, reason: str, line_number: int | None = None) -> DamagedManifestError:
    """The error that the ``SHA256SUMS`` of a folder is damaged; its hint repairs the files, where it can."""
    known = load_manifest_notes(folder)
    repair = repair_command(folder) if known and known.source else None
    where = folder / MANIFEST_NAME if line_number is None else f"{folder / MANIFEST_NAME}:{line_number}"
    hint = repair or "delete this list of hashes, and the files are verified again"
    return DamagedManifestError(f"{where}: {reason}", hint=hint)


def repair_command(folder: Path) -> str | None:
    """The command that repairs the dataset or the features in a folder; None where MMF looks for neither."""
    for data_dir in folder.parents:
        paths = DatasetPaths.from_data_dir(data_dir)
        if folder in (paths.root, paths.features):
            part = "dataset" if folder == paths.root else "features"
            return f"`{format_command('mmfw', 'repair', part, *data_dir_arguments(data_dir))}`"
    return None


def load_manifest_notes(folder: Path) -> Manifest | None:
    """The manifest of a folder without its files, even if its ``SHA256SUMS`` is damaged; None if unknown."""
    with suppress(DamagedManifestError):
        known, sums, _ = _read_notes(folder)
        return known if sums else None
    return None


def parse_notes(kind: type[T], values: object, folder: Path) -> T:
    """Return a dataclass of values in the notes of a folder, without the fields of later versions.

    Raises DamagedManifest where a field is missing or has another type.
    """
    try:
        return convert_to(values, kind)
    except ValueError as error:
        message = f"{folder / _NOTES_NAME}: damaged {kind.__name__}: {error}"
        raise DamagedManifestError(message, hint="delete this file, then convert or fetch again") from None


def _read_notes(folder: Path) -> tuple[Manifest, str | None, Mapping[str, int]]:
    """The manifest of a folder without its files, the hash of their list, and their sizes.

    All of it is empty where the notes are missing or damaged. Raises DamagedManifest where they lack a field
    of the source.
    """
    try:
        notes = read_json(folder / _NOTES_NAME)
        if notes["format"] != _FORMAT or notes["basis"] not in get_args(HashOrigin):
            raise ValueError("notes of another version")
        source = notes["source"] and parse_notes(ManifestSource, notes["source"], folder)
        known, sums = Manifest(folder, {}, notes["basis"], source, dict(notes["result"])), notes["sums"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Manifest(folder, {}), None, {}
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        checks = {name: FileStamp(*map(int, values)) for name, values in notes["checks"].items()}
        return replace(known, stamps=checks), sums, dict(notes["sizes"])
    return known, sums, {}


def manifest_files(folder: Path) -> list[Path]:
    """The files that make up a folder's manifest, ``SHA256SUMS`` first, for whoever removes them."""
    return [folder / MANIFEST_NAME, folder / _NOTES_NAME]


def _stat_key(stat: stat_result) -> tuple[int, int, int, int]:
    # On Windows, st_ctime is when the file was made.
    change_ns = 0 if platform == "win32" else stat.st_ctime_ns
    return stat.st_size, stat.st_mtime_ns, change_ns, stat.st_ino


def _format_line(name: str, sha256: str) -> str:
    escaped = re.sub(r"[\\\n\r]", lambda found: _ESCAPES[found[0]], name)
    return f"{'' if escaped == name else chr(92)}{sha256}  {escaped}\n"


def _parse_manifest(folder: Path, text: bytes) -> dict[str, str]:
    """Path → hash. Lines of comments are skipped, as ``sha256sum -c`` does."""
    hashes = {}
    for number, raw in enumerate(text.split(b"\n"), 1):
        if not raw.strip() or raw.startswith(b"#"):
            continue
        line = _LINE_PATTERN.fullmatch(raw.decode("utf-8", "surrogateescape").rstrip("\r"))
        if line is None:
            raise damaged_manifest_error(folder, "not a line of sha256sum", number)
        escaped, sha256, name = line.groups()
        if escaped:
            name = re.sub(r"\\[\\nr]", lambda found: _UNESCAPES[found[0]], name)
        is_elsewhere = platform == "win32" and (":" in name or "\\" in name)
        if name.startswith("/") or ".." in name.split("/") or is_elsewhere:
            raise damaged_manifest_error(folder, "the path leads out of the folder", number)
        hashes[name] = sha256
    if not hashes:  # as a computer that lost its power leaves it
        raise damaged_manifest_error(folder, "it lists no file")
    return hashes

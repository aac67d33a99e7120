"""The note that a finished conversion leaves beside its files: where they came from, and what each should be.

It is written last, so that files without it were not finished by us. To hash all images would take longer
than to extract them, so it has what the archive has, sizes and CRC-32s; whoever verifies the files first
writes their manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from mmf_win.files import read_json, write_json
from mmf_win.integrity import Basis, Checksum, Difference, Manifest, Source, adopt, resized, verify
from mmf_win.paths import DatasetPaths

_FORMAT = 2
_SIZES_ONLY = 1


@dataclass(frozen=True)
class Record:
    """A finished conversion.

    Attributes:
        source: what the files were made of.
        files: path below the record's folder, with ``/`` → what that file should be.
        result: what the conversion wants to remember.
    """

    source: Source
    files: Mapping[str, Checksum]
    result: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path) -> Record | None:
        """The record at ``path``; None when there is none that can be understood."""
        try:
            value = read_json(path)
            if value["format"] not in (_SIZES_ONLY, _FORMAT):
                return None
            files = {name: _checksum(known) for name, known in value["files"].items()}
            return cls(Source(**value["source"]), files, dict(value["result"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def save(self, path: Path) -> None:
        """Write the record as JSON."""
        files = {name: astuple(checksum) for name, checksum in self.files.items()}
        source = asdict(self.source)
        write_json(path, {"format": _FORMAT, "source": source, "files": files, "result": dict(self.result)})

    @property
    def basis(self) -> Basis:
        """Where the checksums come from."""
        from_archive = self.source.sha256 is not None
        known = all(checksum.crc32 is not None for checksum in self.files.values())
        return "archive" if from_archive and known else "recorded"

    def broken_files(self, root: Path) -> list[str]:
        """The files that are gone or have another size."""
        return [found.path for found in resized(root, {name: c.size for name, c in self.files.items()})]


def _checksum(known: int | list[int]) -> Checksum:
    """Of an earlier record, which has sizes only, or of one of today."""
    return Checksum(known) if isinstance(known, int) else Checksum(*map(int, known))


def verify_dataset(
    paths: DatasetPaths, *, full: bool = False, only: Callable[[str], bool] = lambda name: True
) -> list[Difference] | None:
    """What is wrong with the dataset that was converted; None where no conversion has finished.

    The first time, all files are read and compared with what their archive knew of them.

    Args:
        paths: where it is.
        full: read every file.
        only: which files matter, by their path below the root.

    Raises:
        DataError: the manifest cannot be understood.
    """
    record, manifest = Record.load(paths.record), Manifest.load(paths.root)
    if manifest is not None and (record is None or manifest.source == record.source):
        names = [name for name in manifest.files if only(name)]
        return verify(manifest, full=full, only=names, title="Verifying the dataset")
    if record is None:
        return None
    wrong = adopt(
        paths.root, record.files, basis=record.basis, source=record.source, title="Verifying the dataset"
    )
    return [found for found in wrong if only(found.path)]

"""The manifest of a dataset that was converted, also where mmfw 0.1.0 has converted it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmf_win.console import Progress
from mmf_win.errors import DamagedManifest
from mmf_win.fast_zlib import crc32
from mmf_win.files import read_json, remove
from mmf_win.integrity.manifest import SUMS, UNKNOWN, Entry, Manifest, Source, noted
from mmf_win.integrity.verify import LOCK
from mmf_win.locking import locked
from mmf_win.paths import DatasetPaths
from mmf_win.unpacking.staging import require_finished

_PIECE = 1 << 20


def load_manifest(paths: DatasetPaths) -> Manifest | None:
    """The manifest of the dataset; None where no conversion has finished.

    The record of mmfw 0.1.0 is replaced by a manifest, for which all files are read once.

    Raises:
        DamagedManifest: the manifest cannot be understood.
        UnfinishedInstallation: a conversion was killed amidst the moves to their places.
    """
    require_finished(paths.root)
    manifest = Manifest.load(paths.root)
    if not paths.old_record.is_file():
        return manifest
    try:
        manifest = _from_old_record(paths.root, read_json(paths.old_record), manifest)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return manifest  # it is of a still earlier mmfw, or none at all
    with suppress(OSError), locked(paths.root / LOCK):
        manifest.save()
        remove(paths.old_record)
    return manifest


def require_list(paths: DatasetPaths) -> Manifest | None:
    """The manifest as :func:`load_manifest` gives it, but a list of hashes that is gone is an error, too.

    Raises:
        DamagedManifest: the list is gone, or cannot be understood.
    """
    manifest = load_manifest(paths)
    if manifest is None and noted(paths.root):
        raise DamagedManifest(f"{paths.root / SUMS}: it is missing", folder=paths.root)
    return manifest


def _from_old_record(root: Path, record: Any, manifest: Manifest | None) -> Manifest:
    """A manifest with what mmfw 0.1.0 recorded: at conversion, the size and CRC-32 of each file.

    It wrote a manifest without the conversion's result, and only once the files were verified.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the record is another one.
    """
    if record["format"] != 2:
        raise ValueError("a record of another format")
    source, result = Source(**record["source"]), dict(record["result"])
    if manifest is not None and manifest.source == source:
        return replace(manifest, result=result)
    files = {}
    with Progress("Verifying the dataset", sum(size for size, _ in record["files"].values())) as bar:
        for name, (size, crc) in sorted(record["files"].items()):
            files[name] = Entry(_sha256(root / name, crc, bar), size)
    return Manifest(root, files, "archive" if source.sha256 else "recorded", source, result)


def _sha256(path: Path, expected_crc: int, bar: Progress) -> str:
    """The hash of a file, if it has this CRC-32."""
    sha256, crc = hashlib.sha256(), 0
    with suppress(OSError), path.open("rb") as file:
        while piece := file.read(_PIECE):
            sha256.update(piece)
            crc = crc32(piece, crc)
            bar.advance(len(piece))
    return sha256.hexdigest() if crc == expected_crc else UNKNOWN

"""Damaged and missing files of the dataset, written anew from the archive that they came from."""

from __future__ import annotations

from pathlib import Path

from mmf_win.archives import Ask
from mmf_win.dataset.convert import convert
from mmf_win.dataset.record import Record, verify_dataset
from mmf_win.errors import DatasetError, MissingArchive
from mmf_win.paths import Places


def repair_dataset(places: Places, archive: Path | None = None, *, ask: Ask | None = None) -> list[str]:
    """Write anew the files of the dataset that are damaged or missing.

    Files that mmfw did not write, such as annotations of the user's own, stay as they are.

    Args:
        places: where MMF's data folder is.
        archive: what the dataset was converted from; None to look where it lay then.
        ask: answers with the password; called only for an encrypted archive.

    Returns:
        the files that were written, relative to the dataset's root; empty if all were intact.

    Raises:
        DatasetError: no dataset was converted here.
        MissingArchive: the archive is not where it lay, and ``archive`` does not name it either.
        ArchiveError: the archive is another one, or damaged; nothing was changed.
        PasswordError: the password is missing or wrong; nothing was changed.
        ResourceError: there is not enough room; nothing was changed.
    """
    paths = places.dataset
    wrong, record = verify_dataset(paths), Record.load(paths.record)
    if wrong is None or record is None:
        raise DatasetError(f"{paths.root}: no dataset was converted here")
    if not wrong:
        return []
    source = archive or (Path(record.source.path) if record.source.path else None)
    if source is None or not source.exists():
        raise MissingArchive(f"{paths.root}: the archive {record.source.name} is not where it was")
    convert(source, places, ask=ask, force=True, allow_missing=True)
    return [found.path for found in wrong]

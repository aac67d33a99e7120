"""Region features: from MMF's ``features.tar.gz`` to the place where MMF looks for them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from mmf_win.archives import Archive
from mmf_win.console import Progress, say
from mmf_win.dataset.record import Record
from mmf_win.errors import ArchiveError, DatasetError
from mmf_win.files import read_json, write_json
from mmf_win.integrity import Source, file_digest
from mmf_win.paths import Places
from mmf_win.unpacking.opening import open_with_progress
from mmf_win.unpacking.staging import require_space, staging, was_killed_while_installing

_FOLDER = "detectron.lmdb"
_DATA = "data.mdb"
_RECORD = "mmfw-features.json"


def extract_features(
    archive: Path, places: Places, *, version: str | float | None, force: bool = False
) -> Path:
    """Unpack an LMDB of region features and return its folder.

    Args:
        archive: an archive or folder that holds ``detectron.lmdb/data.mdb`` somewhere.
        places: where MMF's data folder is.
        version: of MMF's download; with it MMF's own marker is written, so that it downloads nothing.
        force: replace features that came from elsewhere.

    Raises:
        ArchiveError: the archive is damaged, hostile or none at all.
        DatasetError: there are no features in it, or there are others in place already.
        ResourceError: they do not fit on the disk; nothing was written.
    """
    if not archive.exists():
        raise ArchiveError(f"{archive}: no such file or folder")
    features = places.dataset.features
    target = features / _FOLDER
    record_path = features / _RECORD
    record = Record.load(record_path)
    same = record is not None and record.source.is_same(archive)
    if record is not None and same and not force and not record.broken_files(features):
        say(f"these features are in place already: {target}")
    else:
        interrupted = record is None and was_killed_while_installing(features)
        if target.exists() and not (force or same or interrupted):
            raise DatasetError(
                f"{target}: there are features already that were not made from this archive",
                hint="--force replaces them; --data-dir chooses another folder",
            )
        _unpack(archive, features)
    if version is not None:
        _mark(features / ".built.json", version)
    return target


def _unpack(path: Path, features: Path) -> None:
    with open_with_progress(path) as archive:
        size = path.stat().st_size if path.is_file() else 0
        wanted = _find(archive)
        total = sum(member.size for member in archive.members if member.name in wanted)
        require_space(features, total)
        with staging(features) as here:
            targets = {name: here.new / _FOLDER / file for name, file in wanted.items()}
            with Progress("Extracting", total + size) as bar:
                sha256 = file_digest(path, progress=bar.advance).hex() if size else None
                sizes = {
                    f"{_FOLDER}/{done.target.name}": done.size
                    for done in archive.extract(targets, bar.advance)
                }
            Record(Source.of(path, sha256), sizes, {}).save(here.new / _RECORD)
            here.install(
                [
                    (None, features / _RECORD),
                    (None, features / ".built.json"),
                    (here.new / _FOLDER, features / _FOLDER),
                    (here.new / _RECORD, features / _RECORD),
                ]
            )


def _find(archive: Archive) -> dict[str, str]:
    """Member → file name, for the files of the LMDB."""
    ending = f"/{_FOLDER}/{_DATA}"
    data = [member.name for member in archive.members if f"/{member.name}".endswith(ending)]
    if not data:
        raise DatasetError(
            f"{archive.path}: there is no {_FOLDER}/{_DATA} in it",
            hint="MMF's archive of region features is called features.tar.gz or features_2020_10_01.tar.gz",
        )
    if len(data) > 1:
        raise DatasetError(f"{archive.path}: there are several features in it: {', '.join(data)}")
    folder = data[0].removesuffix(_DATA)
    files = {m.name: m.name.removeprefix(folder) for m in archive.members if m.name.startswith(folder)}
    return {name: file for name, file in files.items() if file in (_DATA, "lock.mdb")}


def _mark(marker: Path, version: str | float) -> None:
    """Write what MMF's ``mark_done`` would (mmf/utils/download.py)."""
    try:
        if read_json(marker)["version"] == version:
            return
    except (OSError, ValueError, TypeError, KeyError):
        pass
    write_json(marker, {"created_at": str(datetime.now()), "version": version})

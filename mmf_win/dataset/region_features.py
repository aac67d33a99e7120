"""Region features: from MMF's ``features.tar.gz`` to the place where MMF looks for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from mmf_win.archives import PasswordCallback
from mmf_win.errors import ArchiveError, DatasetError, UnsafeFeaturesError
from mmf_win.files import read_json, write_json
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import MmfPaths, expand_home
from mmf_win.sniffing import CommandHint
from mmf_win.unpacking.extract import extract_verified
from mmf_win.unpacking.staging import finish_installation
from mmf_win.upstream.zoo import ZooVersion

_LMDB_DATA = "detectron.lmdb/data.mdb"


def extract_features(
    archive: Path,
    places: MmfPaths,
    *,
    version: ZooVersion | None,
    ask: PasswordCallback | None = None,
    force: bool = False,
    require_harmless: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Unpack the LMDB of region features that an archive or folder holds somewhere, and return its folder.

    Args:
        version: of MMF's download; with it MMF's own marker is written, so that it downloads nothing.
        force: replace features that came from elsewhere.
        require_harmless: is given the LMDB before it takes its place, and may refuse it.

    Raises:
        ArchiveError: the archive is damaged, hostile or none at all.
        DatasetError: there are no features in it, hostile ones, or others are in place already.
        PasswordError: the password is missing or wrong; nothing was written.
        ResourceError: they do not fit on the disk; nothing was written.
    """
    if not archive.exists():
        raise ArchiveError(f"{archive}: no such file or folder")
    features = places.dataset.features
    marker = features / ".built.json"
    finish_installation(features)
    if not force and (features / _LMDB_DATA).exists():
        manifest = Manifest.load(features)
        if manifest is None or manifest.source is None or not manifest.source.is_same(archive):
            already = f"{features / _LMDB_DATA}: there are features already"
            message = f"{already}, and not known to be made from this archive"
            raise DatasetError(message, hint="--force replaces it; --data-dir chooses another folder")

    def check(new: Path) -> None:
        if not (new / _LMDB_DATA).is_file():
            hint = "MMF's archive of region features is called features.tar.gz or features_2020_10_01.tar.gz"
            raise DatasetError(f"{archive}: there is no {_LMDB_DATA} in it", hint=hint)
        lmdb = (new / _LMDB_DATA).parent
        try:
            require_harmless(lmdb)
        except UnsafeFeaturesError as error:
            raise UnsafeFeaturesError(error.message_without(f"{lmdb}:"), prefix=f"{archive}:") from None

    try:
        extract_verified(
            archive, features, ask=ask, choose=choose_features, validate=check, obsolete_paths=[marker]
        )
    except ArchiveError as error:
        if isinstance(error.hint, CommandHint):
            error.hint = error.hint.with_command("mmfw features extract")
        raise
    if version is not None:
        mark_built(marker, version)
    return (features / _LMDB_DATA).parent


def choose_features(member: str) -> str | None:
    """The LMDB's data, wherever it is in an archive.

    Its other file, ``lock.mdb``, is LMDB's own business: it makes one when it wants it.
    """
    return _LMDB_DATA if f"/{member}".endswith(f"/{_LMDB_DATA}") else None


def find_lmdb(path: Path) -> Path:
    """The LMDB that a user names by its folder, or by the one that it lies in.

    Raises DatasetError where there is none, or MMF would not take it for one.
    """
    path = expand_home(path).absolute()
    inside = [path, path / "detectron.lmdb", *sorted(path.glob("*.lmdb"))]
    found = list(dict.fromkeys(folder for folder in inside if (folder / "data.mdb").is_file()))
    if not found:
        hint = "`mmfw features add FOLDER -o LMDB` makes some"
        raise DatasetError(f"{path}: there is no LMDB of region features", hint=hint)
    lmdb = found[0]
    if len(found) > 1 and lmdb != path:
        raise DatasetError(f"{path}: there are several LMDBs in it", hint=f"name one, such as {lmdb}")
    if lmdb.suffix != ".lmdb":
        raise DatasetError(f"{lmdb}: MMF takes only a folder whose name ends in .lmdb", hint="rename it")
    return lmdb


def mark_built(marker: Path, version: ZooVersion | None) -> None:
    """Write what MMF's ``mark_done`` would (mmf/utils/download.py), unless it stands there."""
    if not marker.is_file() or read_built_version(marker) != version:
        write_json(marker, {"created_at": str(datetime.now()), "version": version})


def read_built_version(marker: Path) -> ZooVersion | None:
    """The version in a ``.built.json``; None where there is none."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        if isinstance(version := read_json(marker)["version"], (str, float)):
            return version
    return None

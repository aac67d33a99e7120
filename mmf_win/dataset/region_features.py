"""Region features: unpacking MMF's ``features.tar.gz``, and finding LMDBs."""

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
    mmf_paths: MmfPaths,
    *,
    version: ZooVersion | None,
    ask: PasswordCallback | None = None,
    force: bool = False,
    require_harmless: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Unpack the LMDB of region features from an archive or folder.

    Args:
        archive: Archive or folder that contains the LMDB at any depth.
        mmf_paths: Folders of MMF.
        version: Version of MMF's download; with it, MMF's marker is written, so that MMF downloads nothing.
        ask: Returns the password of an encrypted archive.
        force: Replace features from another source.
        require_harmless: Called with the LMDB before it is installed; may raise ``UnsafeFeaturesError``.

    Returns:
        The LMDB's folder.

    Raises:
        ArchiveError: The archive is damaged or unsafe, or not an archive.
        DatasetError: The archive contains no features, or other features already exist.
        UnsafeFeaturesError: The features could run code.
        PasswordError: The password is missing or wrong; nothing was written.
        ResourceError: The features do not fit on the disk; nothing was written.
    """
    if not archive.exists():
        raise ArchiveError(f"{archive}: file or folder not found", hint="check the path")
    features = mmf_paths.dataset.features
    marker = features / ".built.json"
    finish_installation(features)
    if not force and (features / _LMDB_DATA).exists():
        manifest = Manifest.load(features)
        if manifest is None or manifest.source is None or not manifest.source.is_same(archive):
            location = f"{features / _LMDB_DATA}: features already exist"
            message = f"{location} and are not known to come from this archive"
            raise DatasetError(message, hint="replace them with --force, or choose another --data-dir")

    def validate(folder: Path) -> None:
        if not (folder / _LMDB_DATA).is_file():
            hint = "use MMF's archive of region features, features.tar.gz or features_2020_10_01.tar.gz"
            raise DatasetError(f"{archive}: contains no {_LMDB_DATA}", hint=hint)
        lmdb = (folder / _LMDB_DATA).parent
        try:
            require_harmless(lmdb)
        except UnsafeFeaturesError as error:
            raise UnsafeFeaturesError(error.message_without(f"{lmdb}:"), prefix=f"{archive}:") from None

    try:
        extract_verified(archive, features, ask=ask, choose=choose_features, validate=validate, obsolete_paths=[marker])
    except ArchiveError as error:
        if isinstance(error.hint, CommandHint):
            error.hint = error.hint.with_command("mmfw features extract")
        raise
    if version is not None:
        mark_built(marker, version)
    return (features / _LMDB_DATA).parent


def choose_features(member: str) -> str | None:
    """Return the target name of the LMDB's data, at any depth of an archive, or None for other members.

    LMDB creates its other file, ``lock.mdb``, when it needs one.

    Returns:
        The target name, or None to skip the member.
    """
    return _LMDB_DATA if f"/{member}".endswith(f"/{_LMDB_DATA}") else None


def find_lmdb(path: Path) -> Path:
    """Return the LMDB at a path: the path itself or a folder in it.

    Raises:
        DatasetError: There is no LMDB or more than one, or its name does not end in ``.lmdb``.
    """
    path = expand_home(path).absolute()
    candidates = [path, path / "detectron.lmdb", *sorted(path.glob("*.lmdb"))]
    lmdbs = list(dict.fromkeys(folder for folder in candidates if (folder / "data.mdb").is_file()))
    if not lmdbs:
        hint = "run `mmfw features add FOLDER -o LMDB` to build one"
        raise DatasetError(f"{path}: no LMDB of region features found", hint=hint)
    lmdb = lmdbs[0]
    if len(lmdbs) > 1 and lmdb != path:
        raise DatasetError(f"{path}: contains several LMDBs", hint=f"pass one of them, such as {lmdb}")
    if lmdb.suffix != ".lmdb":
        raise DatasetError(f"{lmdb}: MMF requires a folder name that ends in .lmdb", hint="rename it")
    return lmdb


def mark_built(marker: Path, version: ZooVersion | None) -> None:
    """Write the same file as MMF's ``mark_done`` (mmf/utils/download.py), unless it exists."""
    if not marker.is_file() or read_built_version(marker) != version:
        write_json(marker, {"created_at": str(datetime.now()), "version": version})


def read_built_version(marker: Path) -> ZooVersion | None:
    """Return the version in a ``.built.json``, or None if there is none."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        if isinstance(version := read_json(marker)["version"], (str, float)):
            return version
    return None

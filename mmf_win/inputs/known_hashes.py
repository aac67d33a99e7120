"""Known hashes of files in folders of other programs, such as the caches of transformers and torchvision.

``<MMF's cache folder>/mmfw-checked.json`` stores the hash of each file and its file stamp when it was read.
Both caches also have hashes in file names. In Hugging Face's cache, a file of a snapshot is a link to
``blobs/<hash>``: the SHA-256 of a large file, the git object id of a small one
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). In PyTorch Hub's cache, the name ends with
the first eight digits of the SHA-256.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path

from mmf_win.files import read_json, write_json
from mmf_win.integrity.digest import file_digest, git_object_id
from mmf_win.integrity.manifest import FileStamp, Manifest, ManifestEntry
from mmf_win.integrity.verify import FileProblem, hash_files
from mmf_win.locking import file_lock

#: Name of a blob in Hugging Face's cache: its git object id or SHA-256.
BLOB_NAME = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})")

_FILE_NAME, _FORMAT = "mmfw-checked.json", 1
_UNKNOWN_SHA256 = "0" * 64  # stands for the hash of a file that was never intact
_GIT_ID_LENGTH = 40
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8})\.pth$")
_log = logging.getLogger(__name__)


def load_known_hashes(cache_dir: Path) -> Manifest:
    """Load the known hashes; the file names are absolute paths."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        content = read_json(cache_dir / _FILE_NAME)
        if content["format"] == _FORMAT:
            files = {path: ManifestEntry(str(sha256)) for path, (sha256, _) in content["files"].items()}
            stamps = {path: FileStamp(*map(int, stamp)) for path, (_, stamp) in content["files"].items()}
            return Manifest(cache_dir, files, stamps=stamps)
    return Manifest(cache_dir, {})


def verify_against_known(
    files: Sequence[Path], manifest: Manifest, *, full: bool, record: bool, title: str
) -> tuple[Manifest, list[FileProblem]]:
    """Verify files against the hashes in their names, or else against earlier readings.

    A file without a hash in its name may be replaced by its owner: its new hash is recorded and a warning
    logged. If its content changed but its size and modification time did not, it is damaged.

    Args:
        files: Existing files.
        manifest: Result of :func:`load_known_hashes`.
        full: Also read files that have not changed.
        record: Save the hashes of the files that were read.
        title: Title of the progress bar.

    Returns:
        The known hashes with those of the files that were read, and the damaged files.
    """
    entries, stamps, problems = manifest.files, manifest.stamps, list[FileProblem]()
    new_files, new_stamps = dict[str, ManifestEntry](), dict[str, FileStamp]()
    paths = {str(path): path for path in files}
    if not full:
        paths = {n: p for n, p in paths.items() if n not in stamps or not stamps[n].is_current(p.stat())}
    if not paths:
        return manifest, []
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    for name, sha256, stamp in hash_files(paths, sizes, title):
        if problem := _find_problem(paths[name], sha256, stamp, entries.get(name), stamps.get(name)):
            problems.append(problem)
            if earlier := stamps.get(name, stamp):
                # The file is read again every time until it is repaired.
                new_files[name] = entries.get(name, ManifestEntry(_UNKNOWN_SHA256))
                new_stamps[name] = replace(earlier, checked_ns=0)
        elif stamp is not None:
            new_files[name], new_stamps[name] = ManifestEntry(str(sha256)), stamp
    if record:
        with suppress(OSError):  # if the hashes cannot be saved, everything is read again the next time
            manifest.folder.mkdir(parents=True, exist_ok=True)
            with file_lock(manifest.folder / f"{_FILE_NAME}.lock", timeout=5.0):
                manifest = load_known_hashes(manifest.folder)  # another process may have changed it
                manifest = replace(manifest, files={**manifest.files, **new_files}, stamps=manifest.stamps | new_stamps)
                states = {name: astuple(stamp) for name, stamp in manifest.stamps.items()}
                stored_files = {name: (manifest.files[name].sha256, states[name]) for name in sorted(states)}
                write_json(manifest.folder / _FILE_NAME, {"format": _FORMAT, "files": stored_files})
    return replace(manifest, files={**manifest.files, **new_files}, stamps=manifest.stamps | new_stamps), problems


def _find_problem(
    path: Path, sha256: str | OSError, stamp: FileStamp | None, entry: ManifestEntry | None, earlier: FileStamp | None
) -> FileProblem | None:
    if isinstance(sha256, OSError):
        return FileProblem("unreadable", str(path), sha256.strerror or str(sha256))
    if contradicts_hash(path, sha256):
        return FileProblem("changed", str(path), "hash does not match the file name")
    if entry and entry.sha256 != sha256 and not parse_hash_from_name(path):
        if stamp and earlier and (earlier.size, earlier.mtime_ns) == (stamp.size, stamp.mtime_ns):
            return FileProblem("changed", str(path), "different content, same modification time")
        _log.warning("%s was replaced since it was last read", path)
    return None


def parse_hash_from_name(path: Path) -> str | None:
    """Return the start of a file's SHA-256 or git object id, from its name or its blob's name, or None."""
    names = [path.resolve().name]
    if path.is_file() and not path.is_symlink():
        blobs = (path.parent.parent.parent / "blobs").glob("*")
        names = [blob.name for blob in blobs if blob.is_file() and blob.samefile(path)]
    match = next(filter(None, map(BLOB_NAME.fullmatch, names)), None) or _HASH_IN_NAME.search(path.name)
    return match[1] if match else None


def contradicts_hash(path: Path, sha256: str | None = None) -> bool:
    """Return whether a file's content differs from the hash in its name; False if there is no such hash.

    Args:
        path: The file.
        sha256: SHA-256 of its current or future content; by default, the file is read.

    Returns:
        Whether the hashes differ.
    """
    expected = parse_hash_from_name(path)
    if expected is None:
        return False
    actual = git_object_id(path.read_bytes()) if len(expected) == _GIT_ID_LENGTH else sha256 or file_digest(path).hex()
    return not actual.startswith(expected)

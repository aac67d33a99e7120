"""The hashes of files that lie in folders of others, such as the caches of transformers and torchvision.

``<MMF's cache folder>/mmfw-checked.json`` keeps the hash of each, and the state in which it was read. Both
caches name files by their hashes, too. In Hugging Face's a file of a snapshot is a link to ``blobs/<hash>``,
the SHA-256 of a large file and git's id of a small one
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). PyTorch Hub puts the first eight digits of
the SHA-256 at the end of the name.
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

#: The name of a file in Hugging Face's cache, by its content.
BLOB_NAME = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})")

_FILE_NAME, _FORMAT = "mmfw-checked.json", 1
_UNKNOWN_SHA256 = "0" * 64  # in place of the hash of a file that was never intact; no file has this one
_GIT_ID_LENGTH = 40
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8})\.pth$")
_log = logging.getLogger(__name__)


def load_known_hashes(cache_dir: Path) -> Manifest:
    """What was read so far, each file by its absolute path."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        value = read_json(cache_dir / _FILE_NAME)
        if value["format"] == _FORMAT:
            files = {path: ManifestEntry(str(sha256)) for path, (sha256, _) in value["files"].items()}
            checks = {path: FileStamp(*map(int, check)) for path, (_, check) in value["files"].items()}
            return Manifest(cache_dir, files, stamps=checks)
    return Manifest(cache_dir, {})


def verify_against_known(
    files: Sequence[Path], known_hashes: Manifest, *, full: bool, record: bool, title: str
) -> tuple[Manifest, list[FileProblem]]:
    """Verify files against the hash that is known of them, or else against an earlier reading.

    A file without one may be replaced by its owner: then it is recorded again, and that is logged. One whose
    content changes while its time and size stay is damaged. With ``full``, files are read that nobody has
    touched, too; with ``record``, what was read is written. What is wrong is returned after the ledger, which
    then has what was read.
    """
    listed, checks, wrong = known_hashes.files, known_hashes.stamps, list[FileProblem]()
    new, found = dict[str, ManifestEntry](), dict[str, FileStamp]()
    paths = {str(path): path for path in files}
    if not full:
        paths = {n: p for n, p in paths.items() if n not in checks or not checks[n].is_current(p.stat())}
    if not paths:
        return known_hashes, []
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    for name, sha256, check in hash_files(paths, sizes, title):
        if problem := _find_problem(paths[name], sha256, check, listed.get(name), checks.get(name)):
            wrong.append(problem)
            if before := checks.get(name, check):
                # So that it is read again the next time, and until it is repaired.
                new[name], found[name] = (
                    listed.get(name, ManifestEntry(_UNKNOWN_SHA256)),
                    replace(before, checked_ns=0),
                )
        elif check is not None:
            new[name], found[name] = ManifestEntry(str(sha256)), check
    if record:
        with suppress(OSError):  # where it cannot be remembered, everything is read again the next time
            known_hashes.folder.mkdir(parents=True, exist_ok=True)
            with file_lock(known_hashes.folder / f"{_FILE_NAME}.lock", timeout=5.0):
                known_hashes = load_known_hashes(known_hashes.folder)  # others may have written it meanwhile
                known_hashes = replace(
                    known_hashes, files={**known_hashes.files, **new}, stamps=known_hashes.stamps | found
                )
                states = {name: astuple(check) for name, check in known_hashes.stamps.items()}
                kept = {name: (known_hashes.files[name].sha256, states[name]) for name in sorted(states)}
                write_json(known_hashes.folder / _FILE_NAME, {"format": _FORMAT, "files": kept})
    return replace(
        known_hashes, files={**known_hashes.files, **new}, stamps=known_hashes.stamps | found
    ), wrong


def _find_problem(
    path: Path,
    sha256: str | OSError,
    check: FileStamp | None,
    entry: ManifestEntry | None,
    before: FileStamp | None,
) -> FileProblem | None:
    if isinstance(sha256, OSError):
        return FileProblem("unreadable", str(path), sha256.strerror or str(sha256))
    if contradicts_hash(path, sha256):
        return FileProblem("changed", str(path), "not what its name says")
    if entry and entry.sha256 != sha256 and not hash_in_name(path):
        if check and before and (before.size, before.mtime_ns) == (check.size, check.mtime_ns):
            return FileProblem("changed", str(path), "other content, though its time stayed the same")
        _log.warning("%s was replaced since it was last read", path)
    return None


def hash_in_name(path: Path) -> str | None:
    """What a file's SHA-256, or its id in git, begins with by its name or that of the blob it links to."""
    names = [path.resolve().name]
    if path.is_file() and not path.is_symlink():
        blobs = (path.parent.parent.parent / "blobs").glob("*")
        names = [blob.name for blob in blobs if blob.is_file() and blob.samefile(path)]
    found = next(filter(None, map(BLOB_NAME.fullmatch, names)), None) or _HASH_IN_NAME.search(path.name)
    return found[1] if found else None


def contradicts_hash(path: Path, sha256: str | None = None) -> bool:
    """Whether a file is not what its known hash says; False where none is known.

    ``sha256`` is of the content that it has or is to get; without, that is read, or an OSError raised.
    """
    known = hash_in_name(path)
    if known is None:
        return False
    content = (
        git_object_id(path.read_bytes())
        if len(known) == _GIT_ID_LENGTH
        else sha256 or file_digest(path).hex()
    )
    return not content.startswith(known)

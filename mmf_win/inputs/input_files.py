"""Input files of a run: the common base class, mirrors, and fetching.

Subclasses differ in where the files come from: files of the user (:class:`InputFiles`), a URL
(:class:`UrlInput`), a model of the Hugging Face Hub (:mod:`~mmf_win.inputs.hub`) or an archive
(:mod:`~mmf_win.inputs.archive_input`).
"""

from __future__ import annotations

import logging
import math
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from mmf_win.archives import PasswordCallback
from mmf_win.download import download, query_remote_size
from mmf_win.errors import DataError, InUseError, MmfEnvironmentError, PasswordError, UnsafeFeaturesError, UsageError
from mmf_win.files import atomic_replace, device_number
from mmf_win.inputs.known_hashes import contradicts_hash, load_known_hashes, parse_hash_from_name, verify_against_known
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import FIRST_READING, Manifest
from mmf_win.integrity.verify import FileProblem, VerificationResult, VerificationState, oldest_check_time
from mmf_win.locking import file_lock
from mmf_win.paths import MmfPaths, expand_home
from mmf_win.unpacking.staging import require_space

_MAX_SIZE_REQUESTS = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mirror:
    """Alternative source of files; without a URL or path, files come from their own sources only.

    Attributes:
        url: URL of a folder or a file.
        path: Folder or file on this machine.
        keep_archives: Keep a downloaded archive where MMF would, for repairs without a download.
        offline: Use files on this machine only.
        ask: Returns the password; called only when files are repaired from an encrypted archive.
        alternative_hint: How to name a mirror, for the hint of a failed download; ``{names}`` are the files.
    """

    url: str | None = None
    path: Path | None = None
    keep_archives: bool = True
    offline: bool = False
    ask: PasswordCallback | None = None
    alternative_hint: str = "use --source to pass a file, folder or mirror that has {names}"

    @classmethod
    def from_source(cls, source: str | None) -> Mirror:
        """Create a mirror from the file, folder or URL that a user named.

        Returns:
            The mirror; an empty one if ``source`` is None.

        Raises:
            UsageError: The path does not exist, or the URL is not an HTTP URL or has a password or a query.
        """
        if source is None:
            return cls()
        if re.match(r"\s*[\w+.-]{2,}://", source):  # C://memes is a folder
            try:
                parts = urlsplit(source.strip())
            except ValueError as error:
                raise UsageError(f"{source}: {error}") from error
            if parts.scheme not in ("http", "https"):
                raise UsageError(f"{source}: not an http or https URL", hint="pass a file or a folder")
            if "@" in parts.netloc or parts.query:  # secrets must not be repeated in the message
                host = parts.netloc.rpartition("@")[2]
                message = f"{host}: a URL with a password or a query cannot be a mirror"
                raise UsageError(message, hint="download the file yourself and pass its folder")
            return cls(url=parts.geturl())
        path = expand_home(source)
        if not path.exists():
            raise UsageError(f"{source}: file or folder not found", hint="pass a file, a folder or a URL")
        return cls(path=path)

    def find_files(self, names: Sequence[str]) -> list[Path]:
        """Return the existing local files with one of these names."""
        if self.path is None:
            return []
        candidates = [self.path] if self.path.name in names else [self.path / name for name in names]
        return [path for path in candidates if path.is_file()]

    def download_size(self, names: Sequence[str], default_url: str | None) -> int | None:
        """Return the download size in bytes, or None if no server reports it."""
        return next((n for n in map(query_remote_size, self._urls(names, default_url)) if n is not None), None)

    def download(
        self, names: Sequence[str], default_url: str | None, target: Path, title: str, sha256: str | None
    ) -> None:
        """Download a file from the mirror under any of its names, else from its own URL.

        The other arguments are those of :func:`~mmf_win.download.download`.

        Raises:
            MmfEnvironmentError: No URL is available, or every download failed.
        """
        urls = self._urls(names, default_url)
        if not urls:
            raise self.missing_error(title, names)
        for url in urls:
            try:
                download(url, target, title, sha256=sha256)
                return
            except MmfEnvironmentError as error:
                if url == urls[-1]:
                    raise self.download_error(str(error), names, error.hint) from error
                _log.warning("%s", error)

    def missing_error(self, title: str, names: Sequence[str]) -> MmfEnvironmentError:
        """Return the error for missing files that cannot be downloaded because downloads are disabled."""
        return self.download_error(f"{title} not found and downloads are disabled", names)

    def download_error(self, message: str, names: Sequence[str], hint: str | None = None) -> MmfEnvironmentError:
        """Return the error for a failed download, with a hint that names the files."""
        alternative = self.alternative_hint.replace("{names}", " or ".join(names))
        return MmfEnvironmentError(message, hint=f"{hint}, or {alternative}" if hint else alternative)

    def _urls(self, names: Sequence[str], default_url: str | None) -> list[str]:
        mirror_urls = [f"{self.url.rstrip('/')}/{name}" for name in names] if self.url else []
        if self.url and self.url.rpartition("/")[2] in names:
            mirror_urls = [self.url]
        return [] if self.offline else [*mirror_urls, *([default_url] if default_url else [])]


@dataclass(frozen=True)
class InputFiles:
    """Related files in one folder, belonging to the user or to another program.

    Attributes:
        disk_space_factor: Disk space during installation, as a multiple of the download size.
        title: Name in messages.
        folder: Contains all files; for a model of the Hub, the folder of all its versions.
        mmf_paths: Folders of MMF.
        names: Files that a run opens, relative to the folder, with ``/``.
        source: URL or model name from which they can be downloaded; None if unknown.
        hint: Next step if they are missing or damaged.
    """

    disk_space_factor: ClassVar[int] = 1
    title: str
    folder: Path
    mmf_paths: MmfPaths = field(repr=False)
    names: tuple[str, ...] = ()
    source: str | None = None
    hint: str = "put an intact copy there; mmfw cannot download it"

    def quick_check(self) -> VerificationResult:
        """Return the state of the files without reading their content."""
        result, files, manifest = self._inspect()
        file_manifest = manifest and restrict_manifest(files, manifest)
        if result.state != "not verified" or file_manifest is None:
            return result
        for name, entry in file_manifest.files.items():
            size = (file_manifest.folder / name).stat().st_size
            if entry.size not in (None, size):
                problem = f"changed: {name} ({size} instead of {entry.size} bytes)"
                return replace(result, state="damaged", problems=(problem,))
        verified = oldest_check_time(file_manifest)
        return result if verified is None else self._to_intact_result(result, files, file_manifest, verified)

    def verify(self, *, full: bool = False, record: bool = True) -> VerificationResult:
        """Verify the files, reading only those that changed since they were last read.

        Args:
            full: Read every file.
            record: Record the hashes of files that have none yet.

        Returns:
            The state of the files, with problems if they are damaged or missing.
        """
        result, files, manifest = self._inspect()
        if result.state != "not verified":
            return result
        try:
            manifest, damage = self._verify_hashes(files, manifest, full, record)
        except DataError as error:  # unpacking unsafe features again would not help
            unsafe_error = error if isinstance(error, UnsafeFeaturesError) else None
            return replace(result, state="damaged", problems=(str(error),), error=unsafe_error)
        if manifest is None:
            return replace(result, state="recorded", verified_against="nothing (folder not writable)")
        if damage:
            return replace(result, state="damaged", problems=tuple(map(str, damage)))
        # Stamps of files that changed just before this check are not trusted and have no check time.
        file_manifest = restrict_manifest(files, manifest)
        verified = (file_manifest and oldest_check_time(file_manifest)) or time.time()
        return self._to_intact_result(result, files, manifest, verified)

    def _inspect(self) -> tuple[VerificationResult, list[Path], Manifest | None]:
        """Look for missing files and load the recorded hashes.

        Returns:
            The preliminary result, the files, and the manifest that may have their hashes.
        """
        files, manifest = self.files(), None
        size = sum(path.stat().st_size for path in files if path.is_file())
        result = VerificationResult("features", self.title, self.folder, "not verified", size=size)
        try:
            manifest = self._load_manifest()
        except (DataError, InUseError) as error:
            return replace(result, state="damaged", problems=(str(error),)), files, None
        if missing := self._list_missing(files):
            recorded_paths = [manifest.folder / name for name in manifest.files] if manifest else []
            # Files with a recorded hash existed before, so they can be repaired.
            folders = {self.folder, *(path.parent for path in files)}
            expected_paths = [path for path in recorded_paths if path.parent in folders]
            absent_paths = [path for path in dict.fromkeys((*files, *expected_paths)) if not path.is_file()]
            problems = tuple(f"missing: {path}" for path in absent_paths or missing)
            state: VerificationState = "damaged" if expected_paths else "missing"
            result = replace(result, state=state, problems=problems)
        elif manifest and restrict_manifest(files, manifest):
            result = replace(result, verified_against=self._verified_against(files, manifest))
        return result, files, manifest

    def _to_intact_result(
        self, result: VerificationResult, files: Iterable[Path], manifest: Manifest, verified: float
    ) -> VerificationResult:
        verified_against = self._verified_against(files, manifest)
        state: VerificationState = "recorded" if verified_against == FIRST_READING else "intact"
        return replace(result, state=state, verified_at=verified, verified_against=verified_against)

    def files(self) -> list[Path]:
        """Return the files that a run opens, existing or not; if not known in advance, the existing ones."""
        return [self.folder / name for name in self.names]

    def _list_missing(self, files: Sequence[Path]) -> list[Path]:
        """Return the missing files, or the folder if the names of the files are unknown."""
        return [path for path in files if not path.is_file()] if files else [self.folder]

    def _load_manifest(self) -> Manifest | None:
        """Load the manifest that may have the hashes of the files."""
        return load_known_hashes(self.mmf_paths.cache_dir)

    def _verified_against(self, files: Iterable[Path], _manifest: Manifest) -> str:
        return "the hash in its name" if all(map(parse_hash_from_name, files)) else FIRST_READING

    def _verify_hashes(
        self, files: Sequence[Path], manifest: Manifest | None, full: bool, record: bool
    ) -> tuple[Manifest | None, list[FileProblem]]:
        """Return the updated manifest, or None if it cannot be written, and the damaged files."""
        known_hashes = manifest or load_known_hashes(self.mmf_paths.cache_dir)
        return verify_against_known(files, known_hashes, full=full, record=record, title=f"Verifying {self.title}")

    def published_origin(self) -> tuple[str | None, str | None]:
        """Return where the files are published, and their published SHA-256 if it is known."""
        return self.source, None

    def unrepairable_error(self, result: VerificationResult) -> DataError | None:
        """Return the error for damaged or missing files without any source, or None if a source may exist."""
        if self.source is not None:
            return None
        return DataError("; ".join(result.problems), hint=self.hint, prefix=f"{self.title}:")

    def mirror_file_names(self) -> Sequence[str]:
        """Return possible names of the files on a mirror; empty if they cannot be taken from one."""
        return [self.source.rpartition("/")[2]] if self.source else []

    def find_copies(self, mirror: Mirror) -> Sequence[Path]:
        """Return the copies on a local mirror."""
        return mirror.find_files(self.mirror_file_names())

    def bytes_to_download(self, mirror: Mirror) -> int | None:
        """Return the download size, or None if it is unknown."""
        # None for a model, whose name is not a URL.
        return mirror.download_size(self.mirror_file_names(), self.source)

    def fetch(self, mirror: Mirror, result: VerificationResult) -> None:
        """Fetch missing files and repair damaged ones, preferably from the mirror.

        Raises:
            MmfEnvironmentError: The files cannot be downloaded.
            DataError: The files cannot be repaired, or the download has different content.
        """
        del mirror  # used by the subclasses
        if error := self.unrepairable_error(result):
            raise error

    def with_source(self) -> InputFiles:
        """Return a copy with a source from the installed MMF's zoo, if the zoo has one."""
        return self


@dataclass(frozen=True)
class UrlInput(InputFiles):
    """File that a library would download; its name, the end of the URL, contains its hash."""

    def fetch(self, mirror: Mirror, result: VerificationResult) -> None:
        """Copy the file from the mirror or download it."""
        del result  # the file is replaced, whatever its state
        [target] = self.files()
        self.folder.mkdir(parents=True, exist_ok=True)
        for copy in self.find_copies(mirror):
            if not contradicts_hash(target, file_digest(copy).hex()):
                with atomic_replace(target) as temporary:
                    shutil.copyfile(copy, temporary)
                return
            _log.warning("%s: SHA-256 does not match the file name", copy)
        mirror.download(self.names, self.source, target, self.title, parse_hash_from_name(target))


def restrict_manifest(files: Iterable[Path], manifest: Manifest) -> Manifest | None:
    """Return a manifest with these files only, or None if a file is missing in it."""
    names = {manifest.folder / name: name for name in manifest.files}
    if not names.keys() >= set(files):
        return None
    return replace(manifest, files={names[path]: manifest.files[names[path]] for path in files})


def fetch_inputs(
    inputs: Sequence[InputFiles], mmf_paths: MmfPaths, mirror: Mirror, *, repair_only: bool = False
) -> list[VerificationResult]:
    """Fetch missing inputs and repair damaged ones; wait while another process uses the same data folder.

    With ``repair_only``, missing inputs stay missing, and the error of an input that cannot be repaired is
    stored in its result.

    Returns:
        The results of verifying the inputs afterwards.

    Raises:
        MmfEnvironmentError: An input cannot be downloaded; the others were fetched.
        DataError: An input cannot be repaired, or the download has different content.
        ResourceError: The downloads do not fit on the disk; nothing was downloaded.
    """
    mmf_paths.data_dir.mkdir(parents=True, exist_ok=True)
    message = "waiting for another mmfw process that is downloading into this data folder"
    with file_lock(mmf_paths.data_dir / ".mmfw-fetch-lock", math.inf, lambda: _log.info(message)):
        results = {item: item.verify() for item in inputs}
        states = ("damaged",) if repair_only else ("missing", "damaged")
        needed = [item for item, result in results.items() if result.state in states]
        _require_usable_source(needed, mirror)
        # Unknown sizes count as 0. MMF's features take 7 GB packed and 14 GB unpacked.
        sizes = query_download_sizes(needed, mirror).items()
        for device, folder in {device_number(item.folder): item.folder for item in needed}.items():
            sizes_on_device = [(item, size or 0) for item, size in sizes if device_number(item.folder) == device]
            if required_bytes := sum(item.disk_space_factor * size for item, size in sizes_on_device):
                is_data = folder.is_relative_to(mmf_paths.data_dir)
                require_space(folder, required_bytes, "--data-dir" if is_data else "TORCH_HOME or HF_HOME")
        for item in needed:
            try:
                item.fetch(mirror, results[item])
            except (DataError, InUseError, MmfEnvironmentError, PasswordError) as error:
                results[item] = replace(results[item], error=error)
            else:
                results[item] = replace(item.verify(), repaired=results[item].problems)
        failed = [result.error for result in results.values() if result.error is not None]
        if failed and not repair_only:
            hints = dict.fromkeys(error.hint for error in failed if error.hint)
            raise type(failed[0])("\n".join(map(str, failed)), hint="; ".join(hints))
        return [results[item] for item in inputs]


def query_download_sizes(inputs: Sequence[InputFiles], mirror: Mirror) -> dict[InputFiles, int | None]:
    """Return the download size of each input in bytes; the servers are queried concurrently."""
    with ThreadPoolExecutor(_MAX_SIZE_REQUESTS, "mmfw-size") as pool:
        return dict(zip(inputs, pool.map(lambda item: item.bytes_to_download(mirror), inputs), strict=True))


def _require_usable_source(inputs: Sequence[InputFiles], mirror: Mirror) -> None:
    """Refuse a local mirror without any needed file, instead of downloading everything from elsewhere.

    Raises:
        UsageError: The mirror contains none of the needed files.
    """
    if mirror.path is None or not inputs or any(item.find_copies(mirror) for item in inputs):
        return
    if names := dict.fromkeys(name for item in inputs for name in item.mirror_file_names()):
        message = f"{mirror.path}: contains none of the needed files"
        raise UsageError(message, hint=f"use a source that contains {', '.join(names)}")
    _log.warning("ignoring %s, because none of the needed files comes from an archive", mirror.path)

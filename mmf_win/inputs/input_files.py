"""The files that a run reads: what all have in common, those that the user has brought, and how to get some.

Where they come from makes the difference: they are given by the user (:class:`InputFiles`), a file with a URL
(:class:`UrlInput`), a model of the Hugging Face Hub (:mod:`~mmf_win.inputs.hub`) or out of an archive
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
from mmf_win.download import download, remote_size
from mmf_win.errors import (
    DataError,
    InUseError,
    MmfEnvironmentError,
    PasswordError,
    UnsafeFeaturesError,
    UsageError,
)
from mmf_win.files import atomic_replace, device_number
from mmf_win.inputs.known_hashes import (
    contradicts_hash,
    hash_in_name,
    load_known_hashes,
    verify_against_known,
)
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
    """Another place to get files from than their own sources; without one, there is none.

    Attributes:
        url: that of a folder or a file.
        path: a folder or file on this machine.
        keep_archives: leave a downloaded archive where MMF would, to repair from it without a download.
        offline: take files from this machine only.
        ask: answers with the password; called only when files are repaired from an encrypted archive.
        other_way: how to name such a place, for the hint of a failed download; ``{names}`` are the files.
    """

    url: str | None = None
    path: Path | None = None
    keep_archives: bool = True
    offline: bool = False
    ask: PasswordCallback | None = None
    alternative_hint: str = "name a file, folder or mirror with --source that has {names}"

    @classmethod
    def from_source(cls, source: str | None) -> Mirror:
        """The place that a user names.

        Raises UsageError where there is no such folder or file, or it is no URL of HTTP, or has a password.
        """
        if source is None:
            return cls()
        if re.match(r"\s*[\w+.-]{2,}://", source):  # C://memes is a folder
            try:
                parts = urlsplit(source.strip())
            except ValueError as error:
                raise UsageError(f"{source}: {error}") from error
            if parts.scheme not in ("http", "https"):
                raise UsageError(f"{source}: not a URL of http or https", hint="name a file or a folder")
            if "@" in parts.netloc or parts.query:  # what is secret in it must not be repeated
                host = parts.netloc.rpartition("@")[2]
                message = f"{host}: a URL with a password or a query cannot be a mirror"
                raise UsageError(message, hint="download the file yourself, and name its folder")
            return cls(url=parts.geturl())
        path = expand_home(source)
        if not path.exists():
            raise UsageError(f"{source}: no such file or folder", hint="name a file, a folder or a URL")
        return cls(path=path)

    def find_files(self, names: Sequence[str]) -> list[Path]:
        """The files of these names that are on this machine."""
        if self.path is None:
            return []
        found = [self.path] if self.path.name in names else [self.path / name for name in names]
        return [path for path in found if path.is_file()]

    def download_size(self, names: Sequence[str], default_url: str | None) -> int | None:
        """Return the size of a download of one of these files in bytes; None where no server tells."""
        return next((n for n in map(remote_size, self._urls(names, default_url)) if n is not None), None)

    def download(
        self, names: Sequence[str], default_url: str | None, target: Path, title: str, sha256: str | None
    ) -> None:
        """Download a file, by any of these names from here, or else from its own address.

        Arguments are as for :func:`~mmf_win.download.download`. Raises MmfError where that fails.
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
        """The error that files are missing and nothing may be downloaded."""
        return self.download_error(f"{title} is missing here, and nothing may be downloaded", names)

    def download_error(
        self, message: str, names: Sequence[str], hint: str | None = None
    ) -> MmfEnvironmentError:
        """The error that files of these names cannot be downloaded."""
        other_way = self.alternative_hint.replace("{names}", " or ".join(names))
        return MmfEnvironmentError(message, hint=f"{hint}, or {other_way}" if hint else other_way)

    def _urls(self, names: Sequence[str], default_url: str | None) -> list[str]:
        there = [f"{self.url.rstrip('/')}/{name}" for name in names] if self.url else []
        if self.url and self.url.rpartition("/")[2] in names:
            there = [self.url]
        return [] if self.offline else [*there, *([default_url] if default_url else [])]


@dataclass(frozen=True)
class InputFiles:
    """Files that belong together, in a folder of the user's or of another program.

    Attributes:
        title: what they are, for people.
        folder: holds all of them; of a model of the Hub, the folder of its versions.
        names: the files that a run opens, relative to the folder with ``/``.
        source: where they are published: a URL, or the name of a model; None where nobody knows.
        hint: what to do where they are missing or damaged.
        room: how many times the size of their download they take on the disk until they are in place.
    """

    disk_space_factor: ClassVar[int] = 1
    title: str
    folder: Path
    places: MmfPaths = field(repr=False)
    names: tuple[str, ...] = ()
    source: str | None = None
    hint: str = "put an intact copy there; mmfw knows no source of it"

    def quick_check(self) -> VerificationResult:
        """What is known of the files without reading any of them."""
        finding, files, hashes = self._inspect()
        known = hashes and restrict_manifest(files, hashes)
        if finding.state != "not verified" or known is None:
            return finding
        for name, entry in known.files.items():
            there = (known.folder / name).stat().st_size
            if entry.size not in (None, there):
                problem = f"changed: {name} ({there} instead of {entry.size} bytes)"
                return replace(finding, state="damaged", problems=(problem,))
        verified = oldest_check_time(known)
        return finding if verified is None else self._to_intact_result(finding, files, known, verified)

    def verify(self, *, full: bool = False, record: bool = True) -> VerificationResult:
        """Verify the files, reading those that were touched since they were read last.

        Args:
            full: read every file.
            record: where there is no list of their hashes, write one once they were read to their end.
        """
        finding, files, hashes = self._inspect()
        if finding.state != "not verified":
            return finding
        try:
            hashes, wrong = self._verify_hashes(files, hashes, full, record)
        except DataError as error:  # to write what is hostile again from the same archive would not help
            hostile = error if isinstance(error, UnsafeFeaturesError) else None
            return replace(finding, state="damaged", problems=(str(error),), error=hostile)
        if hashes is None:
            return replace(
                finding, state="recorded", verified_against="nothing: its folder cannot be written to"
            )
        if wrong:
            return replace(finding, state="damaged", problems=tuple(map(str, wrong)))
        # They may have been changed so shortly before that the times of this check will not be trusted later.
        known = restrict_manifest(files, hashes)
        verified = (known and oldest_check_time(known)) or time.time()
        return self._to_intact_result(finding, files, hashes, verified)

    def _inspect(self) -> tuple[VerificationResult, list[Path], Manifest | None]:
        """What is missing or damaged at first sight; the files; and the list that may have their hashes."""
        files, hashes = self.files(), None
        size = sum(path.stat().st_size for path in files if path.is_file())
        finding = VerificationResult("features", self.title, self.folder, "not verified", size=size)
        try:
            hashes = self._load_manifest()
        except (DataError, InUseError) as error:
            return replace(finding, state="damaged", problems=(str(error),)), files, None
        if missing := self._list_missing(files):
            listed = [hashes.folder / name for name in hashes.files] if hashes else []
            # What was read has been there once, so it can be repaired.
            homes = {self.folder, *(path.parent for path in files)}
            known = [path for path in listed if path.parent in homes]
            absent = [path for path in dict.fromkeys((*files, *known)) if not path.is_file()]
            problems = tuple(f"missing: {path}" for path in absent or missing)
            state: VerificationState = "damaged" if known else "missing"
            finding = replace(finding, state=state, problems=problems)
        elif hashes and restrict_manifest(files, hashes):
            finding = replace(finding, verified_against=self._verified_against(files, hashes))
        return finding, files, hashes

    def _to_intact_result(
        self, finding: VerificationResult, files: Iterable[Path], hashes: Manifest, verified: float
    ) -> VerificationResult:
        against = self._verified_against(files, hashes)
        state: VerificationState = "recorded" if against == FIRST_READING else "intact"
        return replace(finding, state=state, verified_at=verified, verified_against=against)

    def files(self) -> list[Path]:
        """The files that a run opens, there or not; those that are there where they are not known before."""
        return [self.folder / name for name in self.names]

    def _list_missing(self, files: Sequence[Path]) -> list[Path]:
        """Return what is not there; the folder where it is not known what should be."""
        return [path for path in files if not path.is_file()] if files else [self.folder]

    def _load_manifest(self) -> Manifest | None:
        """The list that has the hashes of the files, of some of them or of none."""
        return load_known_hashes(self.places.cache_dir)

    def _verified_against(self, files: Iterable[Path], hashes: Manifest) -> str:
        return "the hash in its name" if all(map(hash_in_name, files)) else FIRST_READING

    def _verify_hashes(
        self, files: Sequence[Path], hashes: Manifest | None, full: bool, record: bool
    ) -> tuple[Manifest | None, list[FileProblem]]:
        """The list of hashes, which has all files now, or None if it is not written; what is wrong."""
        ledger = hashes or load_known_hashes(self.places.cache_dir)
        return verify_against_known(files, ledger, full=full, record=record, title=f"Verifying {self.title}")

    def published_origin(self) -> tuple[str | None, str | None]:
        """Where they are published, and the SHA-256 of what is there, as far as that is known."""
        return self.source, None

    def unrepairable_error(self, finding: VerificationResult) -> DataError | None:
        """The error that files are damaged or missing and nothing has them; None where something may."""
        if self.source is not None:
            return None
        return DataError("; ".join(finding.problems), hint=self.hint, prefix=f"{self.title}:")

    def mirror_file_names(self) -> Sequence[str]:
        """What a copy is called that could be taken from a mirror; nothing where none could be."""
        return [self.source.rpartition("/")[2]] if self.source else []

    def find_copies(self, mirror: Mirror) -> Sequence[Path]:
        """What a mirror on this machine has of them."""
        return mirror.find_files(self.mirror_file_names())

    def bytes_to_download(self, mirror: Mirror) -> int | None:
        """How many it would take to get them; None where nobody tells."""
        return mirror.download_size(
            self.mirror_file_names(), self.source
        )  # None for a model, whose name is no URL

    def fetch(self, mirror: Mirror, finding: VerificationResult) -> None:
        """Get what is missing, and repair what is damaged; the mirror is looked into first.

        Raises:
            MmfError: they cannot be downloaded.
            DataError: they cannot be repaired, or what came is not what it should be.
        """
        if error := self.unrepairable_error(finding):
            raise error

    def with_source(self) -> InputFiles:
        """The same files, with where to download them, as far as the zoo of the installed MMF tells."""
        return self


@dataclass(frozen=True)
class UrlInput(InputFiles):
    """A file that its library would download, and whose name, the end of its URL, holds its hash."""

    def fetch(self, mirror: Mirror, finding: VerificationResult) -> None:
        """Copy or download it."""
        [target] = self.files()
        self.folder.mkdir(parents=True, exist_ok=True)
        for found in self.find_copies(mirror):
            if not contradicts_hash(target, file_digest(found).hex()):
                with atomic_replace(target) as temporary:
                    shutil.copyfile(found, temporary)
                return
            _log.warning("%s: not what its name says", found)
        mirror.download(self.names, self.source, target, self.title, hash_in_name(target))


def restrict_manifest(files: Iterable[Path], manifest: Manifest) -> Manifest | None:
    """The hashes of some files alone; None where the list lacks one of them."""
    names = {manifest.folder / name: name for name in manifest.files}
    if not names.keys() >= set(files):
        return None
    return replace(manifest, files={names[path]: manifest.files[names[path]] for path in files})


def fetch_inputs(
    inputs: Sequence[InputFiles], places: MmfPaths, mirror: Mirror, *, repair_only: bool = False
) -> list[VerificationResult]:
    """Get what is missing, and repair what is damaged; return what was found afterwards.

    While another process does this with the same data folder, this one says so and waits. Where this only
    ``repairs``, what is missing stays missing; and what cannot be repaired stays damaged, its finding has the
    error, and the rest is repaired.

    Raises:
        MmfError: something cannot be downloaded; what can be had is there.
        DataError: something cannot be repaired, or what came is not what it should be.
        ResourceError: it does not fit on the disk; nothing was downloaded.
    """
    places.data_dir.mkdir(parents=True, exist_ok=True)
    waiting = "another mmfw is fetching into this data folder; waiting for it"
    with file_lock(places.data_dir / ".mmfw-fetch-lock", math.inf, lambda: _log.info(waiting)):
        found = {each: each.verify() for each in inputs}
        states = ("damaged",) if repair_only else ("missing", "damaged")
        wanted = [each for each, finding in found.items() if finding.state in states]
        _require_usable_source(wanted, mirror)
        # As far as the servers tell how large it is. MMF's features take 7 GB packed and 14 GB unpacked.
        lengths = query_download_sizes(wanted, mirror).items()
        for disk, folder in {device_number(each.folder): each.folder for each in wanted}.items():
            of_disk = [(each, n or 0) for each, n in lengths if device_number(each.folder) == disk]
            if room := sum(each.disk_space_factor * n for each, n in of_disk):
                is_data = folder.is_relative_to(places.data_dir)
                require_space(folder, room, "--data-dir" if is_data else "TORCH_HOME or HF_HOME")
        for each in wanted:
            try:
                each.fetch(mirror, found[each])
            except (DataError, InUseError, MmfEnvironmentError, PasswordError) as error:
                found[each] = replace(found[each], error=error)
            else:
                found[each] = replace(each.verify(), repaired=found[each].problems)
        failed = [finding.error for finding in found.values() if finding.error is not None]
        if failed and not repair_only:
            hints = dict.fromkeys(error.hint for error in failed if error.hint)
            raise type(failed[0])("\n".join(map(str, failed)), hint="; ".join(hints))
        return [found[each] for each in inputs]


def query_download_sizes(inputs: Sequence[InputFiles], mirror: Mirror) -> dict[InputFiles, int | None]:
    """Return the size of the download of each in bytes; all servers are asked at the same time."""
    with ThreadPoolExecutor(_MAX_SIZE_REQUESTS, "mmfw-size") as pool:
        return dict(zip(inputs, pool.map(lambda each: each.bytes_to_download(mirror), inputs), strict=True))


def _require_usable_source(inputs: Sequence[InputFiles], mirror: Mirror) -> None:
    """Refuse a source from which nothing would be taken, rather than download all of it from elsewhere."""
    if mirror.path is None or not inputs or any(each.find_copies(mirror) for each in inputs):
        return
    if names := dict.fromkeys(name for each in inputs for name in each.mirror_file_names()):
        message = f"{mirror.path}: none of the files that are needed is there"
        raise UsageError(message, hint=f"they are called {', '.join(names)}")
    _log.warning("%s is not used, since nothing that is needed comes out of an archive", mirror.path)

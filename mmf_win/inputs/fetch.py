"""Gets what a run needs and has not got, and repairs what is damaged with the least work."""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from mmf_win.archives import Ask
from mmf_win.console import size
from mmf_win.errors import (
    ArchiveError,
    DamagedFeatures,
    DataError,
    DownloadError,
    MmfError,
    PasswordError,
    UnknownArchive,
    UsageError,
)
from mmf_win.files import remove, replacing
from mmf_win.inputs.caches import (
    contradicts_hash,
    copy_model,
    download_model,
    hash_in_name,
    hub_is_offline,
    model_in,
)
from mmf_win.inputs.listing import Need, no_source, write_built_markers
from mmf_win.inputs.verify import verify_need
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.finding import Finding
from mmf_win.integrity.verify import find_damage
from mmf_win.locking import locked
from mmf_win.paths import Places
from mmf_win.unpacking.extract import extract_verified, repair
from mmf_win.unpacking.staging import finish_installation, is_unfinished, require_space
from mmf_win.upstream.download import download, remote_size

ATTEMPTS = 5
"""How often a download is tried without a single new byte."""

Cost: TypeAlias = tuple[int | None, int | None]
"""Bytes to download, and bytes that it needs on the disk meanwhile; None where nobody tells."""

_ASKED_AT_ONCE = 8

# MMF's features take 7 GB packed and 14 GB unpacked, and weights less than that.
_GROWTH = 2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mirror:
    """Another place to get archives from than those that MMF's zoo names; without one, there is none.

    Attributes:
        url: that of a folder or a file.
        path: a folder or file on this machine.
    """

    url: str | None = None
    path: Path | None = None

    @classmethod
    def of(cls, where: str | None) -> Mirror:
        """The place that a user names.

        Raises:
            UsageError: there is no such folder or file, or it is no URL of HTTP, or one with a password.
        """
        if where is None:
            return cls()
        if re.match(r"\s*[\w+.-]{2,}://", where):  # C://memes is a folder
            try:
                parts = urlsplit(where.strip())
            except ValueError as error:
                raise UsageError(f"{where}: {error}") from error
            if parts.scheme not in ("http", "https"):
                raise UsageError(f"{where}: not a URL of http or https", hint="name a file or a folder")
            if "@" in parts.netloc or parts.query:  # what is secret in it must not be repeated
                host = parts.netloc.rpartition("@")[2]
                message = f"{host}: a URL with a password or a query cannot be a mirror"
                raise UsageError(message, hint="download the file yourself, and name its folder")
            return cls(url=parts.geturl())
        path = Path(where).expanduser()
        if not path.exists():
            raise UsageError(f"{where}: no such file or folder", hint="name a file, a folder or a URL")
        return cls(path=path)

    def files(self, names: Sequence[str]) -> list[Path]:
        """The files of these names that are on this machine."""
        if self.path is None:
            return []
        found = [self.path] if self.path.name in names else [self.path / name for name in names]
        return [path for path in found if path.is_file()]

    def urls(self, names: Sequence[str]) -> list[str]:
        """Where files of these names may be on the web."""
        if self.url is None:
            return []
        if self.url.rpartition("/")[2] in names:
            return [self.url]
        return [f"{self.url.rstrip('/')}/{name}" for name in names]


@dataclass(frozen=True)
class Fetcher:
    """Downloads or copies archives, and unpacks them.

    Attributes:
        places: MMF's folders.
        mirror: where to get archives from, before their own sources.
        keep_archives: leave a downloaded archive where MMF would, to repair from it without a download.
        offline: take archives from this machine only.
        ask: answers with the password; called only when files are repaired from an encrypted archive.
    """

    places: Places
    mirror: Mirror = Mirror()
    keep_archives: bool = True
    offline: bool = False
    ask: Ask | None = None

    def fetch(self, needs: Iterable[Need]) -> list[Finding]:
        """Get what is missing, and repair what is damaged; return what was found afterwards.

        While another process does this with the same data folder, this one says so and waits.

        Raises:
            MmfError: something cannot be downloaded.
            DataError: something cannot be repaired, or what came is not what it should be.
            ResourceError: it does not fit on the disk; nothing was downloaded.
        """
        return self._get_all(list(needs), repairs=False)

    def repair(self, needs: Iterable[Need]) -> list[Finding]:
        """Repair what is damaged; what is missing stays missing.

        What cannot be repaired stays damaged, and its finding has the error; the rest is repaired.

        Raises:
            ResourceError: it does not fit on the disk; nothing was downloaded.
        """
        return self._get_all(list(needs), repairs=True)

    def _get_all(self, needs: Sequence[Need], *, repairs: bool) -> list[Finding]:
        self.places.data_dir.mkdir(parents=True, exist_ok=True)

        def waiting() -> None:
            _log.info("another mmfw is fetching into this data folder; waiting for it")

        with locked(self.places.data_dir / ".mmfw-fetch-lock", math.inf, waiting):
            found = {need: verify_need(need, self.places) for need in needs}
            for need in [need for need in needs if need.has_manifest and is_unfinished(need.folder)]:
                finish_installation(need.folder)
                found[need] = replace(verify_need(need, self.places), repaired=found[need].problems)
            write_built_markers(need for need, finding in found.items() if finding.is_usable)
            states = ("damaged",) if repairs else ("missing", "damaged")
            wanted = [need for need, finding in found.items() if finding.state in states]
            self._require_usable_source(wanted)
            self._require_space(wanted)
            for need in sorted(wanted, key=lambda need: not need.has_source):
                try:
                    self._get(need, found[need])
                except (DataError, MmfError, PasswordError) as error:
                    if not repairs:
                        raise
                    found[need] = replace(found[need], error=error)
                else:
                    found[need] = replace(verify_need(need, self.places), repaired=found[need].problems)
                    write_built_markers([need])
            return [found[need] for need in needs]

    def _require_usable_source(self, needs: Sequence[Need]) -> None:
        """Refuse a source from which nothing would be taken, rather than download all of it from elsewhere.

        Raises:
            UsageError: it has none of the archives.
        """
        place = self.mirror.path
        if place is None or not needs:
            return
        models = [need for need in needs if need.is_of_hub and need.library]
        archived = [need for need in needs if need.has_source and need not in models]
        names = [name for need in archived for name in self._names(need)]
        if self.mirror.files(names) or any(model_in(place, str(need.url), weights=False) for need in models):
            return
        names += [str(need.url) for need in models]
        if names:
            raise UsageError(
                f"{place}: none of the files that are needed is there",
                hint=f"they are called {', '.join(dict.fromkeys(names))}",
            )
        _log.warning("%s is not used, since nothing that is needed comes out of an archive", place)

    def costs(self, needs: Sequence[Need]) -> dict[Need, Cost]:
        """What it would cost to get each of them; all servers are asked at the same time."""
        with ThreadPoolExecutor(_ASKED_AT_ONCE, "mmfw-cost") as pool:
            return dict(zip(needs, pool.map(self._cost, needs), strict=True))

    def _cost(self, need: Need) -> Cost:
        urls = self._urls(need)
        if not urls or need.is_built:
            return None, None
        if need.entry and self._local(need):
            return 0, None
        length = next((n for n in map(remote_size, urls) if n is not None), None)
        if length is None:
            return None, None
        return length, length if need.kind == "resnet" else (1 + _GROWTH) * length

    def _require_space(self, needs: Sequence[Need]) -> None:
        """Refuse to begin what will not fit, as far as the servers tell how large it is."""
        by_folder: dict[Path, int] = {}
        for need, (_, room) in self.costs(needs).items():
            if room:
                home = self.places.cache_dir if need.kind == "resnet" else self.places.data_dir
                by_folder[home] = by_folder.get(home, 0) + room
        for folder, total in by_folder.items():
            require_space(folder, total)

    def _get(self, need: Need, finding: Finding) -> None:
        if (error := no_source(need, finding, self.places)) is not None:
            raise error
        if need.is_of_hub and need.library:
            self._get_model(need)
        elif need.kind == "resnet":
            self._get_file(need)
        else:
            self._unpack_any(need, finding)

    def _get_model(self, need: Need) -> None:
        """Copy or download a model of the Hugging Face Hub into its cache."""
        name, weights = str(need.url), need.kind == "bert"
        if self.mirror.path and (copy := model_in(self.mirror.path, name, weights=weights)):
            copy_model(copy, name)
        elif self.offline or hub_is_offline():
            raise DownloadError(f"{need.title} is missing here, and nothing may be downloaded", names=name)
        else:
            download_model(name, weights=weights, damaged=need.files)

    def _get_file(self, need: Need) -> None:
        """Copy or download a file that is no archive, and whose name holds its hash."""
        target = need.files[0]
        need.folder.mkdir(parents=True, exist_ok=True)
        for found in self.mirror.files(need.names):
            if not contradicts_hash(target, file_digest(found).hex()):
                with replacing(target) as temporary:
                    shutil.copyfile(found, temporary)
                return
            _log.warning("%s: not what its name says", found)
        self._download(need, target)

    def _unpack_any(self, need: Need, finding: Finding) -> None:
        """Unpack the first archive that holds the files as they should be, downloading one if none does."""
        source = need.source
        for archive in self._local(need):
            is_own = archive != self._archive(need)
            if source and is_own and archive == Path(source.path) and not source.is_same(archive):
                _log.warning("%s is no longer the archive that the %s were made of", archive, need.title)
                continue
            try:
                return self._unpack(need, archive)
            except ArchiveError as error:
                _log.warning("%s", error)
        self._require_same_source(need, finding)
        archive = self._archive(need)
        archive.parent.mkdir(parents=True, exist_ok=True)
        self._download(need, archive)
        self._unpack(need, archive)
        if self.keep_archives:
            _log.info("%s (%s) is kept to repair from", archive, size(archive.stat().st_size))
        else:
            remove(archive)

    def _require_same_source(self, need: Need, finding: Finding) -> None:
        """Refuse to download what the files were not made of.

        Raises:
            UnknownArchive: they came out of another archive than the zoo's.
            DamagedFeatures: nothing tells what they came out of, and they may be the user's own.
        """
        manifest, published = need.manifest, need.entry.sha256 if need.entry else None
        source = manifest.source if manifest else None
        if need.kind == "features" and finding.state == "damaged" and source is None:
            message = f"{need.folder}: {'; '.join(finding.problems)}; nothing tells where they came from"
            raise DamagedFeatures(message, lmdb=need.files[0].parent)
        if manifest is None or source is None or source.sha256 == published:
            return
        if manifest.basis != "published":  # else they are those of another version of MMF
            what = f"{need.folder}: made of {source.name}, which is not an archive of MMF's zoo"
            raise UnknownArchive(what, name=source.name, folder=need.folder)

    def _local(self, need: Need) -> list[Path]:
        """Archives on this machine: that which MMF or an earlier call has left, and that of the files."""
        source = need.source
        last = [Path(source.path)] if source and source.sha256 else []
        there = [path for path in dict.fromkeys([self._archive(need), *last]) if path.is_file()]
        return [*there, *self.mirror.files(self._names(need))]

    def _download(self, need: Need, archive: Path) -> None:
        urls, names = self._urls(need), " or ".join(self._names(need))
        if not urls:
            raise DownloadError(f"{need.title} is missing here, and nothing may be downloaded", names=names)
        sha256 = need.entry.sha256 if need.entry else hash_in_name(archive)
        for url in urls:
            try:
                download(url, archive, need.title, sha256=sha256, attempts=ATTEMPTS)
                return
            except MmfError as error:
                if url == urls[-1]:
                    raise DownloadError(str(error), hint=error.hint, names=names) from error
                _log.warning("%s", error)

    def _unpack(self, need: Need, archive: Path) -> None:
        """Repair the files from the archive where only some of them are damaged, else unpack all of it."""
        if self._repair(need, archive):
            return
        extract_verified(
            archive,
            need.folder,
            ask=self.ask,
            choose=need.choose,
            expected_sha256=need.entry.sha256 if need.entry and not _is_made_of(need, archive) else None,
            replaces=[need.entry.marker] if need.entry else [],
            title=f"Unpacking {need.title}",
        )
        if not need.is_there:
            raise ArchiveError(f"{archive}: it does not hold the {need.title}", hint="get another copy of it")

    def _repair(self, need: Need, archive: Path) -> bool:
        """Unpack only what is damaged; False where nothing says what that is."""
        manifest = need.manifest
        if manifest is None or manifest.basis == "recorded":
            return False
        wrong = find_damage(manifest)
        if not wrong:
            return False
        repair(manifest, archive, wrong, ask=self.ask, choose=need.choose, title=f"Repairing {need.title}")
        _log.info("%s: repaired %s from %s", need.title, ", ".join(found.path for found in wrong), archive)
        return True

    def _archive(self, need: Need) -> Path:
        if need.entry:
            # The configuration may read from another folder than the one that the zoo's key stands for.
            return need.entry.archive
        source = need.source
        return need.folder / (source.name if source else str(need.url).rpartition("/")[2])

    def _names(self, need: Need) -> tuple[str, ...]:
        names = need.entry.names if need.entry else (self._archive(need).name,)
        source = need.source
        return tuple(dict.fromkeys((*([source.name] if source else []), *names)))

    def _urls(self, need: Need) -> list[str]:
        if need.is_of_hub or self.offline:
            return []
        own = need.entry.url if need.entry else need.url
        return [*self.mirror.urls(self._names(need)), *([own] if own else [])]


def _is_made_of(need: Need, archive: Path) -> bool:
    """Whether the files were made of this very archive, which nobody has published."""
    manifest = need.manifest
    source = manifest.source if manifest and manifest.basis in ("archive", "recorded") else None
    return source is not None and source.is_same(archive)

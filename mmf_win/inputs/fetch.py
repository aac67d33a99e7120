"""Brings in what a run needs and has not got, and mends what is broken with the least work."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mmf_win.archives import Ask
from mmf_win.console import say, size
from mmf_win.errors import ArchiveError, DataError, MmfError, UsageError
from mmf_win.files import replacing
from mmf_win.inputs import hub
from mmf_win.inputs.added import remedy
from mmf_win.inputs.caches import hash_in_name
from mmf_win.inputs.listing import Need, tell_mmf
from mmf_win.inputs.mirror import Mirror
from mmf_win.inputs.state import State, Status, examine
from mmf_win.integrity import Manifest, Source, file_digest, verify
from mmf_win.locking import locked
from mmf_win.paths import Places
from mmf_win.unpacking.extract import extract_verified, repair
from mmf_win.unpacking.staging import require_space
from mmf_win.upstream.download import download, remote_size

ATTEMPTS = 5
"""How often a download is tried without a single new byte."""

Cost: TypeAlias = tuple[int | None, int | None]
"""Bytes to download, and bytes that it will take on the disk; None where nobody tells."""

_ASKED_AT_ONCE = 8

# MMF's features take 7 GB packed and 14 GB unpacked, and weights less than that.
_GROWTH = 2


@dataclass(frozen=True)
class Fetcher:
    """How files are brought in.

    Attributes:
        places: MMF's folders.
        mirror: where to get archives from, before their own sources.
        keep_archives: leave a downloaded archive where MMF would, to mend from it without a download.
        offline: take archives from this machine only.
        ask: answers with the password; called only when files are repaired from an encrypted archive.
    """

    places: Places
    mirror: Mirror | None = None
    keep_archives: bool = True
    offline: bool = False
    ask: Ask | None = None

    def fetch(self, needs: Iterable[Need]) -> list[Status]:
        """Bring in what is missing, and mend what is broken; return how it is afterwards.

        While another process does this with the same data folder, this one says so and waits.

        Raises:
            MmfError: something cannot be downloaded.
            DataError: something cannot be mended, or what came is not what it should be.
            ResourceError: it does not fit on the disk; nothing was downloaded.
        """
        return self._make_right(needs, ("missing", "broken"))

    def repair(self, needs: Iterable[Need]) -> list[Status]:
        """Mend what is broken, and leave alone what is missing; else as :meth:`fetch`."""
        return self._make_right(needs, ("broken",))

    def _make_right(self, needs: Iterable[Need], states: Sequence[State]) -> list[Status]:
        self.places.data_dir.mkdir(parents=True, exist_ok=True)
        waiting = "another mmfw is fetching into this data folder; waiting for it"
        with locked(self.places.data_dir / ".mmfw-fetch-lock", math.inf, lambda: say(waiting)):
            statuses = [examine(need, self.places) for need in needs]
            wanted = [status.need for status in statuses if status.state in states]
            tell_mmf(status.need for status in statuses if status.state in ("ok", "recorded"))
            self._require_usable_source(wanted)
            self._require_space(wanted)
            for need in sorted(wanted, key=lambda need: not self._has_source(need)):
                self._bring(need)
                tell_mmf([need])
            return [
                examine(status.need, self.places) if status.need in wanted else status for status in statuses
            ]

    def _require_usable_source(self, needs: Sequence[Need]) -> None:
        """Refuse a source from which nothing would be taken, rather than download all of it from elsewhere.

        Raises:
            UsageError: it has none of the archives.
        """
        if self.mirror is None or self.mirror.is_remote:
            return
        archived = [need for need in needs if self._has_source(need) and not need.is_of_hub]
        names = [name for need in archived for name in self._names(need)]
        if names and not any(True for _ in self.mirror.files(names)):
            raise UsageError(
                f"{self.mirror.where}: none of the archives that are needed is there",
                hint=f"they are called {', '.join(dict.fromkeys(names))}",
            )

    def costs(self, needs: Sequence[Need]) -> dict[Need, Cost]:
        """What it would cost to bring each of them in; all servers are asked at the same time."""
        with ThreadPoolExecutor(_ASKED_AT_ONCE, "mmfw-cost") as pool:
            return dict(zip(needs, pool.map(self.cost, needs), strict=True))

    def cost(self, need: Need) -> Cost:
        """What it would cost to bring it in."""
        urls = self._urls(need)
        if not urls or _is_built(need):
            return None, None
        if need.entry and self._local(need):
            return 0, None
        length = next((n for n in map(remote_size, urls) if n is not None), None)
        if length is None:
            return None, None
        packed = length if self.keep_archives or need.kind == "resnet" else 0
        return length, packed + (0 if need.kind == "resnet" else _GROWTH * length)

    def _require_space(self, needs: Sequence[Need]) -> None:
        """Refuse to begin what will not fit, as far as the servers tell how large it is."""
        by_folder: dict[Path, int] = {}
        for need, (download_size, _) in self.costs(needs).items():
            if download_size:
                room = download_size if need.kind == "resnet" else (1 + _GROWTH) * download_size
                home = self.places.cache_dir if need.kind in ("glove", "resnet") else self.places.data_dir
                by_folder[home] = by_folder.get(home, 0) + room
        for folder, total in by_folder.items():
            require_space(folder, total)

    @staticmethod
    def _has_source(need: Need) -> bool:
        return not _is_built(need) and bool(need.entry or need.url or _source(need))

    def _bring(self, need: Need) -> None:
        if _is_built(need):  # no archive has the user's own images
            problems = "; ".join(examine(need, self.places).problems)
            again = remedy(need.files[0].parent, self.places)
            raise DataError(f"{need.folder}: made of your own .npy files: {problems}", hint=again)
        if need.is_of_hub and need.library:
            assert need.url is not None
            hub.download(need.url, weights=need.kind == "bert", broken=need.files if need.is_there else [])
        elif need.kind == "resnet":
            self._bring_file(need)
        elif self._has_source(need):
            self._unpack_any(need)
        elif need.is_there:
            problems = "; ".join(examine(need, self.places).problems)
            raise DataError(
                f"{need.folder}: {problems}", hint="put a whole copy there; mmfw has no source of it"
            )
        else:
            what = "; ".join(f"missing: {path}" for path in need.files) or f"missing: {need.folder}"
            raise DataError(
                f"{need.title}: {what}", hint="put it there; MMF's zoo does not name a source of it"
            )

    def _bring_file(self, need: Need) -> None:
        """Copy or download a file that is no archive, and whose name holds its hash."""
        target = need.files[0]
        need.folder.mkdir(parents=True, exist_ok=True)
        for found in self.mirror.files(need.names) if self.mirror else ():
            if file_digest(found).hex().startswith(hash_in_name(target) or ""):
                with replacing(target) as temporary:
                    shutil.copyfile(found, temporary)
                return
            say(f"note: {found}: not what its name says")
        self._download(need, target)

    def _unpack_any(self, need: Need) -> None:
        """Unpack the first archive that holds the files as they should be, downloading one if none does."""
        for archive in self._local(need):
            if archive == _remembered(need) != self._archive(need) and not _is_source(need, archive):
                say(f"note: {archive} is no longer the archive that the {need.title} were made of")
                continue
            try:
                return self._unpack(need, archive)
            except ArchiveError as error:
                say(f"note: {error}")
        self._require_same_source(need)
        archive = self._archive(need)
        archive.parent.mkdir(parents=True, exist_ok=True)
        self._download(need, archive)
        self._unpack(need, archive)
        if not self.keep_archives:
            archive.unlink()
        else:
            say(
                f"{archive} stays, to mend from ({size(archive.stat().st_size)}; --no-keep-archives drops it)"
            )

    def _require_same_source(self, need: Need) -> None:
        """Refuse to download what the files were not made of.

        Raises:
            DataError: they came out of another archive than the zoo's.
        """
        manifest, published = _loaded(need), need.entry.sha256 if need.entry else None
        source = manifest.source if manifest else None
        if manifest is None or source is None or need.url or source.sha256 == published:
            return
        if manifest.basis != "published":  # else they are those of another version of MMF
            raise DataError(
                f"{need.folder}: made of {source.name}, which is not an archive of MMF's zoo",
                hint=f"give {source.name} or its folder with --source, or unpack another archive with "
                "`mmfw features extract --force`",
            )

    def _local(self, need: Need) -> list[Path]:
        """Archives on this machine: that which MMF or an earlier call has left, and that of the files."""
        candidates = dict.fromkeys((self._archive(need), _remembered(need)))
        there = [path for path in candidates if path is not None and path.is_file()]
        return [*there, *(self.mirror.files(self._names(need)) if self.mirror else ())]

    def _download(self, need: Need, archive: Path) -> None:
        urls = self._urls(need)
        if not urls:
            raise MmfError(
                f"{need.title} is not here, and nothing may be downloaded",
                hint=f"give the folder of {' or '.join(self._names(need))} with --source",
            )
        sha256 = need.entry.sha256 if need.entry else hash_in_name(archive)
        for url in urls:
            try:
                download(url, archive, need.title, sha256=sha256, attempts=ATTEMPTS)
                return
            except MmfError as error:
                if url == urls[-1]:
                    elsewhere = "--source names a folder or a mirror that has it"
                    raise MmfError(str(error), hint=f"{error.hint}; {elsewhere}") from error
                say(f"note: {error}")

    def _unpack(self, need: Need, archive: Path) -> None:
        """Mend the files from the archive where only some of them are wrong, else unpack all of it."""
        sha256 = need.entry.sha256 if need.entry else None
        if self._mend(need, archive):
            return
        extract_verified(
            archive,
            need.folder,
            ask=self.ask,
            choose=need.choose,
            expected_sha256=sha256,
            replaces=[need.entry.marker] if need.entry else [],
            title=f"Unpacking {need.title}",
        )
        if not need.is_there:
            raise ArchiveError(f"{archive}: it does not hold the {need.title}", hint="get another copy of it")

    def _mend(self, need: Need, archive: Path) -> bool:
        """Unpack only what is wrong; False where nothing says what that is."""
        manifest = _loaded(need)
        if manifest is None or manifest.basis == "recorded":
            return False
        wrong = [found for found in verify(manifest) if found.kind != "extra"]
        if not wrong:
            return False
        repair(manifest, archive, wrong, ask=self.ask, choose=need.choose, title=f"Mending {need.title}")
        say(f"{need.title}: mended {', '.join(found.path for found in wrong)} from {archive}")
        return True

    def _archive(self, need: Need) -> Path:
        if need.entry:
            # The configuration may read from another folder than the one that the zoo's key stands for.
            return need.entry.archive
        source = _source(need)
        return need.folder / (source.name if source and not need.url else str(need.url).rpartition("/")[2])

    def _names(self, need: Need) -> tuple[str, ...]:
        names = need.entry.names if need.entry else (self._archive(need).name,)
        source = _source(need)
        return tuple(dict.fromkeys((*([source.name] if source else []), *names)))

    def _urls(self, need: Need) -> list[str]:
        if need.is_of_hub or self.offline:
            return []
        own = need.entry.url if need.entry else need.url
        return [*(self.mirror.urls(self._names(need)) if self.mirror else ()), *([own] if own else [])]


def _loaded(need: Need) -> Manifest | None:
    """The manifest of the folder; None where there is none that can be understood."""
    try:
        return Manifest.load(need.folder)
    except DataError:
        return None


def _is_built(need: Need) -> bool:
    """Whether mmfw made it of the user's own files."""
    manifest = _loaded(need) if need.kind == "features" else None
    return manifest is not None and manifest.basis == "built"


def _remembered(need: Need) -> Path | None:
    """Where the archive lay that the files were made of."""
    source = _source(need)
    return Path(source.path) if source and source.path and source.sha256 else None


def _is_source(need: Need, archive: Path) -> bool:
    source = _source(need)
    return source is not None and source.is_same(archive)


def _source(need: Need) -> Source | None:
    """The archive that the files were made of, as far as that is known."""
    manifest = _loaded(need) if need.is_ours else None
    return manifest.source if manifest else None

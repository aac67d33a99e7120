"""The files that a run reads: what all have in common, and those that the user has brought.

Where they come from makes the difference: they are given by the user (:class:`Input`), a file with a URL
(:class:`UrlFile`), a model of the Hugging Face Hub (:mod:`~mmf_win.inputs.hub`) or out of an archive
(:mod:`~mmf_win.inputs.unpacked`).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmf_win.errors import DataError, HostileFeatures, InUseError
from mmf_win.files import replacing
from mmf_win.inputs.ledger import compare, contradicts_hash, hash_in_name, read_ledger
from mmf_win.inputs.mirror import Mirror
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.finding import Difference, Finding, State
from mmf_win.integrity.manifest import FIRST_READING, Manifest
from mmf_win.integrity.verify import last_check
from mmf_win.paths import Places

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Input:
    """Files that belong together, in a folder of the user's or of another program.

    Attributes:
        title: what they are, for people.
        folder: holds all of them; of a model of the Hub, the folder of its versions.
        names: the files that a run opens, relative to the folder with ``/``.
        source: where they are published: a URL, or the name of a model; None where nobody knows.
        hint: what to do where they are missing or damaged.
    """

    title: str
    folder: Path
    places: Places = field(repr=False)
    names: tuple[str, ...] = ()
    source: str | None = None
    hint: str = "put an intact copy there; mmfw knows no source of it"

    def state(self) -> Finding:
        """What is known of the files without reading any of them."""
        finding, files, hashes = self._look()
        known = hashes and only(files, hashes)
        if finding.state != "not verified" or known is None:
            return finding
        for name, entry in known.files.items():
            there = (known.folder / name).stat().st_size
            if entry.size not in (None, there):
                problem = f"changed: {name} ({there} instead of {entry.size} bytes)"
                return replace(finding, state="damaged", problems=(problem,))
        verified = last_check(known)
        return finding if verified is None else self._intact(finding, files, known, verified)

    def verify(self, *, full: bool = False, record: bool = True) -> Finding:
        """Verify the files, reading those that were touched since they were read last.

        Args:
            full: read every file.
            record: where there is no list of their hashes, write one once they were read to their end.
        """
        finding, files, hashes = self._look()
        if finding.state != "not verified":
            return finding
        try:
            hashes, wrong = self._compare(files, hashes, full, record)
        except DataError as error:  # to write what is hostile again from the same archive would not help
            hostile = error if isinstance(error, HostileFeatures) else None
            return replace(finding, state="damaged", problems=(str(error),), error=hostile)
        if hashes is None:
            return replace(finding, state="recorded", against="nothing: its folder cannot be written to")
        if wrong:
            return replace(finding, state="damaged", problems=tuple(map(str, wrong)))
        # They may have been changed so shortly before that the times of this check will not be trusted later.
        known = only(files, hashes)
        verified = (known and last_check(known)) or time.time()
        return self._intact(finding, files, hashes, verified)

    def _look(self) -> tuple[Finding, list[Path], Manifest | None]:
        """What is missing or damaged at first sight; the files; and the list that may have their hashes."""
        files, hashes = self.files(), None
        size = sum(path.stat().st_size for path in files if path.is_file())
        finding = Finding("features", self.title, self.folder, "not verified", size=size)
        try:
            hashes = self._hashes()
        except (DataError, InUseError) as error:
            return replace(finding, state="damaged", problems=(str(error),)), files, None
        if not self._is_complete(files):
            listed = [hashes.folder / name for name in hashes.files] if hashes else []
            # What was read has been there once, so it can be repaired.
            homes = {self.folder, *(path.parent for path in files)}
            known = [path for path in listed if path.parent in homes]
            absent = [path for path in dict.fromkeys((*files, *known)) if not path.is_file()]
            problems = tuple(f"missing: {path}" for path in absent or self._absent(files))
            state: State = "damaged" if known else "missing"
            finding = replace(finding, state=state, problems=problems)
        elif hashes and only(files, hashes):
            finding = replace(finding, against=self._against(files, hashes))
        return finding, files, hashes

    def _intact(self, finding: Finding, files: Iterable[Path], hashes: Manifest, verified: float) -> Finding:
        against = self._against(files, hashes)
        state: State = "recorded" if against == FIRST_READING else "intact"
        return replace(finding, state=state, verified=verified, against=against)

    def files(self) -> list[Path]:
        """The files that a run opens, there or not; those that are there where they are not known before."""
        return [self.folder / name for name in self.names]

    def _absent(self, files: Sequence[Path]) -> list[Path]:
        """What to call missing where none of the files is."""
        return [self.folder]

    def _is_complete(self, files: Sequence[Path]) -> bool:
        return bool(files) and all(path.is_file() for path in files)

    def _hashes(self) -> Manifest | None:
        """The list that has the hashes of the files, of some of them or of none."""
        return read_ledger(self.places.cache_dir)

    def _against(self, files: Iterable[Path], hashes: Manifest) -> str:
        return "the hash in its name" if all(map(hash_in_name, files)) else FIRST_READING

    def _compare(
        self, files: Sequence[Path], hashes: Manifest | None, full: bool, record: bool
    ) -> tuple[Manifest | None, list[Difference]]:
        """The list of hashes, which has all files now, or None if it is not written; what is wrong."""
        ledger = hashes or read_ledger(self.places.cache_dir)
        return compare(files, ledger, full=full, record=record, title=f"Verifying {self.title}")

    def published(self) -> tuple[str | None, str | None]:
        """Where they are published, and the SHA-256 of what is there, as far as that is known."""
        return self.source, None

    def no_source(self, finding: Finding) -> DataError | None:
        """The error that files are damaged or missing and nothing has them; None where something may."""
        if self.source is not None:
            return None
        return DataError("; ".join(finding.problems), hint=self.hint, about=f"{self.title}:")

    def copy_names(self) -> Sequence[str]:
        """What a copy is called that could be taken from a mirror; nothing where none could be."""
        return [self.source.rpartition("/")[2]] if self.source else []

    def copies(self, mirror: Mirror) -> Sequence[Path]:
        """What a mirror on this machine has of them."""
        return mirror.files(self.copy_names())

    def bytes_to_download(self, mirror: Mirror) -> int | None:
        """How many it would take to get them; None where nobody tells."""
        return mirror.size(self.copy_names(), self.source)  # None for a model, whose name is no URL

    def fetch(self, mirror: Mirror, finding: Finding) -> None:
        """Get what is missing, and repair what is damaged; the mirror is looked into first.

        Raises:
            MmfError: they cannot be downloaded.
            DataError: they cannot be repaired, or what came is not what it should be.
        """
        if error := self.no_source(finding):
            raise error

    def with_source(self) -> Input:
        """The same files, with where to download them, as far as the zoo of the installed MMF tells."""
        return self


@dataclass(frozen=True)
class UrlFile(Input):
    """A file that its library would download, and whose name, the end of its URL, holds its hash."""

    def fetch(self, mirror: Mirror, finding: Finding) -> None:
        """Copy or download it."""
        [target] = self.files()
        self.folder.mkdir(parents=True, exist_ok=True)
        for found in self.copies(mirror):
            if not contradicts_hash(target, file_digest(found).hex()):
                with replacing(target) as temporary:
                    shutil.copyfile(found, temporary)
                return
            _log.warning("%s: not what its name says", found)
        mirror.download(self.names, self.source, target, self.title, hash_in_name(target))


def only(files: Iterable[Path], hashes: Manifest) -> Manifest | None:
    """The hashes of some files alone; None where the list lacks one of them."""
    names = {hashes.folder / name: name for name in hashes.files}
    if not names.keys() >= set(files):
        return None
    return replace(hashes, files={names[path]: hashes.files[names[path]] for path in files})

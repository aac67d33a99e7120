"""Files that came out of an archive: of MMF's zoo, or of the user's."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mmf_win.console import Progress, format_size
from mmf_win.dataset.region_features import choose_features, mark_built, read_built_version
from mmf_win.errors import (
    PERMISSION_ERRNOS,
    ArchiveError,
    DamagedFeaturesError,
    DataError,
    MmfEnvironmentError,
    UsageError,
)
from mmf_win.files import remove
from mmf_win.inputs.feature_lmdb import missing_archive_hint, read_image_keys, rebuild_features_hint
from mmf_win.inputs.input_files import InputFiles, Mirror, restrict_manifest
from mmf_win.integrity import torch_file
from mmf_win.integrity.manifest import Manifest, load_intact_manifest, load_manifest_notes
from mmf_win.integrity.verify import LOCK_NAME, FileProblem, VerificationResult, find_damage, record_hashes
from mmf_win.locking import file_lock
from mmf_win.unpacking.extract import NameChooser, choose_all, extract_verified
from mmf_win.unpacking.staging import finish_installation, is_install_incomplete, require_complete_install
from mmf_win.upstream.install import find_mmf
from mmf_win.upstream.zoo import Zoo, ZooEntry

_CHECKPOINT_PATTERNS = ("*.ckpt", "*.pth", "*.pt")  # mmf.utils.checkpoint.ALLOWED_CHECKPOINT_EXTS

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArchiveInput(InputFiles):
    """Files that came out of an archive, or of which nobody knows better, with a manifest beside them.

    Without names, they are the checkpoints in the folder. MMF's zoo may have their archive as its ``entry``,
    of which they are the members that ``choose`` names.
    """

    disk_space_factor = 3
    entry: ZooEntry | None = None
    choose: NameChooser = choose_all

    def files(self) -> list[Path]:
        """The files that a run opens."""
        found = (path for pattern in _CHECKPOINT_PATTERNS for path in self.folder.glob(pattern))
        return super().files() if self.names else sorted(found)

    def verify(self, *, full: bool = False, record: bool = True) -> VerificationResult:
        """Verify them, and tell MMF of what is intact; it downloads it again otherwise."""
        finding = super().verify(full=full, record=record)
        if record and self.entry and finding.is_usable:
            with suppress(OSError):  # of a folder that is read-only
                mark_built(self.entry.marker, self.entry.version)
        return finding

    def _load_manifest(self) -> Manifest | None:
        require_complete_install(self.folder)
        manifest, entry = Manifest.load(self.folder), self.entry
        made_of = manifest.source if manifest and manifest.hash_origin == "published" else None
        if made_of and entry and entry.sha256 not in (None, made_of.sha256):
            wanted = f"than the installed MMF's {entry.file_name}"
            raise DataError(f"{self.folder}: made of another archive ({made_of.name}) {wanted}")
        return manifest

    def _verified_against(self, files: Iterable[Path], hashes: Manifest) -> str:
        return hashes.verified_against

    def _verify_hashes(
        self, files: Sequence[Path], hashes: Manifest | None, full: bool, record: bool
    ) -> tuple[Manifest | None, list[FileProblem]]:
        names = [path.relative_to(self.folder).as_posix() for path in files]
        if hashes is None or restrict_manifest(files, hashes) is None:
            self._require_acceptable(files)
            if not record:
                return None, []
            try:
                listed = {*names, *(hashes.files if hashes else ())}
                return record_hashes(self.folder, listed, title=f"Recording {self.title}"), []
            except OSError as error:
                if error.errno in PERMISSION_ERRNOS:
                    return None, []
                raise
        return hashes, find_damage(hashes, full=full, only_files=names, title=f"Verifying {self.title}")

    def _require_acceptable(self, files: Sequence[Path]) -> None:
        """Refuse files of another version of MMF, damaged ones, and those whose archive lies beside them.

        MMF has unpacked these, perhaps in part.
        """
        if self.entry and self.entry.archive.is_file():
            archive = self.entry.archive.name
            message = f"{self.folder}: MMF unpacked {archive} here, and does not verify what it writes"
            with suppress(OSError), file_lock(self.folder / LOCK_NAME):  # else nobody can unpack it again
                raise DataError(message)
        if self.entry and (version := read_built_version(self.entry.marker)) not in (
            None,
            self.entry.version,
        ):
            by_mmf = f"version {version} by MMF's {self.entry.marker.name}"
            raise DataError(f"{self.folder}: {by_mmf}, and the installed MMF wants {self.entry.version}")
        self._require_structure(files)

    def _require_structure(self, files: Sequence[Path]) -> None:
        """Refuse files that are damaged by their format, where there is nothing to verify them against."""
        for path in filter(_is_checkpoint, files):
            with Progress(f"Reading {self.title}", path.stat().st_size) as bar:
                problem = torch_file.find_problem(path, bar.advance)
            if problem:
                raise DataError(f"{path}: {problem}")

    def _load_any_manifest(self) -> Manifest:
        """The manifest of the folder; without files where it is damaged or missing."""
        return (
            load_intact_manifest(self.folder) or load_manifest_notes(self.folder) or Manifest(self.folder, {})
        )

    def published_origin(self) -> tuple[str | None, str | None]:
        """The archive's address and hash."""
        return (self.entry.url, self.entry.sha256) if self.entry else (None, None)

    def unrepairable_error(self, finding: VerificationResult) -> DataError | None:
        """What mmfw has built of the user's own files is in no archive."""
        known = self._load_any_manifest()
        is_in_archive = known.hash_origin != "built" and (self.entry or known.source)
        return None if is_in_archive else super().unrepairable_error(finding)

    def mirror_file_names(self) -> Sequence[str]:
        """What the archive is called."""
        known = self._load_any_manifest()
        names = (
            *([known.source.name] if known.source else []),
            *(self.entry.archive_names if self.entry else []),
        )
        return [] if known.hash_origin == "built" else list(dict.fromkeys(names))

    def bytes_to_download(self, mirror: Mirror) -> int | None:
        """The size of the archive; none where that is here."""
        names, (url, _) = self.mirror_file_names(), self.published_origin()
        if names and self.entry and self._find_archives(self._load_any_manifest(), mirror):
            return 0
        return mirror.download_size(names, url) if names else None

    def _find_archives(self, manifest: Manifest, mirror: Mirror) -> list[Path]:
        """The archives on this machine: where MMF leaves it, where that of the files lay, the mirror's."""
        last = [Path(manifest.source.path)] if manifest.source and manifest.source.sha256 else []
        there = dict.fromkeys([self._archive_path(), *last])
        return [*filter(Path.is_file, there), *mirror.find_files(self.mirror_file_names())]

    def _archive_path(self) -> Path:
        """Where the archive goes; a configuration may read from another folder than that of the zoo's key."""
        return self.entry.archive if self.entry else self.folder / "".join(self.mirror_file_names()[:1])

    def fetch(self, mirror: Mirror, finding: VerificationResult) -> None:
        """Unpack the first archive that holds the files as they should be, downloading one if none does."""
        if is_install_incomplete(self.folder):
            finish_installation(self.folder)
            if self.verify().is_usable:
                return
        super().fetch(mirror, finding)
        known, archive, (url, sha256) = (
            self._load_any_manifest(),
            self._archive_path(),
            self.published_origin(),
        )
        made_of = known.source
        own = made_of if made_of and known.hash_origin != "published" and made_of.sha256 != sha256 else None
        for there in self._find_archives(known, mirror):
            if own and not own.is_same(there):
                _log.warning("%s is not the archive that the %s were made of", there, self.title)
                continue
            try:
                return self._unpack(there, mirror, None if own else sha256)
            except ArchiveError as error:
                _log.warning("%s", error)
        if own:
            message = f"{self.folder}: made of {own.name}, which is not an archive of MMF's zoo"
            raise DataError(message, hint=missing_archive_hint(own.name, self.folder))
        self._require_replaceable(known, finding)
        archive.parent.mkdir(parents=True, exist_ok=True)
        mirror.download(self.mirror_file_names(), url, archive, self.title, sha256)
        self._unpack(archive, mirror, sha256)
        if mirror.keep_archives:
            _log.info("%s (%s) is kept to repair from", archive, format_size(archive.stat().st_size))
        else:
            remove(archive)

    def _require_replaceable(self, manifest: Manifest, finding: VerificationResult) -> None:
        """Refuse to download what may not be what the files came out of."""

    def _unpack(self, archive: Path, mirror: Mirror, sha256: str | None) -> None:
        def check(new: Path) -> None:
            named = all((new / name).is_file() for name in self.names)
            if not (named if self.names else any(map(_is_checkpoint, new.rglob("*")))):
                message = f"{archive}: it does not hold the {self.title}"
                raise ArchiveError(message, hint="get another copy of it")

        extract_verified(
            archive,
            self.folder,
            ask=mirror.ask,
            choose=self.choose,
            expected_sha256=sha256,
            validate=check,
            obsolete_paths=[self.entry.marker] if self.entry else [],
            title=f"Unpacking {self.title}",
        )

    def with_source(self) -> ArchiveInput:
        """The same files, with the entry of the installed MMF's zoo."""
        if self.entry:
            return self
        dataset = self.places.dataset
        part = {dataset.features: "features", dataset.root / "extras": "extras"}.get(self.folder)
        try:
            zoo = Zoo(find_mmf().root, self.places)
            entry = zoo.dataset_entry(part) if part else zoo.model_entry(self.folder.name)
        except (MmfEnvironmentError, UsageError):
            return self
        return replace(self, entry=entry) if entry and (part or entry.folder == self.folder) else self


@dataclass(frozen=True)
class RegionFeaturesInput(ArchiveInput):
    """An LMDB of region features, which mmfw may have built of the user's own files."""

    choose: NameChooser = choose_features

    def lmdb(self) -> Path:
        """Its folder."""
        return self.files()[0].parent

    def _verify_hashes(
        self, files: Sequence[Path], hashes: Manifest | None, full: bool, record: bool
    ) -> tuple[Manifest | None, list[FileProblem]]:
        found = super()._verify_hashes(files, hashes, full, record)
        if full and hashes and not found[1]:
            with suppress(DamagedFeaturesError):  # it came so: a run says what is wrong with it
                read_image_keys(self.lmdb(), read_records=True)  # a hash does not tell what MMF would run
        return found

    def _require_structure(self, files: Sequence[Path]) -> None:
        read_image_keys(self.lmdb(), read_records=True)

    def unrepairable_error(self, finding: VerificationResult) -> DataError | None:
        """As of all archives; the hint tells how to make others."""
        return super().unrepairable_error(finding) and self._damaged_features_error(finding)

    def _require_replaceable(self, manifest: Manifest, finding: VerificationResult) -> None:
        if finding.state == "damaged" and manifest.source is None:
            raise self._damaged_features_error(finding, "; nothing tells where they came from")

    def _damaged_features_error(self, finding: VerificationResult, detail: str = "") -> DataError:
        told = "; ".join(finding.problems)
        where = "" if told.startswith(str(self.folder)) else f"{self.folder}: "
        message = f"{where}{told}{detail}"
        return DamagedFeaturesError(message, hint=rebuild_features_hint(self.lmdb()))


def _is_checkpoint(path: Path) -> bool:
    return any(map(path.match, _CHECKPOINT_PATTERNS))

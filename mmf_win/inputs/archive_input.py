"""Input files that were unpacked from an archive, either of MMF's zoo or of the user."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mmf_win import errors
from mmf_win.console import Progress, format_size
from mmf_win.dataset.region_features import choose_features, mark_built, read_built_version
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
    """Files from an archive, or files of unknown origin, with a manifest in the same folder.

    Attributes:
        names: The files that a run opens; if empty, the checkpoints in the folder.
        entry: The archive's entry in MMF's zoo, if it has one.
        choose: Returns the target name of an archive member, or None to skip it.
    """

    disk_space_factor = 3
    entry: ZooEntry | None = None
    choose: NameChooser = choose_all

    def files(self) -> list[Path]:
        """Return the files that a run opens."""
        checkpoints = (path for pattern in _CHECKPOINT_PATTERNS for path in self.folder.glob(pattern))
        return super().files() if self.names else sorted(checkpoints)

    def verify(self, *, full: bool = False, record: bool = True) -> VerificationResult:
        """Verify the files as :meth:`InputFiles.verify` does, and write MMF's marker if they are usable.

        Without its marker, MMF downloads the files again.

        Returns:
            The state of the files.
        """
        result = super().verify(full=full, record=record)
        if record and self.entry and result.is_usable:
            with suppress(OSError):  # the folder may be read-only
                mark_built(self.entry.marker, self.entry.version)
        return result

    def _load_manifest(self) -> Manifest | None:
        require_complete_install(self.folder)
        manifest, entry = Manifest.load(self.folder), self.entry
        source = manifest.source if manifest and manifest.hash_origin == "published" else None
        if source and entry and entry.sha256 not in (None, source.sha256):
            problem = f"unpacked from {source.name}, but the installed MMF needs {entry.file_name}"
            raise errors.DataError(f"{self.folder}: {problem}")
        return manifest

    def _verified_against(self, _files: Iterable[Path], manifest: Manifest) -> str:
        return manifest.verified_against

    def _verify_hashes(
        self, files: Sequence[Path], manifest: Manifest | None, full: bool, record: bool
    ) -> tuple[Manifest | None, list[FileProblem]]:
        names = [path.relative_to(self.folder).as_posix() for path in files]
        if manifest is None or restrict_manifest(files, manifest) is None:
            self._require_acceptable(files)
            if not record:
                return None, []
            try:
                recorded_names = {*names, *(manifest.files if manifest else ())}
                return record_hashes(self.folder, recorded_names, title=f"Recording {self.title}"), []
            except OSError as error:
                if error.errno in errors.PERMISSION_ERRNOS:
                    return None, []
                raise
        return manifest, find_damage(manifest, full=full, only_files=names, title=f"Verifying {self.title}")

    def _require_acceptable(self, files: Sequence[Path]) -> None:
        """Refuse files of another version, damaged files, and files that MMF unpacked, perhaps only in part.

        MMF has unpacked the files if its archive is still in the folder.

        Raises:
            DataError: The files must not be used.
        """
        if self.entry and self.entry.archive.is_file():
            archive = self.entry.archive.name
            message = f"{self.folder}: unpacked from {archive} by MMF, which does not verify the files"
            # Skipped without write access: then the archive cannot be unpacked again.
            with suppress(OSError), file_lock(self.folder / LOCK_NAME):
                raise errors.DataError(message)
        if self.entry and (version := read_built_version(self.entry.marker)) not in (None, self.entry.version):
            origin = f"contains version {version} according to {self.entry.marker.name}"
            problem = f"{origin}, but the installed MMF needs version {self.entry.version}"
            raise errors.DataError(f"{self.folder}: {problem}")
        self._require_structure(files)

    def _require_structure(self, files: Sequence[Path]) -> None:
        """Refuse checkpoints whose format is damaged, for files without recorded hashes.

        Raises:
            DataError: A checkpoint is damaged.
        """
        for path in filter(_is_checkpoint, files):
            with Progress(f"Reading {self.title}", path.stat().st_size) as bar:
                problem = torch_file.find_problem(path, bar.advance)
            if problem:
                raise errors.DataError(f"{path}: {problem}")

    def _load_any_manifest(self) -> Manifest:
        """Load the folder's manifest, without files if it is damaged or missing."""
        return load_intact_manifest(self.folder) or load_manifest_notes(self.folder) or Manifest(self.folder, {})

    def published_origin(self) -> tuple[str | None, str | None]:
        """Return the URL and the SHA-256 of the archive."""
        return (self.entry.url, self.entry.sha256) if self.entry else (None, None)

    def unrepairable_error(self, result: VerificationResult) -> errors.DataError | None:
        """Return an error if no archive contains the files, such as files built by mmfw."""
        manifest = self._load_any_manifest()
        is_in_archive = manifest.hash_origin != "built" and (self.entry or manifest.source)
        return None if is_in_archive else super().unrepairable_error(result)

    def mirror_file_names(self) -> Sequence[str]:
        """Return the possible file names of the archive."""
        manifest = self._load_any_manifest()
        names = [manifest.source.name] if manifest.source else []
        names += self.entry.archive_names if self.entry else []
        return [] if manifest.hash_origin == "built" else list(dict.fromkeys(names))

    def bytes_to_download(self, mirror: Mirror) -> int | None:
        """Return the size of the archive, or 0 if it is on this machine."""
        names, (url, _) = self.mirror_file_names(), self.published_origin()
        if names and self.entry and self._find_archives(self._load_any_manifest(), mirror):
            return 0
        return mirror.download_size(names, url) if names else None

    def _find_archives(self, manifest: Manifest, mirror: Mirror) -> list[Path]:
        """Return the archives on this machine: MMF's download, the recorded origin and the mirror's files."""
        recorded_paths = [Path(manifest.source.path)] if manifest.source and manifest.source.sha256 else []
        candidates = dict.fromkeys([self._archive_path(), *recorded_paths])
        return [*filter(Path.is_file, candidates), *mirror.find_files(self.mirror_file_names())]

    def _archive_path(self) -> Path:
        """Return where to download the archive; the zoo's folder may differ from the configured folder."""
        return self.entry.archive if self.entry else self.folder / "".join(self.mirror_file_names()[:1])

    def fetch(self, mirror: Mirror, result: VerificationResult) -> None:
        """Unpack the first archive that contains the intact files; download it if there is none."""
        if is_install_incomplete(self.folder):
            finish_installation(self.folder)
            if self.verify().is_usable:
                return
        super().fetch(mirror, result)
        manifest, archive, (url, sha256) = (self._load_any_manifest(), self._archive_path(), self.published_origin())
        source = manifest.source
        user_archive = source if source and manifest.hash_origin != "published" and source.sha256 != sha256 else None
        for candidate in self._find_archives(manifest, mirror):
            if user_archive and not user_archive.is_same(candidate):
                _log.warning("%s is not the archive that the %s came from", candidate, self.title)
                continue
            try:
                self._unpack(candidate, mirror, None if user_archive else sha256)
                return
            except errors.ArchiveError as error:
                _log.warning("%s", error)
        if user_archive:
            message = f"{self.folder}: unpacked from {user_archive.name}, which is not in MMF's zoo"
            raise errors.DataError(message, hint=missing_archive_hint(user_archive.name, self.folder))
        self._require_replaceable(manifest, result)
        archive.parent.mkdir(parents=True, exist_ok=True)
        mirror.download(self.mirror_file_names(), url, archive, self.title, sha256)
        self._unpack(archive, mirror, sha256)
        if mirror.keep_archives:
            _log.info("keeping %s (%s) for later repairs", archive, format_size(archive.stat().st_size))
        else:
            remove(archive)

    def _require_replaceable(self, manifest: Manifest, result: VerificationResult) -> None:
        """Refuse to replace files by a download that may have different content."""

    def _unpack(self, archive: Path, mirror: Mirror, sha256: str | None) -> None:
        def require_files(folder: Path) -> None:
            has_names = all((folder / name).is_file() for name in self.names)
            if not (has_names if self.names else any(map(_is_checkpoint, folder.rglob("*")))):
                message = f"{archive}: does not contain the {self.title}"
                raise errors.ArchiveError(message, hint="use another copy of the archive")

        extract_verified(
            archive,
            self.folder,
            ask=mirror.ask,
            choose=self.choose,
            expected_sha256=sha256,
            validate=require_files,
            obsolete_paths=[self.entry.marker] if self.entry else [],
            title=f"Unpacking {self.title}",
        )

    def with_source(self) -> ArchiveInput:
        """Return a copy with the entry of the installed MMF's zoo."""
        if self.entry:
            return self
        dataset = self.mmf_paths.dataset
        part = {dataset.features: "features", dataset.root / "extras": "extras"}.get(self.folder)
        try:
            zoo = Zoo(find_mmf().root, self.mmf_paths)
            entry = zoo.dataset_entry(part) if part else zoo.model_entry(self.folder.name)
        except (errors.MmfEnvironmentError, errors.UsageError):
            return self
        return replace(self, entry=entry) if entry and (part or entry.folder == self.folder) else self


@dataclass(frozen=True)
class RegionFeaturesInput(ArchiveInput):
    """LMDB of region features, from an archive or built by mmfw from the user's files."""

    choose: NameChooser = choose_features

    def lmdb(self) -> Path:
        """Return the LMDB's folder."""
        return self.files()[0].parent

    def _verify_hashes(
        self, files: Sequence[Path], manifest: Manifest | None, full: bool, record: bool
    ) -> tuple[Manifest | None, list[FileProblem]]:
        result = super()._verify_hashes(files, manifest, full, record)
        if full and manifest and not result[1]:
            # Intact features can be unsafe. Records that were damaged from the start are reported by the run.
            with suppress(errors.DamagedFeaturesError):
                read_image_keys(self.lmdb(), read_records=True)
        return result

    def _require_structure(self, _files: Sequence[Path]) -> None:
        read_image_keys(self.lmdb(), read_records=True)

    def unrepairable_error(self, result: VerificationResult) -> errors.DataError | None:
        """Return the same error as for other archives, with a hint how to build other features."""
        return super().unrepairable_error(result) and self._damaged_features_error(result)

    def _require_replaceable(self, manifest: Manifest, result: VerificationResult) -> None:
        if result.state == "damaged" and manifest.source is None:
            raise self._damaged_features_error(result, "; their source is unknown")

    def _damaged_features_error(self, result: VerificationResult, detail: str = "") -> errors.DataError:
        problems = "; ".join(result.problems)
        prefix = "" if problems.startswith(str(self.folder)) else f"{self.folder}: "
        message = f"{prefix}{problems}{detail}"
        return errors.DamagedFeaturesError(message, hint=rebuild_features_hint(self.lmdb()))


def _is_checkpoint(path: Path) -> bool:
    return any(map(path.match, _CHECKPOINT_PATTERNS))

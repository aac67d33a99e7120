"""Prediction targets: a split of the dataset, or memes given by the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mmf_win.dataset.annotations import AnnotationFile, AnnotationRow, is_valid_unicode, require_split
from mmf_win.dataset.user_memes import assign_custom_ids, read_table, resolve_image_paths, write_annotations
from mmf_win.errors import DatasetError, UnreadableImageError, UsageError
from mmf_win.images import open_image
from mmf_win.integrity.digest import file_digest
from mmf_win.paths import MmfPaths, short_portable_name
from mmf_win.upstream import default_settings
from mmf_win.upstream.config import Settings


@dataclass(frozen=True)
class PredictionTarget:
    """Memes to predict.

    Attributes:
        name: Name of the split, or the name that stands for user data in file names.
        annotation_file: Annotation file that MMF reads.
        user_file: Table or image given by the user; ``None`` for a split.
    """

    name: str
    annotation_file: AnnotationFile
    user_file: Path | None = None

    @classmethod
    def from_split(cls, mmf_paths: MmfPaths, split: str) -> PredictionTarget:
        """Return the target for a split of the dataset.

        Raises:
            DatasetError: The split does not exist, or contains no memes.
        """
        file = AnnotationFile(require_split(mmf_paths.dataset, split))
        if not file.lines:
            raise DatasetError(f"{file.path}: no memes found")
        return cls(split, file)

    @classmethod
    def from_table(cls, table: Path, scratch: Path) -> PredictionTarget:
        """Return the target for a user's table of memes.

        Args:
            table: The table.
            scratch: Folder into which the annotations for MMF are written.

        Raises:
            DatasetError: The table is invalid, or images are missing.
        """
        return cls._from_rows(table, resolve_image_paths(assign_custom_ids(read_table(table)), table), scratch)

    @classmethod
    def from_image(cls, image: Path, text: str, scratch: Path) -> PredictionTarget:
        """Return the target for one image and its text.

        Args:
            image: The image.
            text: The text.
            scratch: Folder into which the annotations for MMF are written.

        Returns:
            The target.

        Raises:
            DatasetError: The image does not exist.
            UnreadableImageError: The file is not an image.
            UsageError: The text is not valid Unicode.
        """
        if not image.is_file():
            raise DatasetError(f"{image}: image not found", hint="check the path")
        if not is_valid_unicode(text):
            raise UsageError("the text contains an unpaired surrogate")
        try:
            open_image(image)
        except Exception as error:  # Pillow raises many types of exceptions for damaged files
            hint = "pass an image with --image, or a table of memes with --memes"
            raise UnreadableImageError(f"{image}: image cannot be read ({error})", hint=hint) from None
        row = AnnotationRow(1, image.absolute().as_posix(), text, None, 1, image.name)
        return cls._from_rows(image, [row], scratch)

    @classmethod
    def _from_rows(cls, source: Path, rows: Sequence[AnnotationRow], scratch: Path) -> PredictionTarget:
        annotations, table = scratch / "memes.jsonl", source.absolute()
        write_annotations(annotations, rows)
        return cls(short_portable_name(f"memes-{source.stem}"), AnnotationFile(annotations, str(table)), table)

    @property
    def is_user_data(self) -> bool:
        """True for user data, False for a split of the dataset."""
        return self.user_file is not None

    @property
    def title(self) -> str:
        """Name of the split, or of the user's file."""
        return self.name if self.user_file is None else self.user_file.name

    @property
    def source(self) -> Path:
        """The user's file, or the annotation file of a split."""
        return self.user_file or self.annotation_file.path

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the source."""
        return self.annotation_file.sha256 if self.user_file is None else file_digest(self.user_file).hex()

    @property
    def rows(self) -> list[AnnotationRow]:
        """The memes.

        Raises:
            DatasetError: The annotations are invalid.
        """
        return self.annotation_file.rows

    @property
    def settings(self) -> Settings:
        """MMF settings that replace the run's own splits, which may be missing, with these memes."""
        if self.is_user_data:  # with absolute paths of the images
            file = self.annotation_file.path
            return default_settings.settings_for_all_splits(annotations=file, images=file.parent)
        annotations = default_settings.ANNOTATIONS_TEMPLATE.format(self.name)
        return default_settings.settings_for_all_splits(annotations=annotations)

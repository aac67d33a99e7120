"""What a run predicts: a split of the dataset, or memes of the user's own."""

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
        name: the split's, or what stands for it in the names of files.
        file: the annotation file that MMF reads.
        table: the user's table of own memes; None for a split.
    """

    name: str
    annotation_file: AnnotationFile
    user_file: Path | None = None

    @classmethod
    def from_split(cls, mmf_paths: MmfPaths, split: str) -> PredictionTarget:
        """A split on disk. Raises DatasetError where it is not there, or without memes."""
        file = AnnotationFile(require_split(mmf_paths.dataset, split))
        if not file.lines:
            raise DatasetError(f"{file.path}: there are no memes in it")
        return cls(split, file)

    @classmethod
    def from_table(cls, table: Path, scratch: Path) -> PredictionTarget:
        """The memes of a user's table; the annotations that MMF reads are written to ``scratch``.

        Raises DatasetError where the table cannot be used, or images are missing.
        """
        return cls._from_rows(
            table, resolve_image_paths(assign_custom_ids(read_table(table)), table), scratch
        )

    @classmethod
    def from_image(cls, image: Path, text: str, scratch: Path) -> PredictionTarget:
        """One image and its text; a DatasetError where the image is none, a UsageError where the text is."""
        if not image.is_file():
            raise DatasetError(f"{image}: there is no such image")
        if not is_valid_unicode(text):
            raise UsageError("the text holds half of a surrogate pair, which is no letter")
        try:
            open_image(image)
        except Exception as error:  # Pillow raises whatever a broken file leads it to
            hint = "--image takes a picture, and --memes a table of memes"
            raise UnreadableImageError(f"{image}: cannot be read as a picture ({error})", hint=hint) from None
        return cls._from_rows(
            image, [AnnotationRow(1, image.absolute().as_posix(), text, None, 1, image.name)], scratch
        )

    @classmethod
    def _from_rows(cls, source: Path, rows: Sequence[AnnotationRow], scratch: Path) -> PredictionTarget:
        annotations, table = scratch / "memes.jsonl", source.absolute()
        write_annotations(annotations, rows)
        return cls(
            short_portable_name(f"memes-{source.stem}"), AnnotationFile(annotations, str(table)), table
        )

    @property
    def is_user_data(self) -> bool:
        """Whether these are memes of the user's own."""
        return self.user_file is not None

    @property
    def title(self) -> str:
        """What the user calls them."""
        return self.name if self.user_file is None else self.user_file.name

    @property
    def source(self) -> Path:
        """The file that the user knows."""
        return self.user_file or self.annotation_file.path

    @cached_property
    def sha256(self) -> str:
        """The hash of that file."""
        return self.annotation_file.sha256 if self.user_file is None else file_digest(self.user_file).hex()

    @property
    def rows(self) -> list[AnnotationRow]:
        """The memes. Raises DatasetError where the annotations cannot be used."""
        return self.annotation_file.rows

    @property
    def settings(self) -> Settings:
        """MMF's keys that name these memes, in place of the run's own splits, which need not be there."""
        if self.is_user_data:  # their images are named by absolute paths
            return default_settings.settings_for_all_splits(
                annotations=self.annotation_file.path, images=self.annotation_file.path.parent
            )
        return default_settings.settings_for_all_splits(
            annotations=default_settings.ANNOTATIONS_TEMPLATE.format(self.name)
        )

"""A picture that cannot be loaded ends training with an error that names neither the file nor the meme."""

from __future__ import annotations

import errno
from functools import wraps
from types import ModuleType
from typing import Any

from mmf_win.errors import UnreadableImage
from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, Cure

_IMAGES = "mmf.datasets.databases.image_database"
_ANNOTATIONS = "mmf.datasets.databases.annotation_database"
# What says nothing about the file.
_OF_THE_MACHINE = {errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def _name_files_and_rows(module: ModuleType) -> None:
    database: Any = module.ImageDatabase
    open_image, item = database.open_image, database.__getitem__

    @wraps(open_image)
    def named(self: Any, path: str) -> Any:
        try:
            return open_image(self, path)
        except MemoryError:
            raise
        except Exception as error:  # Pillow raises whatever a broken file leads it to
            if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
                raise
            missing = isinstance(error, FileNotFoundError)
            what = "there is no such picture" if missing else f"the picture cannot be read ({_reason(error)})"
            raise UnreadableImage(f"{path}: {what}") from None

    @wraps(item)
    def with_row(self: Any, index: int) -> Any:
        try:
            return item(self, index)
        except UnreadableImage as error:
            row = self.annotation_db[index]
            meme = row.get("own_id", row.get("id"))
            where = f"row {index + 1} of {self.annotation_db.mmfw_file}"
            raise UnreadableImage(f"{error}; it is that of meme {meme}, in {where}") from None

    database.open_image, database.__getitem__ = named, with_row


def _remember_the_file(module: ModuleType) -> None:
    database: Any = module.AnnotationDatabase
    init = database.__init__

    @wraps(init)
    def remembered(self: Any, config: Any, path: str, *args: Any, **kwargs: Any) -> None:
        self.mmfw_file = path
        init(self, config, path, *args, **kwargs)

    database.__init__ = remembered


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _apply(context: object) -> None:
    importing.after_import(_IMAGES, _name_files_and_rows)
    importing.after_import(_ANNOTATIONS, _remember_the_file)


CURE = Cure(
    name="image-errors",
    cures="ImageDatabase: an error about a picture names neither its file nor the meme",
    mmf=BOTH,
    library="any",
    needed=lambda context: "def open_image" in context.source(_IMAGES),
    apply=_apply,
)

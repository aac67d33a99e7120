"""Patches for how MMF reads annotations, images and region features, and writes logs and reports."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from mmf_win.compat.patch import RC10, Edit, Patch, single_edit, wrap
from mmf_win.dataset.annotations import AnnotationFile, to_mmf_annotations
from mmf_win.errors import UnreadableImageError
from mmf_win.features.safe_pickle import load_npy, load_pickle, require_features, translate_pickle_errors
from mmf_win.images import open_image
from mmf_win.upstream.overrides import escape_interpolation, split_paths

_log = logging.getLogger(__name__)

_ANNOTATIONS = "mmf.datasets.databases.annotation_database"
_IMAGES = "mmf.datasets.databases.image_database"
_FEATURES = "mmf.datasets.databases.readers.feature_readers"
_MEMES = "mmf.datasets.builders.hateful_memes.dataset"
_PREDICTION_FUNCTIONS = ("generate_prediction", "generate_binary_prediction")  # of 1.0.0rc10 and of 1.0.0rc12
_DEFAULT_FILE_EXISTS = "PathManager.exists(test_path)"
_CONFIGURED_FILE_EXISTS = "PathManager.exists(os.path.join(config.data_dir, config.annotations.train[0]))"
# Errors of the system that are not caused by the file.
_SYSTEM_ERRNOS = {errno.ENOMEM, errno.EMFILE, errno.ENFILE}


#: Annotation file of a path; cached, since MMF creates several datasets from it and it does not change.
cached_annotation_file = cache(AnnotationFile)


def _load_jsonl(self: Any, path: str) -> None:
    self.data, self.start_idx, self.mmfw_file = (to_mmf_annotations(cached_annotation_file(Path(path))), 0, path)


def _patch_image_opening(module: ModuleType) -> None:
    """Open images like exported models and reports do; log how many are rotated in this process."""
    loader = getattr(module, "default_loader", module.tv_helpers.default_loader)
    rotated_paths: set[str] = set()

    @wrap(module.ImageDatabase, "open_image")
    def open_with_orientation(load: Any, self: Any, path: str) -> Any:
        if self.loader is not loader:
            return load(self, path)
        # The boxes of region features refer to the stored orientation.
        image = open_image(Path(path), orient=not getattr(self.config, "use_features", False))
        if "orientation" in image.info and path not in rotated_paths:
            rotated_paths.add(path)
            if str(len(rotated_paths)).strip("0") == "1":  # 1, 10, 100 ...
                message = "%s: rotated according to its EXIF orientation (rotated images in this process: %d)"
                _log.warning(message, path, len(rotated_paths))
        return image


def _add_image_error_context(module: ModuleType) -> None:
    @wrap(module.ImageDatabase, "open_image")
    def open_or_name_file(open_image: Any, self: Any, path: str) -> Any:
        try:
            return open_image(self, path)
        except MemoryError:
            raise
        except Exception as error:  # Pillow may raise any exception for a damaged file
            if isinstance(error, OSError) and error.errno in _SYSTEM_ERRNOS:
                raise
            missing = isinstance(error, FileNotFoundError)
            reason = " ".join(str(error).split()) or type(error).__name__
            problem = "image not found" if missing else f"image cannot be read ({reason})"
            raise UnreadableImageError(f"{Path(path)}: {problem}") from None

    @wrap(module.ImageDatabase, "__getitem__")
    def get_or_name_row(get_item: Any, self: Any, index: int) -> Any:
        try:
            return get_item(self, index)
        except UnreadableImageError as error:
            file = getattr(self.annotation_db, "mmfw_file", "the annotations")
            if file is None:  # the rows come from a prediction request without a file
                raise
            row = self.annotation_db[index]
            meme = row.get("own_id", row.get("id"))
            where = f"row {index + 1} of {file}"
            raise UnreadableImageError(f"{error}; used by meme {meme} in {where}") from None


def _share_lmdb_environments(module: ModuleType) -> None:
    """Open each file only once for the process and its forked children.

    LMDB forbids using an environment after a fork because of its lock file. MMF opens it without a lock, so
    only a map of the file is shared; lmdb would not allow opening the file again in the child.
    """
    open_once = cache(module.lmdb.open)
    shared = SimpleNamespace(open=lambda path, **options: open_once(str(Path(path).resolve()), **options))
    module.lmdb = shared  # type: ignore[attr-defined]


def _restrict_lmdb_loader(module: ModuleType) -> None:
    @wrap(module.LMDBFeatureReader, "_load")
    def load_record(load: Any, self: Any, image_file_path: str) -> Any:
        with translate_pickle_errors(self.db_path, f"record {Path(image_file_path).stem}: "):
            return require_features(load(self, image_file_path))

    _restrict_loaders(module)


def _restrict_loaders(module: Any) -> None:
    """Make a module of MMF read pickles and ``.npy`` files with mmfw's loaders, which run no code.

    Only the module's own names ``pickle`` and ``np`` are replaced (see :mod:`mmf_win.features.safe_pickle`).
    """

    def load_file(load: Callable[[bytes], Any], file: Any, **_: object) -> Any:
        path = Path(getattr(file, "name", file))
        content = path.read_bytes()
        with translate_pickle_errors(path, damage=(Exception,)):
            return load(content)

    if hasattr(module, "pickle"):
        module.pickle = SimpleNamespace(load=partial(load_file, load_pickle), loads=load_pickle)
    if hasattr(module, "np"):
        module.np = SimpleNamespace(**{**vars(module.np), "load": partial(load_file, load_npy)})


def generate_prediction(report: Any) -> list[dict[str, Any]]:
    """Return the same predictions as MMF's own function, with three transfers per batch.

    Args:
        report: MMF's report, with ``scores`` (logits, float [rows, 2]) and ``id`` (int [rows]).

    Returns:
        One dictionary per row with ``id``, ``proba`` (probability of class 1) and ``label``.
    """
    scores = report.scores.softmax(dim=1)
    rows = zip(report.id.tolist(), scores[:, 1].tolist(), scores.max(1).indices.tolist(), strict=True)
    return [{"id": id_, "proba": proba, "label": label} for id_, proba, label in rows]


PATCHES = (
    Patch(
        name="annotation-files",
        problem="AnnotationDatabase: fails on a byte order mark, blank lines, a JSON list and null labels",
        after_import={_ANNOTATIONS: lambda module: setattr(module.AnnotationDatabase, "_load_jsonl", _load_jsonl)},
    ),
    Patch(
        name="data-elsewhere",
        problem="HatefulMemesBuilder: requires train.jsonl in its data folder even for other annotations",
        library="user memes without the dataset",
        edits=single_edit(
            "mmf.datasets.builders.hateful_memes.builder",
            f"assert {_DEFAULT_FILE_EXISTS}",
            f"assert {_DEFAULT_FILE_EXISTS} or {_CONFIGURED_FILE_EXISTS}",
        ),
    ),
    Patch(
        name="names-of-folders",
        problem="MMFDataset and others: misinterpret a comma, brackets and ${...} in a path",
        edits=tuple(
            Edit(f"mmf.{module}", old, new.format(old), {"parts": split_paths, "literal": escape_interpolation})
            for module, old, new in (
                ("datasets.mmf_dataset", 'path.split(",")', "parts(path, self.config.data_dir)"),
                ("datasets.databases.features_database", 'path.split(",")', "parts(path)"),
                ("utils.checkpoint", "join(download_path, ", "join(glob.escape(download_path), "),
                ("utils.checkpoint", "glob(os.path.join(folder, ", "glob(os.path.join(glob.escape(folder), "),
                # 1.0.0rc12 creates another configuration from the resolved one.
                ("utils.configuration", "OmegaConf.to_container(self.config, resolve=True)", "literal({})"),
                ("utils.env", '"user_dir": user_dir', '"user_dir": literal(user_dir)'),
                ("utils.env", "user_dir = user_dir\n", "user_dir = literal(user_dir)\n"),
            )
        ),
    ),
    Patch(
        name="image-paths",
        problem="ImageDatabase: loads cat.jpg instead of cat.png if both exist; rc10 uses the current folder",
        edits=(
            Edit(
                _IMAGES,
                "for ext in tv_helpers.IMG_EXTENSIONS:",
                "for ext in () if PathManager.isfile(path) else tv_helpers.IMG_EXTENSIONS:",
            ),
            Edit(_IMAGES, "path = None\n", "image = os.path.join(self.base_path, image)\n"),  # as rc12 has it
        ),
    ),
    Patch(
        name="image-pixels",
        problem="ImageDatabase: clips 16-bit grey at 255, ignores EXIF orientation, rejects long PNG texts",
        after_import={_IMAGES: _patch_image_opening},
    ),
    Patch(
        name="image-errors",
        problem="ImageDatabase: an error about an image names neither its file nor the meme",
        after_import={_IMAGES: _add_image_error_context},
    ),
    Patch(
        name="pickles",
        problem="feature readers, encoders, AnnotationDatabase: unpickle any file, which may run any code",
        after_import={
            _FEATURES: _restrict_lmdb_loader,
            _ANNOTATIONS: _restrict_loaders,
            "mmf.modules.embeddings": _restrict_loaders,
            "mmf.modules.encoders": _restrict_loaders,
        },
    ),
    Patch(
        name="lmdb-handles",
        problem="LMDBFeatureReader: opens the feature file again for each split, which lmdb rejects",
        library="lmdb >= 1.4",
        after_import={_FEATURES: _share_lmdb_environments},
    ),
    Patch(
        name="predictions",
        problem="generate_prediction: waits for the GPU three times per meme because of .item()",
        after_import={
            _MEMES: lambda module: vars(module).update(dict.fromkeys(_PREDICTION_FUNCTIONS, generate_prediction))
        },
        is_optimization=True,
    ),
    Patch(
        name="logger-mapping",
        problem="Logger.log_progress: collections.Mapping moved to collections.abc",
        mmf_versions=RC10,
        library="Python >= 3.10",
        edits=single_edit("mmf.utils.logger", "collections.Mapping", "collections.abc.Mapping"),
    ),
    Patch(
        name="timer",
        problem="Timer.get_time_hhmmss: names of reports, logs and TensorBoard folders contain colons",
        library="Windows",
        edits=single_edit(
            "mmf.utils.timer", "return time.strftime(format)", 'return time.strftime(format).replace(":", "-")'
        ),
    ),
    Patch(
        name="csv-report",
        problem="TestReporter.csv_dump: opens the file without newline='', so Windows doubles line ends",
        library="Windows",
        edits=single_edit(
            "mmf.common.test_reporter",
            'PathManager.open(filepath, "w")',
            'open(filepath, "w", encoding="utf-8", newline="")',
        ),
    ),
)

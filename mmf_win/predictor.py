"""Predictor: a loaded model for programs that predict memes one by one."""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir, mkdtemp
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from mmf_win import errors
from mmf_win.console import hide_progress
from mmf_win.dataset.annotations import is_valid_unicode
from mmf_win.errors import DatasetError, MmfEnvironmentError, TrainingError, UnreadableImageError, UsageError
from mmf_win.export.exported_model import ExportedModel
from mmf_win.files import remove_tree, to_mmfw_error
from mmf_win.images import to_rgb
from mmf_win.paths import MmfPaths, expand_home
from mmf_win.results.evaluation import select_checkpoints
from mmf_win.runs import prediction
from mmf_win.runs.checkpoints import pin_checkpoint
from mmf_win.runs.model_process import ModelProcess
from mmf_win.runs.request import CommandOptions

if TYPE_CHECKING:
    import PIL.Image

Image: TypeAlias = "str | os.PathLike[str] | bytes | PIL.Image.Image"
_IMAGE_LABEL = "the image"
_MAX_TEMP_DIR_BYTES = 64  # in a longer folder for temporary files, the name of a socket would be too long


class Predictor:
    """Model that is loaded once and then predicts without the start-up time of ``mmfw predict``.

    ::

        from mmf_win import Predictor

        with Predictor("mmbt_grid") as predictor:
            predictor.predict("cat.jpg", "look at this cat")  # for example 0.8123
            pairs = [("cat.jpg", "look at this cat"), ("dog.jpg", "good dog")]
            for proba in predictor.predict_many(pairs):
                print(proba)

    The probabilities equal those of ``mmfw predict``. Images are paths, the bytes of image files, or Pillow
    images. The model runs in a process of its own, so this process does not import torch. The model process
    exits with this one; if it dies, it is restarted once per request. Threads may share a predictor, which
    handles one request at a time; forked processes may not.

    Args:
        model: A run (its ID, name or folder), of which the best checkpoint is used; a checkpoint file; or a
            folder written by ``mmfw export``.
        save_dir: Folder of runs; None for ``MMF_SAVE_DIR``, or else ``./save``.
        data_dir: Data folder of MMF; None for that of the run.
        cpu: Do not use a GPU.
        trust: Load the checkpoint even if it contains classes that torch refuses, and run code that belongs
            to the model.
        batch_size: Number of memes that :meth:`predict_many` passes to the model at once.

    Raises:
        MmfwError: The model cannot be loaded or needs region features. The class gives the kind of problem,
            ``hint`` the next step.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        save_dir: str | Path | None = None,
        data_dir: str | Path | None = None,
        cpu: bool = False,
        trust: bool = False,
        batch_size: int = 8,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size={batch_size!r}: must be a positive integer")
        self._batch_size = batch_size
        with _translate_os_errors():
            options = CommandOptions(cpu=cpu, trust=trust)
            self._model = _RestartingModel(_model_starter(str(model), data_dir, save_dir, options))
        self._close = weakref.finalize(self, self._model.close)

    def predict(self, image: Image, text: str) -> float:
        """Return the probability that a meme is hateful.

        Args:
            image: A path, the bytes of an image file, or a Pillow image.
            text: The text of the meme.

        Returns:
            A probability from 0 to 1.

        Raises:
            DatasetError: The image does not exist or cannot be decoded (UnreadableImageError).
            UsageError: An argument has another type, or the predictor is closed.
            TrainingError: The model process died, was restarted, and died again.
            MmfwError: The model process could not be restarted.
        """
        probas, error = self._predict_pairs([(image, text)])
        if error is not None:
            raise error
        return probas[0]

    def predict_many(self, pairs: Iterable[tuple[Image, str]]) -> Iterator[float]:
        """Predict pairs of image and text in batches; ``pairs`` is consumed lazily.

        Args:
            pairs: Images and texts, as in :meth:`predict`.

        Yields:
            The probability of each pair, in order.

        Raises:
            MmfwError: A pair is invalid or prediction failed, as in :meth:`predict`; the probabilities of all
                earlier pairs were yielded before.
        """
        remaining, probas = iter(pairs), [0.0]
        while probas:
            probas, error = self._predict_pairs(islice(remaining, self._batch_size))
            yield from probas
            if error is not None:
                raise error

    def close(self) -> None:
        """Stop the model process, after a request of another thread is finished."""
        with _translate_os_errors():
            self._close()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _predict_pairs(self, pairs: Iterable[tuple[Image, str]]) -> tuple[list[float], Exception | None]:
        """Return the probabilities up to the first invalid pair, and its error or that of ``pairs``."""
        rows: list[dict[str, Any]] = []
        first_error: Exception | None = None
        with _translate_os_errors(), TemporaryDirectory(prefix="mmfw-image-", ignore_cleanup_errors=True) as temp_dir:
            try:
                for pair in pairs:
                    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                        raise UsageError(f"{pair!a:.80}: not a pair of an image and a text")
                    image, text = pair
                    with _translate_os_errors():
                        file = _image_file(image, Path(temp_dir, str(len(rows)))).absolute()
                    if not isinstance(text, str) or not is_valid_unicode(text):
                        raise UsageError(f"{text!a:.80}: not a text, or contains an unpaired surrogate")
                    rows.append({"id": 1, "img": file.as_posix(), "text": text})
            except Exception as error:  # the caller's iterable may raise any error
                first_error = error
            reply = self._model.predict_rows(rows) if rows else {"probas": [], "error": None}
            if reply["error"]:
                name, message, hint = reply["error"]
                first_error = getattr(errors, name, MmfEnvironmentError)(_hide_temp_paths(message, temp_dir), hint=hint)
        return reply["probas"], first_error


class _RestartingModel:
    """Model process that is restarted after a crash.

    It has no reference to its predictor, so that the predictor can be garbage-collected.

    Args:
        starter: Context manager that yields a function, which starts a model process with files in a folder.
    """

    def __init__(self, starter: AbstractContextManager[Callable[[Path], ModelProcess]]) -> None:
        self._lock, self._closed, self._owner_pid = Lock(), False, os.getpid()
        # The path of a Unix socket is limited to about 100 bytes.
        is_short = sys.platform == "win32" or len(os.fsencode(gettempdir())) < _MAX_TEMP_DIR_BYTES
        self._folder = Path(mkdtemp(prefix="mmfw-", dir=None if is_short else "/tmp"))
        self._process: ModelProcess | None = None
        self._resources = ExitStack()
        try:
            with hide_progress():
                self._start = self._resources.enter_context(starter)
                self._process = self._start(self._folder)
        except BaseException:
            self.close()
            raise

    def predict_rows(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the reply to a request; if the process dies, repeat it in a new process."""
        if self._owner_pid != os.getpid():
            message = "this predictor belongs to another process, which created it"
            raise UsageError(message, hint="create a predictor in each process")
        with self._lock:
            for _ in range(2):
                if self._closed:
                    raise UsageError("this predictor is closed", hint="create a new predictor")
                self._folder.mkdir(exist_ok=True)  # the system may have cleaned up temporary files
                process = self._process = self._process or self._start(self._folder)
                try:
                    return process.predict_rows(rows)
                except (EOFError, OSError):
                    self._process = None
                    failure = process.exit_error()
                except BaseException:  # Ctrl+C: the next request must not get the answer to this one
                    self._process = None
                    process.close()
                    raise
            raise TrainingError(f"the model process died twice on this request: {failure}", hint=failure.hint)

    def close(self) -> None:
        """Stop the process permanently."""
        if self._owner_pid != os.getpid():  # called by the finalizer in an exiting forked process
            return
        with self._lock:
            self._closed = True
            try:
                if self._process is not None:
                    self._process.close()
            finally:
                self._resources.close()
                remove_tree(self._folder)


@contextmanager
def _translate_os_errors() -> Iterator[None]:
    """Convert OSError and MemoryError of the block to MmfwError."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise to_mmfw_error(error) from error


@contextmanager
def _model_starter(
    model: str, data_dir: str | Path | None, save_dir: str | Path | None, command_options: CommandOptions
) -> Iterator[Callable[[Path], ModelProcess]]:
    """Select a model, unchanged while the block runs; yield a function that starts its process."""
    path, paths = expand_home(model), MmfPaths.resolve(data_dir, save_dir)
    if (path / "model.json").is_file():
        yield ExportedModel.from_folder(path).start_model_process
        return
    selection = ([], [model]) if path.is_file() else ([model], ["best"])
    [selected] = select_checkpoints(paths.save_dir, *selection)
    paths = MmfPaths.resolve(data_dir or Path(selected.run.request().data_dir), save_dir)
    with pin_checkpoint(selected.run, selected.checkpoint, checked_file=selected.checked_file) as pin:

        @hide_progress()
        def start(scratch: Path) -> ModelProcess:
            with pin.restore_name_in_errors():
                process = prediction.start_model_process(
                    selected.run, paths, command_options, checkpoint=pin.path, scratch=scratch
                )
            try:
                pin.require_unchanged()
            except BaseException:
                process.close()
                raise
            return process

        yield start


def _image_file(image: object, temp_file: Path) -> Path:
    """Return the path of an image; bytes and Pillow images are written to ``temp_file``."""
    pil_module = sys.modules.get("PIL.Image")
    if isinstance(image, (str, os.PathLike)):
        path = Path(image)
        if not os.path.isfile(path):  # noqa: PTH113 - pathlib raises for a name that is too long
            raise DatasetError(f"{str(path)[:200]}: image not found")
        return path
    if isinstance(image, (bytes, bytearray, memoryview)):
        temp_file.write_bytes(image)
    elif pil_module is not None and isinstance(image, pil_module.Image):
        try:
            to_rgb(image).save(temp_file, "PPM")  # the pixels that models read, without loss
        except Exception as error:  # Pillow decodes lazily, so a damaged file raises any error only here
            raise UnreadableImageError(f"{_IMAGE_LABEL}: image cannot be read ({error})") from None
    else:
        hint = "pass a path, the bytes of an image file or a Pillow image"
        raise UsageError(f"{_IMAGE_LABEL} has the unsupported type {type(image).__name__}", hint=hint)
    return temp_file


def _hide_temp_paths(message: str, temp_dir: str) -> str:
    """Replace paths of temporary files in an error message; Python's messages may double backslashes."""
    spellings = (re.escape(form) for form in (temp_dir, temp_dir.replace("\\", "\\\\"), Path(temp_dir).as_posix()))
    return re.sub(rf"({'|'.join(spellings)})[\\/]+\d+", lambda _: _IMAGE_LABEL, message)

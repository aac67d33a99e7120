"""A model that stays warm, for programs that predict memes as they come."""

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
_MAX_TEMP_DIR_BYTES = 64  # bytes of the folder of temporary files


class Predictor:
    """A model that is loaded once, and then gives what ``mmfw predict`` gives, without its start::

        from mmf_win import Predictor

        with Predictor("mmbt_grid") as predictor:
            predictor.predict("cat.jpg", "look at this cat")  # such as 0.8123, that the meme is hateful
            pairs = [("cat.jpg", "look at this cat"), ("dog.jpg", "good dog")]
            for proba in predictor.predict_many(pairs):
                print(proba)

    Images are paths, bytes of image files, or images of Pillow. The model is in a process of its own, so this
    one imports no torch; that process ends with this one, and when it dies, is started anew once for a
    request. Threads may share a predictor, which answers them one after another; forked processes may not.

    Args:
        model: a run (its id, name or folder), whose best checkpoint is taken; the file of a checkpoint; or a
            folder that ``mmfw export`` has made.
        save_dir: where runs are kept; None for ``MMF_SAVE_DIR``, else ``./save``.
        data_dir: MMF's data folder; None for the run's own.
        cpu: use no GPU.
        trust: load the checkpoint even if it holds classes that torch refuses, and run code that comes with a
            model.
        batch_size: how many memes :meth:`predict_many` gives the model at once.

    Raises:
        MmfwError: the model cannot be loaded, or reads region features; the class says how, ``hint`` what to
            do.
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
            raise UsageError(f"batch_size={batch_size!r}: it must be a whole number of 1 or more")
        self._batch_size = batch_size
        with _translate_os_errors():
            self._model = _RestartingModel(
                _model_starter(str(model), data_dir, save_dir, CommandOptions(cpu=cpu, trust=trust))
            )
        self._close = weakref.finalize(self, self._model.close)

    def predict(self, image: Image, text: str) -> float:
        """The probability that a meme is hateful.

        Raises:
            DatasetError: there is no such image, or it cannot be read (UnreadableImage).
            UsageError: this is no image or no text, or the predictor is closed.
            TrainingError: the process died, was started anew, and died again.
            MmfwError: it could not be started anew; the class says how.
        """
        probas, failed = self._predict_pairs([(image, text)])
        if failed is not None:
            raise failed
        return probas[0]

    def predict_many(self, pairs: Iterable[tuple[Image, str]]) -> Iterator[float]:
        """The probabilities of images with their texts, in order; ``pairs`` are read as they are needed.

        Raises the errors of :meth:`predict`, after the probabilities of all pairs before a bad one.
        """
        rest, probas = iter(pairs), [0.0]
        while probas:
            probas, failed = self._predict_pairs(islice(rest, self._batch_size))
            yield from probas
            if failed is not None:
                raise failed

    def close(self) -> None:
        """End the process, after an answer for which another thread waits."""
        with _translate_os_errors():
            self._close()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _predict_pairs(self, pairs: Iterable[tuple[Image, str]]) -> tuple[list[float], Exception | None]:
        """The probabilities of pairs up to the first bad one, and the error of that or of their source."""
        rows: list[dict[str, Any]] = []
        failed: Exception | None = None
        with (
            _translate_os_errors(),
            TemporaryDirectory(prefix="mmfw-image-", ignore_cleanup_errors=True) as scratch,
        ):
            try:
                for pair in pairs:
                    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                        raise UsageError(f"{pair!a:.80}: this is no pair of an image and a text")
                    image, text = pair
                    with _translate_os_errors():
                        file = _image_file(image, Path(scratch, str(len(rows)))).absolute()
                    if not isinstance(text, str) or not is_valid_unicode(text):
                        raise UsageError(f"{text!a:.80}: this is no text, or holds half a surrogate pair")
                    rows.append({"id": 1, "img": file.as_posix(), "text": text})
            except Exception as error:  # the caller's generator may raise anything
                failed = error
            answer = self._model.predict_rows(rows) if rows else {"probas": [], "error": None}
            if answer["error"]:
                name, message, hint = answer["error"]
                failed = getattr(errors, name, MmfEnvironmentError)(
                    _hide_temp_paths(message, scratch), hint=hint
                )
        return answer["probas"], failed


class _RestartingModel:
    """The process of a predictor; it knows nothing of the latter, which may thus be collected as garbage.

    Args:
        starting: while it is entered, yields what starts one, whose files lie in the folder that it gets.
    """

    def __init__(self, starter: AbstractContextManager[Callable[[Path], ModelProcess]]) -> None:
        self._lock, self._closed, self._owner_pid = Lock(), False, os.getpid()
        # The name of a socket has about a hundred bytes.
        short = sys.platform == "win32" or len(os.fsencode(gettempdir())) < _MAX_TEMP_DIR_BYTES
        self._folder = Path(mkdtemp(prefix="mmfw-", dir=None if short else "/tmp"))
        self._server: ModelProcess | None = None
        self._resources = ExitStack()
        try:
            with hide_progress():
                self._start = self._resources.enter_context(starter)
                self._server = self._start(self._folder)
        except BaseException:
            self.close()
            raise

    def predict_rows(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer to a request, of a second process where the first one dies."""
        if self._owner_pid != os.getpid():
            message = "this predictor belongs to the process that has made it"
            raise UsageError(message, hint="make one in each process")
        with self._lock:
            for _ in range(2):
                if self._closed:
                    raise UsageError("this predictor is closed", hint="make another one")
                self._folder.mkdir(exist_ok=True)  # somebody may have cleaned up
                server = self._server = self._server or self._start(self._folder)
                try:
                    return server.predict_rows(rows)
                except (EOFError, OSError):
                    self._server = None
                    died = server.exit_error()
                except BaseException:  # Ctrl+C: the next request must not get the answer to this one
                    self._server = None
                    server.close()
                    raise
            raise TrainingError(f"the model's process died twice of this request: {died}", hint=died.hint)

    def close(self) -> None:
        """End the process for good."""
        if self._owner_pid != os.getpid():  # a fork of it, which is ending
            return
        with self._lock:
            self._closed = True
            try:
                if self._server is not None:
                    self._server.close()
            finally:
                self._resources.close()
                remove_tree(self._folder)


@contextmanager
def _translate_os_errors() -> Iterator[None]:
    """Raise what the system refuses as an MmfwError."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise to_mmfw_error(error) from error


@contextmanager
def _model_starter(
    model: str, data_dir: str | Path | None, save_dir: str | Path | None, command_options: CommandOptions
) -> Iterator[Callable[[Path], ModelProcess]]:
    """Choose a model, which stays the same until the block ends; yield what starts a process that has it."""
    path, places = expand_home(model), MmfPaths.resolve(data_dir, save_dir)
    if (path / "model.json").is_file():
        yield ExportedModel.from_folder(path).start_model_process
        return
    named = ([], [model]) if path.is_file() else ([model], ["best"])
    [chosen] = select_checkpoints(places.save_dir, *named)
    places = MmfPaths.resolve(data_dir or Path(chosen.run.request().data_dir), save_dir)
    with pin_checkpoint(chosen.run, chosen.checkpoint, checked_file=chosen.checked_file) as pin:

        @hide_progress()
        def start(scratch: Path) -> ModelProcess:
            with pin.restore_name_in_errors():
                server = prediction.start_model_process(
                    chosen.run, places, command_options, checkpoint=pin.path, scratch=scratch
                )
            try:
                pin.require_unchanged()
            except BaseException:
                server.close()
                raise
            return server

        yield start


def _image_file(image: object, temp_file: Path) -> Path:
    """The file of an image, which is made in ``scratch`` if need be."""
    pillow = sys.modules.get("PIL.Image")
    if isinstance(image, (str, os.PathLike)):
        path = Path(image)
        if not os.path.isfile(path):  # noqa: PTH113 - pathlib raises for a name that is too long
            raise DatasetError(f"{str(path)[:200]}: there is no such image")
        return path
    if isinstance(image, (bytes, bytearray, memoryview)):
        temp_file.write_bytes(image)
    elif pillow is not None and isinstance(image, pillow.Image):
        try:
            to_rgb(image).save(temp_file, "PPM")  # as models read it, and without loss
        except Exception as error:  # Pillow reads a file as late as here, and raises whatever it met
            raise UnreadableImageError(f"{_IMAGE_LABEL}: the picture cannot be read ({error})") from None
    else:
        wanted = "a path, the bytes of an image file or an image of Pillow"
        raise UsageError(f"{_IMAGE_LABEL} is of the class {type(image).__name__}", hint=f"give {wanted}")
    return temp_file


def _hide_temp_paths(message: str, temp_dir: str) -> str:
    """An error's message without the paths of files that are gone; Python's own may double backslashes."""
    forms = (
        re.escape(form) for form in (temp_dir, temp_dir.replace("\\", "\\\\"), Path(temp_dir).as_posix())
    )
    return re.sub(rf"({'|'.join(forms)})[\\/]+\d+", lambda _: _IMAGE_LABEL, message)

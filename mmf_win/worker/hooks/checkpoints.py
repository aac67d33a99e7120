"""MMF's checkpoint object with safe writes and with everything that a run needs to resume.

MMF decides when to save and what a file contains of the model. mmfw writes once instead of three times, keeps
every file intact at any time, removes old files and adds the content of a
:class:`~mmf_win.worker.hooks.resume_state.ResumeState`. After resuming, the best validation is unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from mmf.utils import checkpoint
from mmf.utils.checkpoint import Checkpoint as MmfCheckpoint
from torch import nn

from mmf_win.console import summarize_list
from mmf_win.errors import CheckpointError
from mmf_win.files import remove
from mmf_win.integrity import torch_file
from mmf_win.upstream.checkpoint_files import (
    STATE_KEY,
    find_numbered_checkpoints,
    find_superseded_checkpoints,
    read_checkpoint_progress,
)
from mmf_win.worker.hooks.checkpoint_io import CheckpointWriter, make_torch_load, replace_attribute
from mmf_win.worker.hooks.nonfinite import find_nonfinite
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.resume_state import ResumeState
from mmf_win.worker.hooks.weight_loading import count_copied_tensors
from mmf_win.worker.outcome import DivergedError

_SCALER_KEY = "fp16_scaler"  # used by MMF 1.0.0rc12


class Checkpoint(MmfCheckpoint):  # type: ignore[misc]
    """Checkpoint object that writes safely and restores everything that it saved.

    Attributes:
        resume_state: The additional state; ``None`` in a prediction.
    """

    def __init__(self, observer: Observer, trainer: Any) -> None:
        super().__init__(trainer)
        self._observer = observer
        self._folder = Path(self.ckpt_foldername)
        self._loaded_state: dict[str, Any] = {}
        self._is_starting = False
        self._observer.weights_source = self.config.checkpoint.resume_zoo  # replaced if a file is loaded
        self._require_all_weights(trainer.model)
        self.resume_state: ResumeState | None = None
        if self._observer.request.is_training:
            self.resume_state = ResumeState(trainer, observer.phase_timer)
            if self._observer.is_main:  # only one process trains a run, so these are from a killed worker
                for partial in (*self._folder.glob("*.part"), *self._folder.glob("models/*.part")):
                    remove(partial)

    def save(self, update: int, iteration: int | None = None, update_best: bool = False) -> None:
        """Save as MMF does, but write once, and remove older files after the new one is in place.

        Raises:
            DivergedError: The weights are not finite; the older files stay.
        """
        with self._observer.phase_timer.time_phase("checkpoint"):
            require_finite_weights(self.trainer.model, update)
            self._observer.report_saving(update)
            write = CheckpointWriter()
            state = self.resume_state.state_dict() if self.resume_state else None

            def write_with_state(value: dict[str, Any], path: Path) -> None:
                write(value if state is None else {**value, STATE_KEY: state}, path)

            with _redirect_saving(write_with_state):
                super().save(update, iteration, update_best=update_best)
            self._observer.write_event("checkpoint", update=update, sha256=write.sha256, best=bool(update_best))
            if self._observer.is_main:
                self._remove_old_checkpoints(update)

    def finalize(self) -> None:
        """Write the weights alone at the end of training."""
        with _redirect_saving(CheckpointWriter()):
            super().finalize()

    def load_state_dict(self) -> None:
        """Load the file that the configuration names, and restore what MMF omits.

        Raises:
            CheckpointError: The file does not match the model.
            RuntimeError: Another error of torch.
        """
        self._is_starting = True
        try:
            super().load_state_dict()
        except RuntimeError as error:  # for example a size mismatch
            if "state_dict" not in str(error):
                raise
            reason = " ".join(str(error).split())
            message = f"{self._observer.weights_source}: does not match the model ({reason})"
            raise CheckpointError(message, hint="use weights of the same model and configuration") from error
        self._is_starting = False
        loaded, self._loaded_state = self._loaded_state, {}
        update = self.trainer.num_updates
        if self.resume_state is None or not update or loaded.get("num_updates") != update:
            return
        self._restore_best()
        if STATE_KEY in loaded and not self.resume_state.load_state_dict(loaded[STATE_KEY]):
            text = "training rows changed since the checkpoint; row order is reshuffled"
            self._observer.write_event("note", text=text)

    def restore(self) -> None:
        """Restore the best checkpoint, which this run wrote, so it needs no trust."""
        with replace_attribute(torch, "load", make_torch_load(trust=False)):
            super().restore()

    def _load_pretrained(self, ckpt: Mapping[str, Any]) -> None:
        with count_copied_tensors(self._observer, self.trainer.model, ckpt) as weights:
            super()._load_pretrained(weights)

    def _torch_load(self, file: Any) -> Any:
        self._observer.weights_source = file
        loaded = super()._torch_load(file)
        if not isinstance(loaded, Mapping) or not isinstance(loaded.get("model", loaded), Mapping):
            raise CheckpointError(f"{file}: contains no model weights")
        if self._is_starting and self._observer.request.train_task.only_weights:
            # In 1.0.0rc10, MMF's reset settings do not cover everything else.
            loaded = {"model": loaded.get("model", loaded)}
        if not loaded.get(_SCALER_KEY, True):  # torch rejects the empty state of another precision
            loaded = {key: value for key, value in loaded.items() if key != _SCALER_KEY}
        self._loaded_state = loaded
        return loaded

    def _require_all_weights(self, model: nn.Module) -> None:
        """Make the model reject a file in which parameters are missing.

        MMF loads with ``strict=False`` and would evaluate a model with a random head as if it were trained.
        """

        def refuse_missing(module: nn.Module, keys: Any) -> None:
            parameters = dict(module.named_parameters())
            missing = [key for key in keys.missing_keys if key in parameters]
            if missing:
                raise CheckpointError(
                    f"{self._observer.weights_source}: the checkpoint lacks {len(missing)} of the model's "
                    f"{len(parameters)} parameters ({summarize_list(missing)})",
                    hint="use a checkpoint of the same model and configuration",
                )

        model.register_load_state_dict_post_hook(refuse_missing)  # type: ignore[no-untyped-call]

    def _restore_best(self) -> None:
        """Restore the best validation from the best checkpoint; without one, any result is an improvement."""
        callback = getattr(self.trainer, "early_stop_callback", None)  # in 1.0.0rc12
        stopping = self.trainer.early_stopping if callback is None else callback.early_stopping
        best = self._folder / f"{self.ckpt_prefix}best.ckpt"
        progress = read_checkpoint_progress(best) if torch_file.find_problem(best) is None else None
        worst = math.inf if stopping.minimize else -math.inf
        stopping.best_monitored_update = progress.best_update if progress else 0
        stopping.best_monitored_iteration = progress.best_iteration if progress else 0
        stopping.best_monitored_value = progress.best_value if progress else worst

    def _remove_old_checkpoints(self, update: int) -> None:
        older = [path for path in find_numbered_checkpoints(self._folder) if path.name != f"model_{update}.ckpt"]
        superseded = [path for path, saved_at in find_superseded_checkpoints(self._folder).items() if saved_at < update]
        for path in (*older[self._observer.request.train_task.keep_checkpoints :], *superseded):
            with suppress(OSError):  # on Windows, a file may be in use; the next save tries again
                path.unlink()


@contextmanager
def _redirect_saving(write: Callable[[Any, Path], None]) -> Iterator[None]:
    """Make MMF pass what it would save, and the path, to ``write``."""
    # 1.0.0rc12 opens the file before it saves, which would truncate an existing file.
    saved = replace_attribute(torch, "save", lambda value, target: write(value, Path(target)))
    opened = replace_attribute(checkpoint, "open_if_main", lambda path, _mode: nullcontext(path))
    with saved, opened if hasattr(checkpoint, "open_if_main") else nullcontext():
        yield


def require_finite_weights(model: nn.Module, update: int) -> None:
    """Check that all weights are finite; a gradient may overflow even if the loss does not.

    Raises:
        DivergedError: Some weights are not finite.
    """
    if bad := find_nonfinite(model.named_parameters()):
        message = f"the weights are not finite after update {update} ({summarize_list(bad)}); not saved"
        raise DivergedError(message, update, "weights", bad_parameters=bad)

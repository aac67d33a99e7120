"""Count of the tensors of a model that are loaded from a file of weights.

MMF loads with ``strict=False``, or copies the tensors that a mapping of names finds in both, and reports the
same whether that was every tensor or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mmf_win.compat.patch import wrap
from mmf_win.errors import CheckpointError
from mmf_win.worker.hooks.checkpoint_io import make_torch_load, replace_attribute
from mmf_win.worker.hooks.observer import Observer

_MAX_LISTED_TENSORS = 20  # in the event
_WEIGHTS_HINT = "use weights of a matching model; checkpoint.pretrained_state_mapping selects the parts to load"


def count_loaded_tensors(observer: Observer) -> None:
    """Count the tensors that MMF's models load, also while they are built; restrict ``torch.load``."""
    from mmf.models.base_model import BaseModel

    @wrap(BaseModel, "load_state_dict")
    def load_and_count(load: Any, model: nn.Module, weights: Any, *args: Any, **kwargs: Any) -> Any:
        keys = load(model, weights, *args, **kwargs)
        report_unset_tensors(observer, model, model.state_dict().keys() - set(keys.missing_keys), weights)
        return keys

    torch.load = make_torch_load(trust=observer.request.trust, use_mmap=not observer.request.is_training)


def report_unset_tensors(
    observer: Observer, model: nn.Module, copied: Collection[str], weights: Mapping[str, Any]
) -> None:
    """Write the event that lists the tensors of a model that were not loaded.

    Args:
        observer: Writes the event.
        model: The model.
        copied: Names of the loaded tensors.
        weights: The tensors of the file.

    Raises:
        CheckpointError: Nothing was loaded.
    """
    model_names = list(model.state_dict())
    missing = [name for name in model_names if name not in copied]
    source = str(observer.weights_source or type(model).__name__)
    if model_names and not copied:
        message = f"{source}: none of its {len(weights)} tensors matches the model ({len(model_names)} tensors)"
        raise CheckpointError(message, hint=_WEIGHTS_HINT)
    observer.loaded_tensors.update(copied)
    if not observer.has_begun:  # after training, MMF loads the best checkpoint again
        count, total = len(model_names) - len(missing), len(model_names)
        observer.write_event("loaded", source=source, copied=count, total=total, missing=missing[:_MAX_LISTED_TENSORS])


@contextmanager
def count_copied_tensors(observer: Observer, model: nn.Module, weights: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Count the tensors that MMF copies with ``model.state_dict()[name].copy_(weights[other_name])``.

    Args:
        observer: Writes the event about tensors that were not copied.
        model: The model.
        weights: The tensors of the file.

    Yields:
        The weights to pass to MMF.

    Raises:
        CheckpointError: The shapes of two tensors differ, or nothing was copied.
    """
    requests: list[str] = []  # of the model; MMF copies to the last one
    model_tensors, copied = model.state_dict(), set[str]()

    def record_copy(name: str) -> None:
        target = requests[-1]
        model_shape, file_shape = list(model_tensors[target].shape), list(weights[name].shape)
        if model_shape != file_shape:  # torch would broadcast a smaller tensor
            difference = f"{name} has shape {file_shape}, but the model's {target} has shape {model_shape}"
            message = f"{observer.weights_source}: {difference}"
            raise CheckpointError(message, hint=_WEIGHTS_HINT)
        copied.add(target)

    with replace_attribute(model, "state_dict", lambda: _RecordingDict(model_tensors, requests.append)):
        yield _RecordingDict(weights, record_copy)
    del model.state_dict  # reveals the method of the class
    report_unset_tensors(observer, model, copied, weights)


class _RecordingDict(dict[str, Any]):
    """Dictionary that records each name that is looked up."""

    def __init__(self, values: Mapping[str, Any], record: Callable[[str], None]) -> None:
        super().__init__(values)
        self._record = record

    def __getitem__(self, name: str) -> Any:
        self._record(name)
        return super().__getitem__(name)

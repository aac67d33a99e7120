"""Counts what of a model a file of weights has set.

MMF loads with ``strict=False``, or copies what a mapping of names finds in both, and says the same whether
that was every tensor or none.
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

_MAX_LISTED_TENSORS = 20  # tensors that the event names
_MATCHING_WEIGHTS_HINT = (
    "name weights of such a model; checkpoint.pretrained_state_mapping says which parts MMF takes"
)


def count_loaded_tensors(observer: Observer) -> None:
    """Count what MMF's models load, also while they are built, where files are read as elsewhere."""
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
    """Write the event that names the tensors of a model which ``weights`` left as they were.

    Raises CheckpointError where these are all of them.
    """
    of_model = list(model.state_dict())
    missing = [name for name in of_model if name not in copied]
    source = str(observer.weights_source or type(model).__name__)
    if of_model and not copied:
        raise CheckpointError(
            f"{source}: none of its {len(weights)} tensors is among the {len(of_model)} of the model",
            hint=_MATCHING_WEIGHTS_HINT,
        )
    observer.loaded_tensors.update(copied)
    if not observer.has_begun:  # after training, MMF loads the best checkpoint again
        count, total = len(of_model) - len(missing), len(of_model)
        observer.write_event(
            "loaded", source=source, copied=count, total=total, missing=missing[:_MAX_LISTED_TENSORS]
        )


@contextmanager
def count_copied_tensors(
    observer: Observer, model: nn.Module, weights: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Inside the block, count what MMF copies as ``model.state_dict()[name].copy_(yielded[other])``.

    Raises CheckpointError where two that are to match differ in shape, or nothing was copied.
    """
    asked: list[str] = []  # names of the model's tensors; the last is the one that MMF copies to
    of_model, copied = model.state_dict(), set[str]()

    def record_copy(name: str) -> None:
        here, there = list(of_model[asked[-1]].shape), list(weights[name].shape)
        if here != there:  # torch would repeat a smaller one
            message = (
                f"{observer.weights_source}: {name} has the shape {there}, and the model's {asked[-1]} {here}"
            )
            raise CheckpointError(message, hint=_MATCHING_WEIGHTS_HINT)
        copied.add(asked[-1])

    with replace_attribute(model, "state_dict", lambda: _RecordingDict(of_model, asked.append)):
        yield _RecordingDict(weights, record_copy)
    del model.state_dict  # the class has it
    report_unset_tensors(observer, model, copied, weights)


class _RecordingDict(dict[str, Any]):
    """Tells of each name whose value is asked for."""

    def __init__(self, values: Mapping[str, Any], record: Callable[[str], None]) -> None:
        super().__init__(values)
        self._record = record

    def __getitem__(self, name: str) -> Any:
        self._record(name)
        return super().__getitem__(name)

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
from mmf_win.worker.hooks.checkpoint_io import reader, replaced
from mmf_win.worker.hooks.observer import Observer

_NAMED = 20  # tensors that the event names
_FITTING = "name weights of such a model; checkpoint.pretrained_state_mapping says which parts MMF takes"


def watch(observer: Observer) -> None:
    """Count what MMF's models load, also while they are built, where files are read as elsewhere."""
    from mmf.models.base_model import BaseModel

    @wrap(BaseModel, "load_state_dict")
    def counted(load: Any, model: nn.Module, weights: Any, *args: Any, **kwargs: Any) -> Any:
        keys = load(model, weights, *args, **kwargs)
        tell(observer, model, model.state_dict().keys() - set(keys.missing_keys), weights)
        return keys

    torch.load = reader(trust=observer.request.trust, mapped=not observer.request.is_training)


def tell(observer: Observer, model: nn.Module, copied: Collection[str], weights: Mapping[str, Any]) -> None:
    """Write the event that names the tensors of a model which ``weights`` left as they were.

    Raises CheckpointError where these are all of them.
    """
    of_model = list(model.state_dict())
    missing = [name for name in of_model if name not in copied]
    source = str(observer.weights or type(model).__name__)
    if of_model and not copied:
        raise CheckpointError(
            f"{source}: none of its {len(weights)} tensors is among the {len(of_model)} of the model",
            hint=_FITTING,
        )
    observer.copied.update(copied)
    if not observer.has_begun:  # after training, MMF loads the best checkpoint again
        count, total = len(of_model) - len(missing), len(of_model)
        observer.event("loaded", source=source, copied=count, total=total, missing=missing[:_NAMED])


@contextmanager
def counting_copies(
    observer: Observer, model: nn.Module, weights: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Inside the block, count what MMF copies as ``model.state_dict()[name].copy_(yielded[other])``.

    Raises CheckpointError where two that are to match differ in shape, or nothing was copied.
    """
    asked: list[str] = []  # names of the model's tensors; the last is the one that MMF copies to
    of_model, copied = model.state_dict(), set[str]()

    def copy(name: str) -> None:
        here, there = list(of_model[asked[-1]].shape), list(weights[name].shape)
        if here != there:  # torch would repeat a smaller one
            message = f"{observer.weights}: {name} has the shape {there}, and the model's {asked[-1]} {here}"
            raise CheckpointError(message, hint=_FITTING)
        copied.add(asked[-1])

    with replaced(model, "state_dict", lambda: _Watched(of_model, asked.append)):
        yield _Watched(weights, copy)
    del model.state_dict  # the class has it
    tell(observer, model, copied, weights)


class _Watched(dict[str, Any]):
    """Tells of each name whose value is asked for."""

    def __init__(self, values: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        super().__init__(values)
        self._tell = tell

    def __getitem__(self, name: str) -> Any:
        self._tell(name)
        return super().__getitem__(name)

"""Says where a value that is not finite comes from, by a second pass over its rows with hooks on all modules.

The second pass has the same rows, weights and random numbers, and a model without DistributedDataParallel,
for which the other ranks would have to take part. The training ends with it, so its hooks stay.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed, nn

from mmf_win.console import summarize_list
from mmf_win.worker.hooks.checkpoint_io import replaced, tensors_in
from mmf_win.worker.hooks.random_state import get_rng_state, set_rng_state
from mmf_win.worker.hooks.ranks import ranks
from mmf_win.worker.outcome import Diverged


class Replay:
    """Remembers the passes of the last batch: each one's rows, without a copy, and the random state."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._passes: list[tuple[Callable[[], Any], Any, dict[str, Any], Any]] = []

    def of_batch(self, step: Callable[[float, Any], Any]) -> Callable[[float, Any], Any]:
        """``step`` for each part of the next batch; a Diverged that it raises gets its place."""
        self._passes.clear()

        def remembered(share: float, rows: Any) -> Any:
            self._passes.append((partial(step, share, rows), rows, dict(rows), get_rng_state()))
            try:
                return step(share, rows)
            except Diverged as error:
                traceback.clear_frames(error.__traceback__)  # whose memory the second pass needs
                raise self._placed(error, self._passes[-1:]) from None

        return remembered

    @contextmanager
    def clipping(self) -> Iterator[None]:
        """Around MMF's clipping of gradients; MMF does not look at their norm.

        Raises Diverged where it is not finite, unless a scaler leaves out such an update.
        """
        clip = nn.utils.clip_grad_norm_

        def checked(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            if not self._trainer.scaler.is_enabled() and not torch.isfinite(norm):
                done = self._trainer.num_updates
                error = Diverged(f"the gradient norm of update {done + 1} is not finite", done, "gradient")
                raise self._placed(error, self._passes)
            return norm

        with replaced(nn.utils, "clip_grad_norm_", checked):
            yield

    def _placed(self, error: Diverged, passes: Iterable[Any]) -> Diverged:
        model = self._trainer.model = getattr(self._trainer.model, "module", self._trainer.model)
        watch = _Watch(model, backward=error.place["quantity"] == "gradient")
        for again, rows, values, state in passes:
            rows.clear()
            rows.update(values)  # to which the model may have added its own
            watch.ids = values["id"].flatten().tolist() if "id" in values else []
            set_rng_state(state)
            try:
                with suppress(Diverged):
                    again()
            except Exception:  # of the hooks, or of memory; the error itself must not get lost
                traceback.print_exc()
            if watch.first is not None:
                return watch.placed(error, not_finite(values.items()), not_finite(model.named_parameters()))
        if watch.backward and ranks() > 1:
            distributed.barrier()  # a gradient is that of all ranks: the one that finds it says so first
        return Diverged(f"{error}; a second pass over its rows did not find where", **error.place)


@dataclass
class _Call:
    """One call of a module, by that of another one; the gradients are those of its outputs."""

    name: str
    caller: _Call | None = None
    finite_inputs: bool = True
    finite_gradients: bool = True


class _Watch:
    """Finds the ``first`` call whose output, or ``backward`` the gradient of whose input, is not finite.

    With it are those of the ``ids`` whose rows are not; none where it has no entry a row.
    """

    def __init__(self, model: nn.Module, *, backward: bool) -> None:
        self.backward, self.ids = backward, list[int]()
        self.first: tuple[_Call, list[int]] | None = None
        self._calls: list[_Call] = []
        for name, module in model.named_modules():
            call = _Call(name or type(module).__name__)
            module.register_forward_pre_hook(partial(self._before, call.name), with_kwargs=True)
            module.register_forward_hook(self._after)
            for parameter in module.parameters(recurse=False):
                self._hook(parameter, call)

    def placed(self, error: Diverged, fields: list[str], parameters: list[str]) -> Diverged:
        """``error`` with what was found; ``fields`` of the batch and ``parameters`` are not finite."""
        assert self.first is not None
        call, bad = self.first
        while not call.finite_gradients and call.caller is not None:
            call = call.caller  # one of those made them so
        place: dict[str, Any] = {
            "module": call.name,
            "inputs_finite": call.finite_inputs,
            "ids": self.ids,
            "bad_ids": bad or self.ids,
        }
        told = f"{error}: first in {'the backward pass of ' * self.backward}{call.name}"
        told += f" (its inputs were {'' if call.finite_inputs else 'not '}finite)"
        told += f"; not finite in the batch: {summarize_list(fields)}" * bool(fields)
        told += f"; {len(parameters)} parameters are not finite: {summarize_list(parameters)}" * bool(
            parameters
        )
        if self.ids:
            told += (
                f"; {'' if bad else 'somewhere in '}rows {summarize_list([*map(str, bad or self.ids)], 5)}"
            )
        return Diverged(told, **error.place, **place, bad_fields=fields, bad_parameters=parameters)

    def _before(self, name: str, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        caller = self._calls[-1] if self._calls else None
        call = _Call(name, caller, not not_finite(enumerate((args, kwargs))))
        self._calls.append(call)
        # The gradient of a view is that of this call alone; a tensor that is given twice stays one.
        given = {id(value): value for value in (*args, *kwargs.values()) if torch.is_tensor(value)}
        views = {key: value.view_as(value) for key, value in given.items() if value.requires_grad}
        for view in views.values():
            self._hook(view, call)
        named = {key: views.get(id(value), value) for key, value in kwargs.items()}
        return tuple(views.get(id(value), value) for value in args), named

    def _after(self, _module: nn.Module, _args: Any, output: Any) -> None:
        call = self._calls.pop()
        for tensor in tensors_in(output):
            self._hook(tensor, call, of_output=True)
            if not self.backward:
                self._look(tensor.detach(), call)

    def _hook(self, tensor: torch.Tensor, call: _Call, *, of_output: bool = False) -> None:
        def look(gradient: torch.Tensor) -> None:
            call.finite_gradients &= not of_output or bool(torch.isfinite(gradient).all())
            self._look(gradient, call, of_parameter=isinstance(tensor, nn.Parameter))

        if self.backward and tensor.requires_grad:
            tensor.register_hook(look)  # type: ignore[no-untyped-call]

    def _look(self, tensor: torch.Tensor, call: _Call, *, of_parameter: bool = False) -> None:
        if self.first is None and not (finite := torch.isfinite(tensor)).all():
            by_row = not of_parameter and tensor.dim() and len(tensor) == len(self.ids)
            bad = [id_ for id_, row in zip(self.ids, finite, strict=True) if not row.all()] if by_row else []
            self.first = call, bad


def not_finite(named: Iterable[tuple[Any, Any]]) -> list[Any]:
    """The names of the values in which a number is not finite, also in nested containers."""
    return [key for key, value in named if not all(torch.isfinite(each).all() for each in tensors_in(value))]

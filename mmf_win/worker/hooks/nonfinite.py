"""Search for the source of a non-finite value: a second pass over its rows with hooks on all modules.

The second pass uses the same rows, weights and random numbers, but a model without DistributedDataParallel,
because that would require the other ranks to take part. The training ends after it, so the hooks stay.
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
from mmf_win.worker.hooks.checkpoint_io import iter_tensors, replace_attribute
from mmf_win.worker.hooks.random_state import get_rng_state, set_rng_state
from mmf_win.worker.hooks.ranks import get_world_size
from mmf_win.worker.outcome import DivergedError


class Replay:
    """Record of the passes of the last batch: their rows, without copying them, and the random state."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._passes: list[tuple[Callable[[], Any], Any, dict[str, Any], Any]] = []

    def wrap_step(self, step: Callable[[float, Any], Any]) -> Callable[[float, Any], Any]:
        """Return ``step`` with recording; a ``DivergedError`` that it raises gets its location."""
        self._passes.clear()

        def record_and_step(share: float, rows: Any) -> Any:
            self._passes.append((partial(step, share, rows), rows, dict(rows), get_rng_state()))
            try:
                return step(share, rows)
            except DivergedError as error:
                traceback.clear_frames(error.__traceback__)  # frees memory for the second pass
                raise self._located_error(error, self._passes[-1:]) from None

        return record_and_step

    @contextmanager
    def check_gradient_norm(self) -> Iterator[None]:
        """Check the gradient norm while MMF clips gradients, because MMF does not.

        An update that the fp16 scaler skips is not checked.

        Raises:
            DivergedError: The norm is not finite.
        """
        clip = nn.utils.clip_grad_norm_

        def clip_and_check(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            if not self._trainer.scaler.is_enabled() and not torch.isfinite(norm):
                done = self._trainer.num_updates
                error = DivergedError(f"the gradient norm of update {done + 1} is not finite", done, "gradient")
                raise self._located_error(error, self._passes)
            return norm

        with replace_attribute(nn.utils, "clip_grad_norm_", clip_and_check):
            yield

    def _located_error(self, error: DivergedError, passes: Iterable[Any]) -> DivergedError:
        model = self._trainer.model = getattr(self._trainer.model, "module", self._trainer.model)
        tracer = _NonfiniteTracer(model, is_backward=error.details["quantity"] == "gradient")
        for repeat_step, rows, values, rng_state in passes:
            rows.clear()
            rows.update(values)  # removes the fields that the model added
            tracer.row_ids = values["id"].flatten().tolist() if "id" in values else []
            set_rng_state(rng_state)
            try:
                with suppress(DivergedError):
                    repeat_step()
            except Exception:  # an error of the hooks or a lack of memory must not hide the original error
                traceback.print_exc()
            if tracer.first_nonfinite is not None:
                return tracer.located_error(
                    error, find_nonfinite(values.items()), find_nonfinite(model.named_parameters())
                )
        if tracer.is_backward and get_world_size() > 1:
            distributed.barrier()  # all ranks see the gradient; the one that locates it reports first
        return DivergedError(f"{error}; a second pass over its rows did not locate it", **error.details)


@dataclass
class _Call:
    """A call of a module and its caller; the gradients are those of its outputs."""

    name: str
    caller: _Call | None = None
    has_finite_inputs: bool = True
    has_finite_gradients: bool = True


class _NonfiniteTracer:
    """Search for the first call with a non-finite output, or with a non-finite gradient of an input.

    Attributes:
        is_backward: Examine gradients instead of outputs.
        row_ids: IDs of the rows of the pass.
        first_nonfinite: The call and the IDs of the affected rows; no IDs if the value has no entry per row.
    """

    def __init__(self, model: nn.Module, *, is_backward: bool) -> None:
        self.is_backward, self.row_ids = is_backward, list[int]()
        self.first_nonfinite: tuple[_Call, list[int]] | None = None
        self._open_calls: list[_Call] = []
        for name, module in model.named_modules():
            call = _Call(name or type(module).__name__)
            module.register_forward_pre_hook(partial(self._on_call_start, call.name), with_kwargs=True)
            module.register_forward_hook(self._on_call_end)
            for parameter in module.parameters(recurse=False):
                self._watch_gradient(parameter, call)

    def located_error(self, error: DivergedError, fields: list[str], parameters: list[str]) -> DivergedError:
        """Return the error with its location and the names of non-finite fields and parameters."""
        assert self.first_nonfinite is not None
        call, bad_ids = self.first_nonfinite
        while not call.has_finite_gradients and call.caller is not None:
            call = call.caller  # a call inside it caused the non-finite gradients
        place: dict[str, Any] = {
            "module": call.name,
            "inputs_finite": call.has_finite_inputs,
            "ids": self.row_ids,
            "bad_ids": bad_ids or self.row_ids,
        }
        message = f"{error}: first in {'the backward pass of ' * self.is_backward}{call.name}"
        message += f" (its inputs were {'' if call.has_finite_inputs else 'not '}finite)"
        message += f"; not finite in the batch: {summarize_list(fields)}" * bool(fields)
        message += f"; {len(parameters)} parameters are not finite: {summarize_list(parameters)}" * bool(parameters)
        if self.row_ids:
            rows = summarize_list([*map(str, bad_ids or self.row_ids)], 5)
            message += f"; {'' if bad_ids else 'in one of '}rows {rows}"
        return DivergedError(message, **error.details, **place, bad_fields=fields, bad_parameters=parameters)

    def _on_call_start(self, name: str, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        caller = self._open_calls[-1] if self._open_calls else None
        call = _Call(name, caller, not find_nonfinite(enumerate((args, kwargs))))
        self._open_calls.append(call)
        # A view has the gradient of this call alone; a tensor that is passed twice gets one view.
        tensors_by_id = {id(value): value for value in (*args, *kwargs.values()) if torch.is_tensor(value)}
        views = {key: value.view_as(value) for key, value in tensors_by_id.items() if value.requires_grad}
        for view in views.values():
            self._watch_gradient(view, call)
        keywords = {key: views.get(id(value), value) for key, value in kwargs.items()}
        return tuple(views.get(id(value), value) for value in args), keywords

    def _on_call_end(self, _module: nn.Module, _args: Any, output: Any) -> None:
        call = self._open_calls.pop()
        for tensor in iter_tensors(output):
            self._watch_gradient(tensor, call, is_output=True)
            if not self.is_backward:
                self._check_tensor(tensor.detach(), call)

    def _watch_gradient(self, tensor: torch.Tensor, call: _Call, *, is_output: bool = False) -> None:
        def check_gradient(gradient: torch.Tensor) -> None:
            call.has_finite_gradients &= not is_output or bool(torch.isfinite(gradient).all())
            self._check_tensor(gradient, call, is_parameter=isinstance(tensor, nn.Parameter))

        if self.is_backward and tensor.requires_grad:
            tensor.register_hook(check_gradient)  # type: ignore[no-untyped-call]

    def _check_tensor(self, tensor: torch.Tensor, call: _Call, *, is_parameter: bool = False) -> None:
        if self.first_nonfinite is None and not (finite := torch.isfinite(tensor)).all():
            by_row = not is_parameter and tensor.dim() and len(tensor) == len(self.row_ids)
            bad_ids = [id_ for id_, row in zip(self.row_ids, finite, strict=True) if not row.all()] if by_row else []
            self.first_nonfinite = call, bad_ids


def find_nonfinite(items: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return the names of the values that contain a non-finite number, also in nested containers."""
    return [key for key, value in items if not all(torch.isfinite(tensor).all() for tensor in iter_tensors(value))]

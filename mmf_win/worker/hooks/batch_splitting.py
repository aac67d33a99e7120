"""A batch in parts that fit into memory, with the gradients of the undivided batch.

The DataLoader still yields whole batches, so that epochs, updates, the order of the rows and the
learning-rate schedule are those of the undivided run. Each part's loss is weighted by its share of the rows,
and the gradients add up: to floating-point accuracy they are the batch's own, for every layer that treats its
rows one by one. (Batch normalization does not: while it trains, it sees the part's statistics.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from mmf.common.sample import SampleList
from torch import nn

from mmf_win.compat.patch import wrap


def split_batch(batch: SampleList, limit: int, weight: float = 1.0) -> list[tuple[float, SampleList]]:
    """The parts of a batch, each with its share of ``weight``; tensors are views, nothing is copied.

    They have at most ``limit`` rows and are as few and as equal as can be, because a last part of a row or
    two makes layers fail that need several.
    """
    rows = batch.get_batch_size()
    parts = max(1, math.ceil(rows / limit))
    if parts == 1:
        return [(weight, batch)]
    ends = pairwise(rows * number // parts for number in range(parts + 1))
    wanted = [(weight * (end - start) / rows, slice(start, end)) for start, end in ends]
    return [(share, select_rows(batch, each, rows)) for share, each in wanted]


def select_rows(value: Any, selection: slice, rows: int) -> Any:
    """``wanted`` of each thing in ``value`` that has one entry a row; all else as it is."""
    if isinstance(value, Mapping):
        part = SampleList()
        for key, entry in value.items():
            part.add_field(key, select_rows(entry, selection, rows))
        return part
    has_rows = bool(value.dim()) if torch.is_tensor(value) else isinstance(value, (list, tuple))
    return value[selection] if has_rows and len(value) == rows else value


def accumulate_gradients(
    model: nn.Module,
    parts: Sequence[tuple[float, SampleList]],
    step: Callable[[float, SampleList], Any],
    fields: Iterable[str],
) -> Any:
    """Make the gradients of a batch part by part, and return its report: the first part's, with all rows.

    Args:
        model: the outermost module; its ranks exchange gradients only with the last part.
        parts: as :func:`split_batch` has them.
        step: makes a part's gradients, and returns its report with losses weighted by its share.
        fields: what metrics are computed from; the parts' are joined, row by row.
    """
    report: Any = None
    no_sync = getattr(model, "no_sync", nullcontext)
    for number, (share, rows) in enumerate(parts, start=1):
        last = number == len(parts)
        with nullcontext() if last else no_sync():
            part = step(share, rows)
        if report is None:
            report = part
        else:
            for key in fields:
                if key in report and key in part:
                    report[key] = _join_outputs(
                        [report[key], part[key]], [report.batch_size, part.batch_size]
                    )
            for key, loss in part.losses.items():
                report.losses[key] = report.losses[key] + loss if key in report.losses else loss
            report.batch_size += part.batch_size
        del part  # the next one needs its memory
    return report


def limit_eval_batch(model: nn.Module, limit: int | None) -> None:
    """Let the outermost module score at most ``limit`` rows in one pass; None for the whole batch."""
    if limit is None:
        return

    @wrap(model, "forward")
    def forward_in_parts(forward: Callable[..., Any], sample_list: Any, *args: Any, **kwargs: Any) -> Any:
        parts = [] if model.training else split_batch(sample_list, limit)
        if len(parts) < 2:
            return forward(sample_list, *args, **kwargs)
        outputs = [forward(part, *args, **kwargs) for _, part in parts]
        return _join_outputs(outputs, [part.get_batch_size() for _, part in parts])


def _join_outputs(values: Sequence[Any], rows: Sequence[int]) -> Any:
    """One output from those of the parts, which have ``rows``; what has no entry a row is the first's."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _join_outputs([value[key] for value in values], rows) for key in first}
    pairs = list(zip(values, rows, strict=True))
    if torch.is_tensor(first):
        by_row = all(value.dim() and len(value) == count for value, count in pairs)
        return torch.cat(list(values)) if by_row else first
    if not isinstance(first, (list, tuple)):
        return first
    if first and all(torch.is_tensor(entry) and entry.dim() and len(entry) == rows[0] for entry in first):
        return type(first)(_join_outputs(entries, rows) for entries in zip(*values, strict=True))
    by_row = all(len(value) == count for value, count in pairs)
    return type(first)(entry for value in values for entry in value) if by_row else first

"""Splitting of batches into micro-batches that fit into memory, with the gradients of the whole batch.

The DataLoader still yields whole batches, so epochs, updates, the row order and the learning-rate schedule
are unchanged. The loss of each part is weighted by its share of the rows, and the gradients are summed. Up to
floating-point accuracy they equal the gradients of the whole batch for every layer that processes rows
independently (batch normalization in training mode does not: it uses the statistics of a part).
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
    """Split a batch into as few parts of nearly equal size as possible.

    The sizes are nearly equal, because some layers fail with a last part of one or two rows.

    Args:
        batch: The batch.
        limit: Maximum rows of a part.
        weight: The weight of the whole batch.

    Returns:
        The parts, each with its share of ``weight``; their tensors are views of the batch.
    """
    rows = batch.get_batch_size()
    part_count = max(1, math.ceil(rows / limit))
    if part_count == 1:
        return [(weight, batch)]
    ends = pairwise(rows * number // part_count for number in range(part_count + 1))
    shares_and_slices = [(weight * (end - start) / rows, slice(start, end)) for start, end in ends]
    return [(share, select_rows(batch, part, rows)) for share, part in shares_and_slices]


def select_rows(value: Any, selection: slice, rows: int) -> Any:
    """Return ``value`` with ``selection`` applied to each entry that has one item per row."""
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
    """Compute the gradients of a batch part by part.

    Args:
        model: The outermost module; its ranks exchange gradients only during the last part.
        parts: The result of :func:`split_batch`.
        step: Computes the gradients of a part and returns its report, with losses weighted by its share.
        fields: Report fields from which metrics are computed.

    Returns:
        The report of the first part with summed losses and with ``fields`` joined over all rows.
    """
    report: Any = None
    no_sync = getattr(model, "no_sync", nullcontext)
    for number, (share, rows) in enumerate(parts, start=1):
        is_last = number == len(parts)
        with nullcontext() if is_last else no_sync():
            part_report = step(share, rows)
        if report is None:
            report = part_report
        else:
            for key in fields:
                if key in report and key in part_report:
                    report[key] = _join_outputs(
                        [report[key], part_report[key]], [report.batch_size, part_report.batch_size]
                    )
            for key, loss in part_report.losses.items():
                report.losses[key] = report.losses[key] + loss if key in report.losses else loss
            report.batch_size += part_report.batch_size
        del part_report  # frees memory for the next part
    return report


def limit_eval_batch(model: nn.Module, limit: int | None) -> None:
    """Make the outermost module score at most ``limit`` rows per pass; ``None`` means no limit."""
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
    """Join the outputs of parts with ``rows`` rows; values without one entry per row are the first's."""
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

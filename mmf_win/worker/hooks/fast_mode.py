"""Optional speedups that change results by more than floating-point noise.

Texts are padded to the longest text of their batch. MMF pads every text to 128 tokens, of which a meme uses
about twenty, and computes with all of them. Padding does not affect the scores, but less padding draws fewer
random numbers, so dropout differs.

The ResNet of MMF's image models uses the memory format "channels last". Other convolutions stay unchanged,
because the layers after them may rely on the default format, as MMF's ``Flatten`` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mmf_win.compat.patch import wrap
from mmf_win.protocol import AttemptRequest
from mmf_win.worker.hooks.observer import Observer

_MASK_FIELD = "input_mask"
_TOKEN_FIELDS = (_MASK_FIELD, "input_ids", "input_ids_masked", "segment_ids", "lm_label_ids")
_LENGTH_MULTIPLE = 8
_PADDING_SENSITIVE_MODELS = {"lxmert"}  # MMF passes the segment IDs as its mask


def enable_channels_last(model: nn.Module, observer: Observer) -> None:
    """Use "channels last" for a model's ResNets; write a note if texts keep their padding."""
    from mmf.modules.encoders import ResNet152ImageEncoder

    for module in model.modules():
        if isinstance(module, ResNet152ImageEncoder):
            module.to(memory_format=torch.channels_last)
    if (reason := padding_reason(observer.request)) is not None:
        observer.write_event("note", text=reason)


def padding_reason(request: AttemptRequest) -> str | None:
    """Return why texts keep their full padding, or ``None`` if they do not."""
    if request.model in _PADDING_SENSITIVE_MODELS:
        return f"{request.model} also reads padding, so texts keep their full length"
    if request.train_task.find_micro_batch:
        return "texts keep their full length during the search for a micro-batch that fits every batch"
    return None


def pad_to_longest(request: AttemptRequest) -> None:
    """Make MMF pad batches to their longest text in this process, unless :func:`padding_reason` objects."""
    if padding_reason(request) is not None:
        return
    from mmf.common.batch_collator import BatchCollator

    wrap(BatchCollator, "__call__")(lambda collate, *args: trim_padding(collate(*args)))


def trim_padding(batch: Any) -> Any:
    """Remove the padding that no text of a batch needs.

    One column of padding remains, since MMBT takes the last token as the end of every text. The length is
    rounded up to a multiple of eight, which is efficient on GPUs.

    Args:
        batch: A batch, modified in place.

    Returns:
        The batch. It is unchanged if it has no ``input_mask`` of shape [rows, tokens] or if a text is not
        padded at the end.
    """
    mask = batch.get(_MASK_FIELD)
    if not torch.is_tensor(mask) or mask.dim() != 2:
        return batch
    needed_length = int(mask.any(0).sum()) + 1
    length = -(-needed_length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    if length >= mask.shape[1] or mask[:, length:].any():
        return batch
    for name in _TOKEN_FIELDS:
        value = batch.get(name)
        if torch.is_tensor(value) and value.shape == mask.shape:
            batch[name] = value[:, :length].contiguous()
    return batch

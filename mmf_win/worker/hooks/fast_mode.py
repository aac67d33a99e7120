"""Faster ways that change results by more than floating-point noise, for those who ask for them.

Texts are padded to the longest of their batch. MMF pads each to 128 tokens, of which a meme has about
twenty, and the model calculates with all. What it makes of padding reaches no score; but with less of it,
fewer random numbers are drawn, so that dropout is another one.

The ResNet of MMF's image models reads all channels of a pixel together ("channels last"). Other convolutions
are left alone: what follows them may count on the usual order, as MMF's ``Flatten`` does.
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
_PADDING_SENSITIVE_MODELS = {"lxmert"}  # MMF gives it the segments as the mask


def enable_channels_last(model: nn.Module, observer: Observer) -> None:
    """Let a model's ResNets read all channels of a pixel together, and say if texts keep their padding."""
    from mmf.modules.encoders import ResNet152ImageEncoder

    for module in model.modules():
        if isinstance(module, ResNet152ImageEncoder):
            module.to(memory_format=torch.channels_last)
    if (reason := padding_reason(observer.request)) is not None:
        observer.write_event("note", text=reason)


def padding_reason(request: AttemptRequest) -> str | None:
    """Why texts keep all of their padding; None where they do not."""
    if request.model in _PADDING_SENSITIVE_MODELS:
        return f"{request.model} reads padding, too, so its texts stay as long"
    if request.train_task.find_micro_batch:
        return "texts stay as long as they can be, to find a micro-batch that fits all"
    return None


def pad_to_longest(request: AttemptRequest) -> None:
    """Let MMF's batches be as long as their longest text, in this process, unless that would do harm."""
    if padding_reason(request) is not None:
        return
    from mmf.common.batch_collator import BatchCollator

    wrap(BatchCollator, "__call__")(lambda collate, *args: trim_padding(collate(*args)))


def trim_padding(batch: Any) -> Any:
    """A batch without the padding that no text in it needs.

    One column of padding stays, since MMBT takes the last token for the end of every text. The length is
    rounded up to a multiple of eight, for the units of a GPU. A batch without ``input_mask`` of shape (rows,
    tokens), 1 where there is a token, stays as it is, and so does one padded elsewhere than at the end.
    """
    mask = batch.get(_MASK_FIELD)
    if not torch.is_tensor(mask) or mask.dim() != 2:
        return batch
    needed = int(mask.any(0).sum()) + 1
    length = -(-needed // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    if length >= mask.shape[1] or mask[:, length:].any():
        return batch
    for name in _TOKEN_FIELDS:
        value = batch.get(name)
        if torch.is_tensor(value) and value.shape == mask.shape:
            batch[name] = value[:, :length].contiguous()
    return batch

"""User code for any MMF, from Python 3.8 on: a smaller ResNet, and notes of updates and checkpoints.

With ``BENCH_FULL_SIZE``, the ResNet keeps its size. A line of the file ``BENCH_NOTES`` is
``update TIME LOSS`` or ``checkpoint BEGIN END``.
"""

import os
import time
from pathlib import Path

import torchvision
from mmf.common.registry import Registry
from mmf.utils.checkpoint import Checkpoint
from torchvision.models.resnet import Bottleneck, ResNet


def small_resnet(*_, **__):
    """Return a ResNet with one block of each of ResNet-152's four kinds, and 2048 output features."""
    return ResNet(Bottleneck, [1, 1, 1, 1])


def append_note(*fields):
    """Append a line to the notes."""
    with Path(os.environ["BENCH_NOTES"]).open("a", encoding="utf-8") as file:
        file.write(" ".join(str(word) for word in fields) + "\n")


_register, _save = Registry.register, Checkpoint.save


def register_and_note_loss(_cls, name, value):
    """Replace ``Registry.register``, which MMF calls with each loss that it logs."""
    if name == "train/total_loss":
        append_note("update", repr(time.time()), repr(float(value)))
    return _register(name, value)


def save_and_note_time(self, *args, **kwargs):
    """Replace ``Checkpoint.save``, and note the time that it takes."""
    start = time.time()
    _save(self, *args, **kwargs)
    append_note("checkpoint", repr(start), repr(time.time()))


if "BENCH_FULL_SIZE" not in os.environ:
    torchvision.models.resnet152 = small_resnet
Registry.register = classmethod(register_and_note_loss)
Checkpoint.save = save_and_note_time

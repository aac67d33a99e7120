"""A user_dir for any MMF, from Python 3.8 on: a smaller ResNet, and a note of each update and checkpoint.

With ``BENCH_FULL_SIZE``, the ResNet is as it is. A line of the file that ``BENCH_NOTES`` names is
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
    """Of ResNet-152's 50 blocks four, one of each kind; its 2048 numbers in the end."""
    return ResNet(Bottleneck, [1, 1, 1, 1])


def append_note(*fields):
    """Add a line."""
    with Path(os.environ["BENCH_NOTES"]).open("a", encoding="utf-8") as file:
        file.write(" ".join(str(word) for word in fields) + "\n")


_register, _save = Registry.register, Checkpoint.save


def register_and_note_loss(cls, name, value):
    """What MMF calls with each loss that it logs."""
    if name == "train/total_loss":
        append_note("update", repr(time.time()), repr(float(value)))
    return _register(name, value)


def save_and_note_time(self, *args, **kwargs):
    """What MMF calls to save a checkpoint."""
    begun = time.time()
    _save(self, *args, **kwargs)
    append_note("checkpoint", repr(begun), repr(time.time()))


if "BENCH_FULL_SIZE" not in os.environ:
    torchvision.models.resnet152 = small_resnet
Registry.register = classmethod(register_and_note_loss)
Checkpoint.save = save_and_note_time

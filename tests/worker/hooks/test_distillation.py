"""The loss of a student in the real MMF: shares of the teacher and of MMF's loss."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

_ROOT = Path(__file__).parents[3]
_PROBE = """
import json, sys
from pathlib import Path
from mmf_win import compat
compat.install(Path(sys.argv[1]))
import torch
from mmf.common.registry import registry
from mmf.common.sample import SampleList
from mmf.modules.losses import MMFLoss
from mmf_win.worker.hooks import distillation
distillation.register({"7": 0.9, "8": 0.2}, 0.75)
loss, losses = MMFLoss("cross_entropy"), {}
for split in ("train", "val"):
    rows = SampleList()
    rows.id, rows.targets = torch.tensor([8, 7], dtype=torch.int), torch.tensor([1, 0])
    rows.dataset_type, rows.dataset_name = split, "hateful_memes"
    scores = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    losses |= {key: value.item() for key, value in loss(rows, {"scores": scores}).items()}
print(json.dumps(losses))
"""


def test_training_uses_the_weighted_loss_and_validation_the_loss_of_mmf(mmf_root: Path) -> None:
    command = [sys.executable, "-c", _PROBE, str(mmf_root)]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=300)
    # -log of the softmax: of row 8 for the classes 0 and 1, and of row 7.
    row_8 = math.log(1 + math.exp(-1)), 1 + math.log(1 + math.exp(-1))
    row_7 = 2 + math.log(1 + math.exp(-2)), math.log(1 + math.exp(-2))
    label_loss = (row_8[1] + row_7[0]) / 2
    teacher_loss = (0.8 * row_8[0] + 0.2 * row_8[1] + 0.1 * row_7[0] + 0.9 * row_7[1]) / 2
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "train/hateful_memes/cross_entropy": pytest.approx(0.75 * teacher_loss + 0.25 * label_loss),
        "val/hateful_memes/cross_entropy": pytest.approx(label_loss),
    }

"""The loss of a student, in the real MMF: the teacher's share and MMF's own."""

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
loss, found = MMFLoss("cross_entropy"), {}
for split in ("train", "val"):
    rows = SampleList()
    rows.id, rows.targets = torch.tensor([8, 7], dtype=torch.int), torch.tensor([1, 0])
    rows.dataset_type, rows.dataset_name = split, "hateful_memes"
    scores = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    found |= {key: value.item() for key, value in loss(rows, {"scores": scores}).items()}
print(json.dumps(found))
"""


def test_the_loss_is_the_weighted_mean_in_training_and_mmfs_own_in_validation(mmf_root: Path) -> None:
    words = [sys.executable, "-c", _PROBE, str(mmf_root)]
    done = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=300)
    # -log of the softmax: of row 8 for the classes 0 and 1, and of row 7.
    row_8 = math.log(1 + math.exp(-1)), 1 + math.log(1 + math.exp(-1))
    row_7 = 2 + math.log(1 + math.exp(-2)), math.log(1 + math.exp(-2))
    own = (row_8[1] + row_7[0]) / 2
    soft = (0.8 * row_8[0] + 0.2 * row_8[1] + 0.1 * row_7[0] + 0.9 * row_7[1]) / 2
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "train/hateful_memes/cross_entropy": pytest.approx(0.75 * soft + 0.25 * own),
        "val/hateful_memes/cross_entropy": pytest.approx(own),
    }

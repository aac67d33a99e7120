"""Messages of a failed export to ONNX."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.worlds.tools import requires_package

pytestmark = requires_package("torch", "onnxscript")

_EXPORT = """
from mmf_win.upstream.install import find_mmf
from mmf_win import compat
compat.install(find_mmf().root)
import torch
from torch import nn
from mmf_win.errors import UsageError
from mmf_win.worker.tasks.export import ExportableModel, export_program

class Model(nn.Module):
    def forward(self, batch):
        tokens = batch.input_ids.float()
        scores = torch.linalg.eigvals(tokens[:, :2, None] * tokens[:, None, :2]).real
        return {"scores": scores[:, :WANTED]}

inputs = {name: torch.ones(3, 9, dtype=torch.long) for name in ("input_ids", "input_mask")}
try:
    export_program("my_model", ExportableModel(Model(), None), inputs)
except UsageError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("scores", "message"), [(2, "No ONNX function found for <OpOverload(op='aten.linalg_eig'"), (1, "not two")]
)
def test_reason_of_a_failed_export_is_named(scores: int, message: str) -> None:
    command = [sys.executable, "-c", _EXPORT.replace("WANTED", str(scores))]
    environment = {**os.environ, "PYTHONUTF8": "1"}  # as in workers: torch prints a ✅
    output = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", env=environment).stdout
    assert " cannot export my_model (" in output and message in output

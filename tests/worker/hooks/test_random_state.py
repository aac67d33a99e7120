"""Restoring of a model, its optimizer and the random generators, with those of torch."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

pytestmark = pytest.mark.torch


def test_preserve_state_restores_model_optimizer_and_generators() -> None:
    import torch

    from mmf_win.worker.hooks.random_state import preserve_state

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()

    def copy_state() -> Any:
        tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return tensors, copy.deepcopy(optimizer.state_dict()), torch.get_rng_state(), random.getstate()

    train()
    model[1].eval()
    before = copy_state()
    with preserve_state(model, optimizer):
        model.train()
        optimizer.param_groups[0]["lr"] = 1.0
        train()
        random.random()
        with pytest.raises(AssertionError):
            torch.testing.assert_close(copy_state(), before, rtol=0, atol=0)
    torch.testing.assert_close(copy_state(), before, rtol=0, atol=0)
    assert not model[1].training and model[0].training
    assert all(parameter.grad is None for parameter in model.parameters())

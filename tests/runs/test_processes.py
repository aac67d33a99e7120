"""Planning of training processes, with fake GPUs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mmf_win.errors import UsageError
from mmf_win.runs.plan import plan_processes, require_divisible_batch
from mmf_win.runs.request import CommandOptions


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("options", "visible", "count"),
    [
        ({}, None, 1),
        ({"nproc": "auto"}, None, 2),
        ({"nproc": "auto"}, "1", 1),
        ({"nproc": "auto"}, "", 1),
        ({"nproc": "auto", "cpu": True}, None, 1),
        ({"nproc": 2}, None, 2),
        ({"nproc": 3, "cpu": True}, None, 3),
        ({"nproc": 3}, "-1", 3),
    ],
    ids=str,
)
def test_process_count_follows_gpus_with_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], visible: str | None, count: int
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert plan_processes(CommandOptions(**options))["nproc"] == count


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(("nproc", "visible"), [(3, None), (2, "1")])
def test_more_processes_than_gpus_are_rejected_with_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, nproc: int, visible: str | None
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UsageError, match="GPU") as refused:
        plan_processes(CommandOptions(nproc=nproc))
    assert refused.value.hint is not None and "--cpu" in refused.value.hint


@pytest.mark.usefixtures("nvml")
def test_unused_gpus_are_logged_with_fake_nvml(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    plan_processes(CommandOptions(nproc=1))
    assert not caplog.messages
    plan_processes(CommandOptions())
    assert "--nproc auto" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"rdzv": "here:1"},
        {"node_rank": 0},
        {"nnodes": 2},
        {"nnodes": 2, "node_rank": 1},
        {"nnodes": 2, "node_rank": 1, "rdzv": "here"},
        {"nnodes": 2, "node_rank": 1, "rdzv": ":29500"},
        {"nnodes": 2, "node_rank": 2, "rdzv": "here:29500"},
    ],
    ids=str,
)
def test_incomplete_rendezvous_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        plan_processes(CommandOptions(**options))


def test_indivisible_batch_is_rejected_with_its_divisors() -> None:
    require_divisible_batch({"training": {"batch_size": 32}}, 4)
    with pytest.raises(UsageError, match="32 rows") as refused:
        require_divisible_batch({"training": {"batch_size": 32}}, 3)
    assert refused.value.hint is not None and "1, 2, 4, 8, 16, 32" in refused.value.hint

"""Threads that work for the one that started them, and how many are worth starting."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from mmf_win.threads import cpu_quota, limit_threads, processors, result_of


def test_a_timeout_that_the_job_itself_has_raised_is_no_reason_to_wait() -> None:
    future: Future[int] = Future()
    future.set_exception(TimeoutError("the drive does not answer"))
    with pytest.raises(TimeoutError, match="drive"):
        result_of(future)


def control_groups(root: Path, groups: str, files: Mapping[str, str]) -> Path:
    """Write a tree in which a process is in ``groups``, and return its root."""
    written = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


_V1 = "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "cut off"}, math.inf),
        ("0::/\n", {}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n", "a/cpu.max": "400000 100000\n"}, 1.5),
        ("0::/a/b\n", {"other/cpu.max": "100000 100000\n"}, math.inf),
        (_V1, {"cpu/docker/1/cpu.cfs_quota_us": "300000", "cpu/docker/1/cpu.cfs_period_us": "100000"}, 3),
        (_V1, {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        (_V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        (_V1, {"memory/cpu.max": "100000 100000"}, math.inf),
    ],
)
def test_the_smallest_cpu_quota_of_a_control_group_and_those_above_it_counts(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float
) -> None:
    assert cpu_quota(control_groups(tmp_path, groups, files)) == quota


@pytest.mark.parametrize(("quota", "threads"), [("100000", 1), ("50000", 1), ("150000", 2), ("900000", 8)])
def test_no_more_processors_are_used_than_the_cpu_quota_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, threads: int
) -> None:
    for name in ("cpu_count", "process_cpu_count"):
        monkeypatch.setattr(os, name, lambda: 8, raising=False)
    assert processors(tmp_path) == 8
    root = control_groups(tmp_path, "0::/\n", {"cpu.max": f"{quota} 100000"})
    assert processors(root) == threads


def test_libraries_start_no_more_threads_than_the_cpu_quota_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that it is removed afterwards
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(1, tmp_path)
    assert "OMP_NUM_THREADS" not in os.environ
    root = control_groups(tmp_path, "0::/\n", {"cpu.max": "50000 100000"})
    limit_threads(1, root)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    limit_threads(1, root)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(2, tmp_path)
    assert os.environ["OMP_NUM_THREADS"] == str(max(1, processors(tmp_path) // 2))

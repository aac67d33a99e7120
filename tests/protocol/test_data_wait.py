"""Recommended numbers of DataLoader workers for measured times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmf_win.protocol.data_wait import DataWaitStats

ON_GPU = DataWaitStats(wait_s=0.41, update_s=1.0, workers=0, threads=1, processors=8, batch_s=0.41, batch_cpu_s=0.41)


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({}, 1),  # makes a batch in 0.41 s, while the GPU takes 0.59 s
        ({"wait_s": 0.8, "batch_s": 0.8, "batch_cpu_s": 0.8}, 4),
        ({"wait_s": 0.41, "batch_s": 1.2, "batch_cpu_s": 1.2}, 2),  # mostly while the GPU works
        ({"wait_s": 0.41, "workers": 2, "batch_cpu_s": None}, 4),  # both workers are always loading: 2 s per batch
        ({"wait_s": 0.41, "workers": 7, "batch_cpu_s": None}, None),  # no other CPU is available
        ({"wait_s": 0.09, "batch_s": 0.09, "batch_cpu_s": 0.09}, None),  # less than a tenth can be gained
        ({"processors": 2}, 1),
        ({"processors": 1}, None),
    ],
)
def test_recommended_workers_with_a_gpu(changes: dict[str, float], workers: int | None) -> None:
    assert replace(ON_GPU, **changes).recommend_workers() == workers  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("processors", "threads", "batch_cpu_s", "workers"),
    [
        (2, 2, 0.41, None),  # both CPUs compute, so workers would slow them down
        (2, 1, 0.41, 1),
        (2, 2, 0.02, 1),  # a worker that waits for a disk uses no CPU
        (16, 16, 0.41, 1),
        (3, 3, 0.41, 1),
    ],
)
def test_recommended_workers_on_a_cpu_need_spare_cpus(
    processors: int, threads: int, batch_cpu_s: float, workers: int | None
) -> None:
    waiting = replace(ON_GPU, processors=processors, threads=threads, batch_cpu_s=batch_cpu_s)
    assert waiting.recommend_workers() == workers


def test_wait_is_significant_from_a_fifth_of_the_time() -> None:
    assert not replace(ON_GPU, wait_s=0.19).is_significant
    assert replace(ON_GPU, wait_s=0.2).is_significant
    assert not DataWaitStats(0.0, 0.0, 0, 1, 8, 0.0).is_significant
    assert replace(ON_GPU, wait_s=0.041, batch_s=0.041, batch_cpu_s=0.041, update_s=0.1).is_significant


def test_no_workers_are_recommended_for_a_short_wait() -> None:
    assert replace(ON_GPU, wait_s=0.49, batch_s=0.49, batch_cpu_s=0.49, update_s=1.0).recommend_workers() is not None
    assert replace(ON_GPU, wait_s=0.049, batch_s=0.049, batch_cpu_s=0.049, update_s=0.1).recommend_workers() is None
    assert str(ON_GPU) == "the model waits for data 41 % of the time"


def test_wait_without_cpu_time_is_io_bound() -> None:
    assert replace(ON_GPU, batch_cpu_s=0.1).is_io_bound
    assert not replace(ON_GPU, batch_cpu_s=0.3).is_io_bound
    assert replace(ON_GPU, batch_s=1.2, batch_cpu_s=0.3).is_io_bound
    assert not replace(ON_GPU, batch_cpu_s=None).is_io_bound, "the CPU time of workers is unknown"

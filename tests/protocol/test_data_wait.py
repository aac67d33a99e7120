"""Recommended numbers of DataLoader workers for measured times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmf_win.protocol.data_wait import DataWaitStats

ON_GPU = DataWaitStats(waited=0.41, update=1.0, workers=0, threads=1, processors=8, making=0.41, cpu=0.41)


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({}, 1),  # makes a batch in 0.41 s, while the GPU takes 0.59 s
        ({"waited": 0.8, "making": 0.8, "cpu": 0.8}, 4),
        ({"waited": 0.41, "making": 1.2, "cpu": 1.2}, 2),  # mostly while the GPU works
        ({"waited": 0.41, "workers": 2, "cpu": None}, 4),  # both workers load batches all the time: 2 s per batch
        ({"waited": 0.41, "workers": 7, "cpu": None}, None),  # no other CPU is available
        ({"waited": 0.09, "making": 0.09, "cpu": 0.09}, None),  # less than a tenth can be gained
        ({"processors": 2}, 1),
        ({"processors": 1}, None),
    ],
)
def test_recommended_workers_with_a_gpu(changes: dict[str, float], workers: int | None) -> None:
    assert replace(ON_GPU, **changes).recommend_workers() == workers  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("processors", "threads", "cpu", "workers"),
    [
        (2, 2, 0.41, None),  # both CPUs compute, so workers would slow them down
        (2, 1, 0.41, 1),
        (2, 2, 0.02, 1),  # a worker that waits for a disk uses no CPU
        (16, 16, 0.41, 1),
        (3, 3, 0.41, 1),
    ],
)
def test_recommended_workers_on_a_cpu_need_spare_cpus(
    processors: int, threads: int, cpu: float, workers: int | None
) -> None:
    waiting = replace(ON_GPU, processors=processors, threads=threads, cpu=cpu)
    assert waiting.recommend_workers() == workers


def test_wait_is_significant_from_a_fifth_of_the_time() -> None:
    assert not replace(ON_GPU, waited=0.19).is_significant
    assert replace(ON_GPU, waited=0.2).is_significant
    assert not DataWaitStats(0.0, 0.0, 0, 1, 8, 0.0).is_significant
    assert replace(ON_GPU, waited=0.041, making=0.041, cpu=0.041, update=0.1).is_significant


def test_no_workers_are_recommended_for_a_short_wait() -> None:
    assert replace(ON_GPU, waited=0.49, making=0.49, cpu=0.49, update=1.0).recommend_workers() is not None
    assert replace(ON_GPU, waited=0.049, making=0.049, cpu=0.049, update=0.1).recommend_workers() is None
    assert str(ON_GPU) == "the model waits for data 41 % of the time"


def test_wait_without_cpu_time_is_io_bound() -> None:
    assert replace(ON_GPU, cpu=0.1).is_io_bound
    assert not replace(ON_GPU, cpu=0.3).is_io_bound
    assert replace(ON_GPU, making=1.2, cpu=0.3).is_io_bound
    assert not replace(ON_GPU, cpu=None).is_io_bound, "the CPU time of workers is unknown"

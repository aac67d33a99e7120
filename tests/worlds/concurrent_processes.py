"""Processes that do the same at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

PROCESS_COUNT = 3

_barrier: Any = None


def run_concurrently(task: Callable[[Path], list[str]], folder: Path) -> list[str]:
    """Run the processes at the same time and return their results.

    Args:
        task: a function of a module; it calls :func:`wait_at_barrier` where all must have come so far.
        folder: its argument.
    """
    context = get_context("spawn")
    meeting = context.Barrier(PROCESS_COUNT)
    with ProcessPoolExecutor(PROCESS_COUNT, context, _set_barrier, (meeting,)) as pool:
        rivals = [pool.submit(_run_task, task, folder) for _ in range(PROCESS_COUNT)]
        return [name for rival in rivals for name in rival.result()]


def wait_at_barrier() -> None:
    """Wait for the others."""
    _barrier.wait(timeout=120)


def _set_barrier(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _run_task(task: Callable[[Path], list[str]], folder: Path) -> list[str]:
    try:
        wait_at_barrier()  # so that each process has one of the tasks
        return task(folder)
    except BrokenBarrierError:
        raise
    except BaseException:
        _barrier.abort()  # the others would wait for this one
        raise

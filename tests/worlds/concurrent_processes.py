"""Processes that run the same function at the same time."""

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
    """Run a function in several processes at the same time and return all results.

    Args:
        task: Module-level function; it calls :func:`wait_at_barrier` to wait until all processes are there.
        folder: Argument of the function.
    """
    context = get_context("spawn")
    barrier = context.Barrier(PROCESS_COUNT)
    with ProcessPoolExecutor(PROCESS_COUNT, context, _set_barrier, (barrier,)) as pool:
        futures = [pool.submit(_run_task, task, folder) for _ in range(PROCESS_COUNT)]
        return [name for future in futures for name in future.result()]


def wait_at_barrier() -> None:
    """Wait until all processes have called this function."""
    _barrier.wait(timeout=120)


def _set_barrier(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _run_task(task: Callable[[Path], list[str]], folder: Path) -> list[str]:
    try:
        wait_at_barrier()  # ensures that each process runs one task
        return task(folder)
    except BrokenBarrierError:
        raise
    except BaseException:
        _barrier.abort()  # otherwise the other processes would wait for this one
        raise

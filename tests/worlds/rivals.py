"""Processes that do the same at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

COUNT = 3

_meeting: Any = None


def compete(task: Callable[[Path], list[str]], folder: Path) -> list[str]:
    """What the processes return together.

    Args:
        task: a function of a module; it calls :func:`meet` where all must have come so far.
        folder: its argument.
    """
    context = get_context("spawn")
    meeting = context.Barrier(COUNT)
    with ProcessPoolExecutor(COUNT, context, _begin, (meeting,)) as pool:
        rivals = [pool.submit(_compete, task, folder) for _ in range(COUNT)]
        return [name for rival in rivals for name in rival.result()]


def meet() -> None:
    """Wait for the others."""
    _meeting.wait(timeout=120)


def _begin(meeting: Any) -> None:
    global _meeting
    _meeting = meeting


def _compete(task: Callable[[Path], list[str]], folder: Path) -> list[str]:
    try:
        meet()  # so that each process has one of the tasks
        return task(folder)
    except BrokenBarrierError:
        raise
    except BaseException:
        _meeting.abort()  # the others would wait for this one
        raise

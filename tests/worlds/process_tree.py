"""Signals to every process of a job, as schedulers and containers send them; needs ``/proc``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def list_process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants, the oldest first."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # pid (name) state parent …, where the name may hold anything
            parents[int(stat.parent.name)] = int(stat.read_bytes().rpartition(b")")[2].split()[1])
    found = [pid]
    for each in found:
        found += sorted(child for child, parent in parents.items() if parent == each)
    return found


def signal_process_tree(pid: int, number: int) -> None:
    """Send a signal to a process and all its descendants, to these first."""
    for each in reversed(list_process_tree(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, number)

"""Signals to all processes of a job, as schedulers and containers send them; requires ``/proc``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def list_process_tree(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants, parents before children."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            # The format is "pid (name) state parent …"; the name may contain any character.
            parents[int(stat.parent.name)] = int(stat.read_bytes().rpartition(b")")[2].split()[1])
    pids = [pid]
    for ancestor in pids:
        pids += sorted(child for child, parent in parents.items() if parent == ancestor)
    return pids


def signal_process_tree(pid: int, number: int) -> None:
    """Send a signal to a process and all its descendants, to the descendants first."""
    for descendant in reversed(list_process_tree(pid)):
        with suppress(ProcessLookupError):
            os.kill(descendant, number)

"""Removes runs from disk."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from mmf_win.errors import UsageError
from mmf_win.files import rename
from mmf_win.locking import is_locked
from mmf_win.runs.folder import Run


def require_idle(run: Run) -> None:
    """See to it that no process trains the run.

    Raises:
        UsageError: one does.
    """
    if is_locked(run.lock):
        raise UsageError(f"run {run.id} is being trained", hint="stop it first, or wait until it has ended")


def remove(run: Run) -> None:
    """Remove the run's folder, and its name's where that was the last run of the name.

    Where the run's folder is a link, what it leads to is removed, too.

    It is renamed first, so that what an interrupted removal leaves is no longer listed as a run.

    Raises:
        UsageError: the run is being trained.
        OSError: it cannot be removed; Windows refuses that for files that are open.
    """
    require_idle(run)
    folder = run.path.resolve()
    doomed = folder.with_name(f"{folder.name}.removed")
    rename(folder, doomed)
    (doomed / run.request_file.name).unlink(missing_ok=True)
    shutil.rmtree(doomed)
    with suppress(OSError):
        if os.path.lexists(run.path):  # a link, or a junction of Windows, which now leads nowhere
            run.path.unlink()
        parent = run.path.parent
        # Windows would remove a link to it even if it is not empty.
        if parent.resolve() == parent.parent.resolve() / parent.name:
            parent.rmdir()

"""Opening an archive where that may take a while."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from mmf_win.archives import Archive, Ask, open_archive
from mmf_win.console import Progress


def open_with_progress(path: Path, ask: Ask | None = None) -> Archive:
    """Open an archive, with a bar if it has to be read to be listed, as a compressed tar has.

    Raises:
        ArchiveError: see :func:`mmf_win.archives.open_archive`.
        PasswordError: likewise.
    """
    with ExitStack() as stack:
        bars: list[Progress] = []

        def advance(amount: int) -> None:
            if not bars:
                bars.append(stack.enter_context(Progress("Listing", path.stat().st_size)))
            bars[0].advance(amount)

        return open_archive(path, ask, progress=advance)

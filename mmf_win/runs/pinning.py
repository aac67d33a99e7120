"""Keeps the bytes of a checkpoint for as long as they predict, whatever happens to the file's name.

A training replaces ``best.ckpt`` while another command predicts with it; a score must name the weights that
it was measured with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mmf_win.errors import CheckpointError, MmfwError
from mmf_win.files import remove_tree, share
from mmf_win.integrity.digest import hash_file
from mmf_win.locking import locked
from mmf_win.runs.folder import Run, reading


@dataclass
class PinnedCheckpoint:
    """A checkpoint that keeps its bytes, or whose change is noticed.

    Attributes:
        original: the file that the user named or that stands for ``best`` or ``last``.
        path: what to read instead: a second name of the same bytes, or ``original`` where there is none.
    """

    original: Path
    path: Path
    _sha256: str | None = None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let an error of a worker, which knows the pin only, name the original file."""
        try:
            yield
        except MmfwError as error:
            error.args = (str(error).replace(str(self.path), str(self.original)),)
            error.hint = error.hint and error.hint.replace(str(self.path), str(self.original))
            raise
        except OSError as error:
            if error.filename == str(self.path):
                error.filename = str(self.original)
            raise

    def require_unchanged(self) -> None:
        """Raise CheckpointError if the file was replaced since it was pinned, and had no second name."""
        if self.path == self.original and self._hash() != self.sha256():
            message = f"{self.original}: it was replaced while it was in use"
            raise CheckpointError(message, hint="run the same command again when no training writes it")

    def sha256(self) -> str:
        """Return the hash of the bytes, in hexadecimal digits."""
        self._sha256 = self._sha256 or self._hash()
        return self._sha256

    def _hash(self) -> str:
        return hash_file(self.path, f"hashing {self.path.name}")


@contextmanager
def pinned(run: Run, checkpoint: Path, *, by_name: bool = True) -> Iterator[PinnedCheckpoint]:
    """Pin a checkpoint in the folder of a run, which is not removed meanwhile.

    The pin is a hard link, or a copy if the file system has no links. If it cannot be made, since the run may
    only be read, the file is hashed before and after it is used. A pin that a killed command has left is
    removed by the next one.

    Args:
        by_name: whether to make a second name; else the file is hashed before and after.
    """
    if run.pins.is_dir():
        with suppress(MmfwError, OSError), locked(run.readers):  # nobody reads, so these are left over
            remove_tree(run.pins)
    with reading(run):
        pin, owner = PinnedCheckpoint(checkpoint, checkpoint), os.getpid()
        folder = run.pins / f"{owner}-{os.urandom(4).hex()}"
        try:
            with suppress(OSError):
                if by_name:
                    run.pins.mkdir(exist_ok=True)
                    folder.mkdir()
                    share(checkpoint, folder / checkpoint.name)
                    pin.path = folder / checkpoint.name
            if pin.path == checkpoint:
                pin.sha256()
            with pin.named():
                yield pin
        finally:
            if os.getpid() == owner:  # not a fork, which may end before
                with suppress(OSError):
                    remove_tree(folder)
                    run.pins.rmdir()  # the last one

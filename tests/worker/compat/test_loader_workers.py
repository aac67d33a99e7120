"""How a DataLoader's worker ended, where torch's own signal handler could not tell."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

_LOADER = """
import os, signal, sys
from threading import Event
from torch.utils.data import DataLoader, Dataset, dataloader
from mmf_win.worker.compat.torch import say_how_workers_died

class Rows(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        sys.exit(3) if sys.argv[1] == "exits" else os.kill(os.getpid(), signal.SIGKILL)

say_how_workers_died(dataloader)
rows = iter(DataLoader(Rows(), num_workers=1))
signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as if the handler's error had been swallowed
try:
    next(rows)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize(("end", "kind"), [("killed", "MemoryError"), ("exits", "RuntimeError")])
def test_a_worker_that_the_system_killed_means_a_lack_of_memory(end: str, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADER, end],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.stdout.startswith(f"{kind} DataLoader worker (pid")

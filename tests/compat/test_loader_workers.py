"""Errors that a DataLoader reports if its worker dies or cannot pass a batch on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from mmf_win.compat.dataloader import report_worker_deaths
from tests.worlds.mounts import private_mounts_command

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals, limits and /dev/shm"),
]

_LOADER = """
import multiprocessing, os, resource, signal, sys
from multiprocessing.reduction import DupFd
import torch
from torch.utils.data import DataLoader, Dataset, dataloader
from torch.utils.data._utils import worker
from mmf_win.compat.dataloader import send_worker_errors, report_worker_deaths
from mmf_win.worker.outcome import classify_exception

def leave_handles(count):
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + count, free + count))

class Rows(Dataset):
    def __init__(self, how):
        self.how = how
        self.go_on = multiprocessing.Event()
    def __len__(self):
        return 4
    def __getitem__(self, index):
        how = self.how
        self.go_on.wait()
        if how == "exits":
            sys.exit(3)
        if how.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[how])
        row = torch.zeros(1 << 16)
        if how == "no handle to share with":
            leave_handles(0)
        if how == "no handle to pass on with":
            row.share_memory_()
            DupFd(0)  # which starts the thread that passes them on
            leave_handles(1)
        return row

send_worker_errors(worker)
report_worker_deaths(dataloader)
for how in sys.argv[1:]:
    dataset = Rows(how)
    rows = iter(DataLoader(dataset, num_workers=1, batch_size=None))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as if the error of torch's handler had been swallowed
    dataset.go_on.set()  # not before: the handler would tell of a worker that is dead already
    try:
        print(len([*rows]), "rows")
    except Exception as error:
        end = classify_exception(error)
        print(f"{end.kind}: {end.message}; {end.hint}")
"""


_ENDS = {
    "SIGKILL": r"host_oom: .* killed \(signal: Killed\); None",
    "SIGBUS": r"host_oom: .* killed \(signal: Bus error\); None",
    "SIGSEGV": r"killed: .* killed \(signal: Segmentation fault\); set training\.num_workers=0 ",
    "exits": r"internal: .*DataLoader worker \(pid",
    "no handle to share with": r"disk: .*Too many open files.*num_workers",
    "no handle to pass on with": r"disk: .*Too many open files.*num_workers",
    "goes on": "4 rows",
}


def told(*hows: str, wrapper: Sequence[str] = ()) -> list[str]:
    """Return the reports of loaders whose workers end in these ways."""
    command = [*wrapper, sys.executable, "-c", _LOADER, *hows]
    return subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=120
    ).stdout.splitlines()


def test_how_a_worker_ended_and_that_it_cannot_go_on() -> None:
    for answer, end in zip(told(*_ENDS), _ENDS.values(), strict=True):
        assert re.match(end, answer)


def test_a_fake_worker_that_has_closed_its_files_is_waited_for_until_it_has_an_exit_code() -> None:
    reads, writes = os.pipe()
    os.close(writes)

    class Ending:
        sentinel, pid, exitcode = reads, 7, None

        def join(self) -> None:
            self.exitcode = -signal.SIGKILL

    class Iterator:
        _workers = (Ending(),)

        def _try_get_data(self) -> None:
            raise EOFError

    report_worker_deaths(SimpleNamespace(_MultiProcessingDataLoaderIter=Iterator))
    with pytest.raises(RuntimeError, match="killed by signal"):
        Iterator()._try_get_data()
    os.close(reads)


def test_shared_memory_that_is_full_means_a_lack_of_memory() -> None:
    (answer,) = told("goes on", wrapper=private_mounts_command("mount -t tmpfs -o size=100k tmpfs /dev/shm"))
    assert re.match("host_oom: .*shared memory", answer)

"""Errors that a DataLoader reports if its worker dies or cannot send a batch."""

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

def limit_free_handles(count):
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + count, free + count))

class FailingRows(Dataset):
    def __init__(self, behaviour):
        self.behaviour = behaviour
        self.released = multiprocessing.Event()
    def __len__(self):
        return 4
    def __getitem__(self, index):
        behaviour = self.behaviour
        self.released.wait()
        if behaviour == "exits":
            sys.exit(3)
        if behaviour.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[behaviour])
        row = torch.zeros(1 << 16)
        if behaviour == "no handle for shared memory":
            limit_free_handles(0)
        if behaviour == "no handle for sending":
            row.share_memory_()
            DupFd(0)  # starts the thread that sends file handles
            limit_free_handles(1)
        return row

send_worker_errors(worker)
report_worker_deaths(dataloader)
for behaviour in sys.argv[1:]:
    dataset = FailingRows(behaviour)
    rows = iter(DataLoader(dataset, num_workers=1, batch_size=None))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as if the error of torch's signal handler was swallowed
    dataset.released.set()  # not earlier: the handler would report a worker that is already dead
    try:
        print(len([*rows]), "rows")
    except Exception as error:
        outcome = classify_exception(error)
        print(f"{outcome.kind}: {outcome.message}; {outcome.hint}")
"""


_REPORTS = {
    "SIGKILL": r"host_oom: .* killed \(signal: Killed\); None",
    "SIGBUS": r"host_oom: .* killed \(signal: Bus error\); None",
    "SIGSEGV": r"killed: .* killed \(signal: Segmentation fault\); set `training\.num_workers=0` ",
    "exits": r"internal: .*DataLoader worker \(pid",
    "no handle for shared memory": r"disk: .*Too many open files.*num_workers",
    "no handle for sending": r"disk: .*Too many open files.*num_workers",
    "succeeds": "4 rows",
}


def read_reports(*behaviours: str, wrapper: Sequence[str] = ()) -> list[str]:
    """Return a report for each loader, whose worker behaves as given."""
    command = [*wrapper, sys.executable, "-c", _LOADER, *behaviours]
    return subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=120
    ).stdout.splitlines()


def test_loader_reports_how_its_worker_ended() -> None:
    for report, pattern in zip(read_reports(*_REPORTS), _REPORTS.values(), strict=True):
        assert re.match(pattern, report)


def test_fake_worker_with_closed_pipe_is_joined_for_its_exit_code() -> None:
    reader, writer = os.pipe()
    os.close(writer)

    class FakeWorker:
        sentinel, pid, exitcode = reader, 7, None

        def join(self) -> None:
            self.exitcode = -signal.SIGKILL

    class LoaderIterator:
        _workers = (FakeWorker(),)

        def _try_get_data(self) -> None:
            raise EOFError

    report_worker_deaths(SimpleNamespace(_MultiProcessingDataLoaderIter=LoaderIterator))
    with pytest.raises(RuntimeError, match="killed by signal"):
        LoaderIterator()._try_get_data()
    os.close(reader)


def test_full_shared_memory_is_reported_as_lack_of_memory() -> None:
    (report,) = read_reports("succeeds", wrapper=private_mounts_command("mount -t tmpfs -o size=100k tmpfs /dev/shm"))
    assert re.match("host_oom: .*shared memory", report)

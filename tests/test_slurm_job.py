"""Job script of docs/remote.md in a real bash; SLURM and mmfw are stubs that record their calls."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.worlds.slurm import SlurmStub
from tests.worlds.tools import requires_tool

pytestmark = requires_tool("bash", exists_on_windows=False)

# Trains until a signal stops it, for at most a minute; if resumed, it ends at once.
MMFW_STUB = """\
#!/bin/sh
echo "$*" >> calls
[ -n "$STUB_ENDS" ] && exit "$STUB_ENDS"
case "$*" in *--resume*) exit 0 ;; esac
stop() {
    trap '' HUP TERM USR1
    echo stopped >> signals
    mkdir -p save/vilbert-1/2026-01-01T00-00-00/checkpoints
    touch save/vilbert-1/2026-01-01T00-00-00/checkpoints/current.ckpt
    exit "${STUB_STOPS:-130}"
}
trap stop HUP TERM USR1
touch ready
n=0
while [ "$n" -lt 3000 ]; do
    n=$((n + 1))
    sleep 0.02
done
"""
ARGUMENTS = ("vilbert.yaml", "--updates", "6")
FIRST_CALL, RESUME_CALL = "train vilbert.yaml --updates 6 --name vilbert-1", "train --resume vilbert-1"


def has_signal_handler(process: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal; True if the system does not report it."""
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        return True
    [mask] = re.findall(r"^SigCgt:\s*(\w+)", status.read_text(encoding="utf-8"), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def wait_until_ready(cluster: SlurmStub, job: subprocess.Popen[bytes]) -> None:
    """Wait until both the stub of mmfw and the job are ready for signals."""
    while not ((cluster.folder / "ready").exists() and has_signal_handler(job.pid, signal.SIGTERM)):
        assert job.poll() is None
        time.sleep(0.01)


@pytest.mark.parametrize("number", ["SIGUSR1", "SIGTERM"])
@pytest.mark.parametrize("recipient", ["the shell", "every process"])
def test_job_with_signal_stops_mmfw_once_is_requeued_and_resumes(user_dir: Path, number: str, recipient: str) -> None:
    cluster = SlurmStub(user_dir, MMFW_STUB)
    with cluster.start_job(*ARGUMENTS) as job:
        wait_until_ready(cluster, job)
        (os.kill if recipient == "the shell" else os.killpg)(job.pid, getattr(signal, number))
        assert job.wait() == 130
    assert cluster.read_lines("signals") == ["stopped"]
    assert cluster.scontrol_calls() == ["requeue 7"]
    with cluster.start_job(*ARGUMENTS, restarts=1) as job:
        assert job.wait() == 0
    assert cluster.read_lines("calls") == [FIRST_CALL, RESUME_CALL]
    assert cluster.scontrol_calls() == ["requeue 7"], "the job must be requeued only once"


def test_job_is_not_requeued_if_mmfw_cannot_save(user_dir: Path) -> None:
    cluster = SlurmStub(user_dir, MMFW_STUB, {"STUB_STOPS": "5"})
    with cluster.start_job(*ARGUMENTS) as job:
        wait_until_ready(cluster, job)
        job.send_signal(signal.SIGUSR1)
        assert job.wait() == 5
    assert cluster.scontrol_calls() == []


@pytest.mark.parametrize("code", [0, 7, 130])
def test_job_without_signal_has_exit_code_of_mmfw_and_is_not_requeued(user_dir: Path, code: int) -> None:
    cluster = SlurmStub(user_dir, MMFW_STUB, {"STUB_ENDS": str(code)})
    with cluster.start_job(*ARGUMENTS) as job:
        assert job.wait() == code
    assert cluster.read_lines("calls") == [FIRST_CALL] and cluster.scontrol_calls() == []


def test_restarted_job_without_checkpoint_starts_over(user_dir: Path) -> None:
    cluster = SlurmStub(user_dir, MMFW_STUB, {"STUB_ENDS": "0"})
    (user_dir / "save" / "vilbert-1" / "2026-01-01T00-00-00" / "checkpoints").mkdir(parents=True)
    with cluster.start_job(*ARGUMENTS, restarts=1) as job:
        assert job.wait() == 0
    assert cluster.read_lines("calls") == [FIRST_CALL]


def test_first_start_of_job_does_not_resume_older_run_of_its_name(user_dir: Path) -> None:
    cluster = SlurmStub(user_dir, MMFW_STUB, {"STUB_ENDS": "0"})
    saved = user_dir / "save" / "vilbert-1" / "2026-01-01T00-00-00" / "checkpoints" / "current.ckpt"
    saved.parent.mkdir(parents=True)
    saved.touch()
    with cluster.start_job(*ARGUMENTS) as job:
        assert job.wait() == 0
    assert cluster.read_lines("calls") == [FIRST_CALL]

"""Job script of docs/remote.md in a real bash with a real training; a stub of SLURM records its calls."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from mmf_win.runs.history import RunRecord, run_state
from mmf_win.runs.lookup import list_runs
from tests.endtoend.conftest import SetFaults, Tool, start_updates
from tests.worlds.slurm import SlurmStub
from tests.worlds.tools import requires_tool

pytestmark = [pytest.mark.wide, requires_tool("bash", exists_on_windows=False)]
_UPDATES = 6


def create_stub_cluster(tool: Tool) -> tuple[SlurmStub, list[str]]:
    """Return a stub of a cluster with this mmfw and the arguments of a job that trains a ViLBERT."""
    environment = {"MMF_DATA_DIR": str(tool.world.data), "MMF_SAVE_DIR": str(tool.save_dir)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    mmfw = f'#!/bin/sh\nexec "{sys.executable}" -m mmf_win "$@"\n'
    arguments = [tool.write_preset("vilbert"), "--updates", str(_UPDATES), "--seed", "1"]
    return SlurmStub(tool.folder, mmfw, environment), arguments


@pytest.mark.parametrize("signal_name, receiver", [("SIGUSR1", "shell"), ("SIGTERM", "shell"), ("SIGTERM", "all")])
def test_stub_job_that_gets_signal_is_saved_requeued_and_resumed(
    tool: Tool, set_faults: SetFaults, tmp_path: Path, signal_name: str, receiver: str
) -> None:
    reached, (cluster, arguments) = tmp_path / "reached", create_stub_cluster(tool)
    set_faults({"at": "forward", "do": "wait_to_be_stopped", "update": 3, "once": str(reached)})
    with cluster.start_job(*arguments) as job:
        while not reached.exists():
            assert job.poll() is None
            time.sleep(0.02)
        (os.kill if receiver == "shell" else os.killpg)(job.pid, getattr(signal, signal_name))
        assert job.wait() == 130
    [run] = list_runs(tool.save_dir)
    assert run_state(run) == "interrupted" and (run.checkpoints / "current.ckpt").is_file()
    assert cluster.scontrol_calls() == ["requeue 7"]
    with cluster.start_job(*arguments, restarts=1) as job:
        assert job.wait() == 0
    assert [run] == list_runs(tool.save_dir) and run.path.parent.name == "vilbert-1"
    assert (run_state(run), RunRecord.read(run).summary.updates, start_updates(run)) == ("done", _UPDATES, [0, 3])
    assert cluster.scontrol_calls() == ["requeue 7"], "the job must be requeued only once"


def test_requeued_stub_job_without_checkpoint_starts_over(tool: Tool) -> None:
    cluster, arguments = create_stub_cluster(tool)
    with cluster.start_job(*arguments, restarts=1) as job:
        assert job.wait() == 0
    [run] = list_runs(tool.save_dir)
    assert (run_state(run), start_updates(run)) == ("done", [0])

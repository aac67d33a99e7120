"""The job of docs/remote.md in a real bash, with a real training; SLURM is a stub that notes its orders."""

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


def cluster_of(tool: Tool) -> tuple[SlurmStub, list[str]]:
    """A cluster on which mmfw is this one, and the words of a job that trains a ViLBERT."""
    environment = {"MMF_DATA_DIR": str(tool.world.data), "MMF_SAVE_DIR": str(tool.save_dir)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    mmfw = f'#!/bin/sh\nexec "{sys.executable}" -m mmf_win "$@"\n'
    words = [tool.preset("vilbert"), "--updates", str(_UPDATES), "--seed", "1"]
    return SlurmStub(tool.folder, mmfw, environment), words


@pytest.mark.parametrize("number, to", [("SIGUSR1", "shell"), ("SIGTERM", "shell"), ("SIGTERM", "all")])
def test_a_job_of_a_stub_that_gets_a_signal_is_saved_and_requeued_and_resumes(
    tool: Tool, set_faults: SetFaults, tmp_path: Path, number: str, to: str
) -> None:
    here, (cluster, words) = tmp_path / "here", cluster_of(tool)
    set_faults({"at": "forward", "do": "wait_to_be_stopped", "update": 3, "once": str(here)})
    with cluster.start_job(*words) as job:
        while not here.exists():
            assert job.poll() is None
            time.sleep(0.02)
        (os.kill if to == "shell" else os.killpg)(job.pid, getattr(signal, number))
        assert job.wait() == 130
    [run] = list_runs(tool.save_dir)
    assert run_state(run) == "interrupted" and (run.checkpoints / "current.ckpt").is_file()
    assert cluster.scontrol_calls() == ["requeue 7"]
    with cluster.start_job(*words, restarts=1) as job:
        assert job.wait() == 0
    assert [run] == list_runs(tool.save_dir) and run.path.parent.name == "vilbert-1"
    assert (run_state(run), RunRecord.read(run).summary.updates, start_updates(run)) == ("done", _UPDATES, [0, 3])
    assert cluster.scontrol_calls() == ["requeue 7"], "only once"


def test_a_job_of_a_stub_that_had_saved_nothing_begins_again(tool: Tool) -> None:
    cluster, words = cluster_of(tool)
    with cluster.start_job(*words, restarts=1) as job:
        assert job.wait() == 0
    [run] = list_runs(tool.save_dir)
    assert (run_state(run), start_updates(run)) == ("done", [0])

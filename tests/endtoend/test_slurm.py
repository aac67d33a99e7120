"""The job of docs/remote.md in a real bash, with a real training; SLURM is a stub that notes its orders."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmf_win.runs.history import Record, state
from mmf_win.runs.lookup import all_runs
from tests.endtoend.conftest import Faulty, Tool, starts
from tests.worlds.tools import requires_tool

pytestmark = requires_tool("bash", on_windows=False)
_UPDATES = 6


class Cluster:
    """A stub of SLURM: a folder with the job, and an environment in which mmfw is this one."""

    def __init__(self, tool: Tool) -> None:
        self._tool, self._folder = tool, tool.folder
        page = Path(__file__).parents[2].joinpath("docs", "remote.md").read_text(encoding="utf-8")
        [job] = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
        self._write("train.sbatch", job)
        self._write("bin/mmfw", f'#!/bin/sh\nexec "{sys.executable}" -m mmf_win "$@"\n')
        self._write("bin/scontrol", '#!/bin/sh\necho "$@" >> asked\n')
        self._write(".venv/bin/activate", 'PATH="$PWD/bin:$PATH"\n')

    def _write(self, name: str, text: str) -> None:
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)

    def asked(self) -> str:
        """What scontrol was asked to do."""
        file = self._folder / "asked"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def starts(self, restarts: int = 0) -> subprocess.Popen[bytes]:
        """The job starts, in the folder where it was submitted."""
        root, tool = str(Path(__file__).parents[2]), self._tool
        mmf = {"MMF_DATA_DIR": str(tool.world.data), "MMF_SAVE_DIR": str(tool.save_dir)}
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "vilbert-1", "SLURM_RESTART_COUNT": str(restarts)}
        words = ["train.sbatch", tool.preset("vilbert"), "--updates", str(_UPDATES), "--seed", "1"]
        environ = {**os.environ, **mmf, **slurm, "PYTHONPATH": root}
        return subprocess.Popen(["bash", *words], cwd=self._folder, env=environ, start_new_session=True)


@pytest.mark.parametrize("number, to", [("SIGUSR1", "shell"), ("SIGTERM", "shell"), ("SIGTERM", "all")])
def test_a_job_of_a_stub_that_gets_a_signal_is_saved_and_requeued_and_resumes(
    tool: Tool, faulty: Faulty, tmp_path: Path, number: str, to: str
) -> None:
    here, cluster = tmp_path / "here", Cluster(tool)
    faulty({"at": "forward", "do": "wait_to_be_stopped", "update": 3, "once": str(here)})
    with cluster.starts() as job:
        while not here.exists():
            assert job.poll() is None
            time.sleep(0.02)
        (os.kill if to == "shell" else os.killpg)(job.pid, getattr(signal, number))
        assert job.wait() == 130
    [run] = all_runs(tool.save_dir)
    assert state(run) == "interrupted" and (run.checkpoints / "current.ckpt").is_file()
    assert cluster.asked() == "requeue 7\n"
    with cluster.starts(restarts=1) as job:
        assert job.wait() == 0
    assert [run] == all_runs(tool.save_dir) and run.path.parent.name == "vilbert-1"
    assert (state(run), Record.read(run).summary.updates, starts(run)) == ("done", _UPDATES, [0, 3])
    assert cluster.asked() == "requeue 7\n", "only once"


def test_a_job_of_a_stub_that_had_saved_nothing_begins_again(tool: Tool) -> None:
    with Cluster(tool).starts(restarts=1) as job:
        assert job.wait() == 0
    [run] = all_runs(tool.save_dir)
    assert (state(run), starts(run)) == ("done", [0])

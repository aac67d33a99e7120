"""Stub of SLURM that starts the job of docs/remote.md and records the calls of scontrol."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path


class SlurmStub:
    """Folder from which a job is submitted.

    Args:
        folder: Folder of the job, its environment and its output.
        mmfw: Text of the program ``mmfw`` that the job starts.
        environment: Variables of the job in addition to those of SLURM.
    """

    def __init__(self, folder: Path, mmfw: str, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self._environment = folder, environment or {}
        guide = Path(__file__).parents[2].joinpath("docs", "remote.md").read_text(encoding="utf-8")
        [job] = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", guide, re.DOTALL)
        self._write("train.sbatch", job)
        self._write("bin/mmfw", mmfw)
        self._write("bin/scontrol", '#!/bin/sh\necho "$@" >> scontrol_calls\n')
        self._write(".venv/bin/activate", 'PATH="$PWD/bin:$PATH"\n')

    def _write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)

    def read_lines(self, name: str) -> list[str]:
        """Return the lines of a file in the folder; an empty list if it is missing."""
        file = self.folder / name
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def scontrol_calls(self) -> list[str]:
        """Return the arguments of each call of scontrol."""
        return self.read_lines("scontrol_calls")

    def start_job(self, *arguments: str, restarts: int = 0) -> subprocess.Popen[bytes]:
        """Start the job in a new session, with the arguments that its user passes."""
        slurm_variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "vilbert-1", "SLURM_RESTART_COUNT": str(restarts)}
        environment = {**os.environ, **self._environment, **slurm_variables}
        command = ["bash", "train.sbatch", *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True)

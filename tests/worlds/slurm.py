"""A stub of SLURM: it starts the job of docs/remote.md, and its scontrol notes what it is asked for."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path


class SlurmStub:
    """The folder in which a job was submitted.

    Args:
        folder: where the job, its environment and what it leaves are.
        mmfw: the text of the program ``mmfw`` that the job starts.
        environment: what the job gets beside the variables of SLURM.
    """

    def __init__(self, folder: Path, mmfw: str, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self._environment = folder, environment or {}
        page = Path(__file__).parents[2].joinpath("docs", "remote.md").read_text(encoding="utf-8")
        [job] = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
        self._write("train.sbatch", job)
        self._write("bin/mmfw", mmfw)
        self._write("bin/scontrol", '#!/bin/sh\necho "$@" >> asked\n')
        self._write(".venv/bin/activate", 'PATH="$PWD/bin:$PATH"\n')

    def _write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)

    def read_lines(self, name: str) -> list[str]:
        """Return the lines of a file in the folder; none where it is missing."""
        file = self.folder / name
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def scontrol_calls(self) -> list[str]:
        """Return what scontrol was asked to do."""
        return self.read_lines("asked")

    def start_job(self, *arguments: str, restarts: int = 0) -> subprocess.Popen[bytes]:
        """Start the job in a process group of its own, with the words that its user gave it."""
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "vilbert-1", "SLURM_RESTART_COUNT": str(restarts)}
        environ = {**os.environ, **self._environment, **slurm}
        command = ["bash", "train.sbatch", *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=environ, start_new_session=True)

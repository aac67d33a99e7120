"""The dataset of `mmfw demo`, for scripts that train on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mmf_win.demo.folder import PASSWORD, DemoFolder


def make_demo_dataset(path: Path) -> DemoFolder:
    """Create the dataset in a new folder with the commands that the demo uses."""
    folder = DemoFolder(path)
    folder.claim()
    folder.generate_files(1, "vilbert")
    for arguments in (
        ("convert", "--zip", str(folder.archive), "--password", PASSWORD),
        ("features", "extract", str(folder.features)),
    ):
        command = [sys.executable, "-m", "mmf_win", *arguments, "--data-dir", str(folder.data_dir)]
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if result.returncode:
            sys.exit(f"{result.stdout}\nmmfw {arguments[0]} failed")
    return folder

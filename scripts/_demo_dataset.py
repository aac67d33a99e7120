"""The dataset of `mmfw demo`, for scripts that train on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mmf_win.demo.folder import PASSWORD, DemoFolder


def make_demo_dataset(path: Path) -> DemoFolder:
    """Make it in a new folder, by the commands that the demo takes too."""
    folder = DemoFolder(path)
    folder.claim()
    folder.generate_files(1, "vilbert")
    for words in (
        ("convert", "--zip", str(folder.archive), "--password", PASSWORD),
        ("features", "extract", str(folder.features)),
    ):
        command = [sys.executable, "-m", "mmf_win", *words, "--data-dir", str(folder.data_dir)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\nmmfw {words[0]} failed")
    return folder

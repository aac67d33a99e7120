"""Implementation of scripts/demo.py, for Python 3.10 and later."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from _venv import Venv


def main(arguments: list[str]) -> int:
    """Install mmfw and MMF and run the demo; return the exit code."""
    if "--setup-only" in arguments and len(arguments) > 1:
        sys.exit("--setup-only cannot be combined with arguments of the demo.")
    venv = Venv(".venv", ["train"], cpu_torch=True)
    _print_step("1 of 3: PyTorch for the CPU and other packages: at most 0.4 GB to download, one to three minutes")
    venv.ensure_installed()
    _print_step("2 of 3: MMF: less than 1 MB to download, a few seconds")
    code = venv.run("mmfw", "setup").returncode
    if code == 0 and "--setup-only" not in arguments:
        _print_step("3 of 3: the demo: nothing to download, one to two minutes on an idle machine")
        code = venv.run("mmfw", "demo", *arguments).returncode
    if code == 0:
        programs = venv.programs
        if os.name == "nt":
            quoted, activate = subprocess.list2cmdline, [str(programs / "activate.bat")]
        else:
            quoted, activate = shlex.join, [".", str(programs / "activate")]
        _print_step("Activate .venv once in each shell, to run mmfw by its name:")
        print(f"  {quoted(activate)}\nOr type its path, for example:")
        print(f"  {quoted([venv.program_path('mmfw'), 'demo', '--keep'])}", flush=True)
    return code


def _print_step(step: str) -> None:
    print(f"\n{step}", flush=True)

"""What NVIDIA's driver says about its GPUs, asked without a library."""

from __future__ import annotations

import os
import shutil
import subprocess


def ask(*fields: str, visible_only: bool = False) -> list[list[str]]:
    """The named fields of each GPU, as ``nvidia-smi --help-query-gpu`` lists them, without their units.

    Args:
        fields: such as ``name`` and ``memory.total``.
        visible_only: leave out those that ``CUDA_VISIBLE_DEVICES`` does.

    Returns:
        Nothing without a working driver.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") if visible_only else None
    if chosen is not None and chosen.strip() in ("", "-1"):
        return []
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*command, f"--id={chosen}"] if chosen else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=20,  # a driver in trouble may never answer
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines()]
    # Without a working driver it prints a sentence instead.
    return [row for row in rows if len(row) == len(fields)] if done.returncode == 0 else []


def free_memory() -> list[int]:
    """Free bytes of each GPU that a worker would see; empty without a driver."""
    rows = ask("memory.free", visible_only=True)
    return [int(value) << 20 for (value,) in rows if value.isdecimal()]

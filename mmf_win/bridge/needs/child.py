"""Asks a module of the bridge that imports what the parent must not, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mmf_win.errors import Interrupted
from mmf_win.files import read_json


def answer_of(module: str, *words: str) -> tuple[Any, int]:
    """Run ``python -m MODULE WORDS OUTPUT``, which writes JSON to ``OUTPUT``.

    Args:
        module: of :mod:`mmf_win.bridge`.
        words: what it is given.

    Returns:
        the JSON, None where it ended before it wrote any; and its exit code.

    Raises:
        Interrupted: the user pressed Ctrl+C.
    """
    with tempfile.TemporaryDirectory(prefix="mmfw-answer-") as scratch:
        output = Path(scratch, "answer.json")
        command = [sys.executable, "-m", module, *words, str(output)]
        code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
        if code == Interrupted.exit_code:
            raise Interrupted("interrupted")
        try:
            return read_json(output), code
        except OSError:
            return None, code

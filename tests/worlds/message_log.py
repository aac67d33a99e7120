"""Collects the messages of the commands that tests run in this process, for a review of their wording.

If the environment variable ``MMFW_TEST_MESSAGES`` names a file, each line that starts with ``error:``, ``hint:`` or
``warning:`` is appended to it; existing lines are kept. tests/conftest.py registers this module as a plugin of pytest.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

VARIABLE = "MMFW_TEST_MESSAGES"

_MESSAGE = re.compile("(?:error|hint|warning):.*")
_TMP_FOLDER = re.compile(
    re.escape(tempfile.gettempdir()) + r"[\\/]pytest-of-[^\\/]+[\\/]pytest-\d+(?:[\\/]popen-gw\d+)?[\\/][^\\/'\s]+"
)


def record_messages(output: str) -> None:
    """Append the messages in the output of a command to the file, without the names of temporary folders."""
    messages = [_TMP_FOLDER.sub("TMP", line) for line in output.splitlines() if _MESSAGE.match(line)]
    if messages and VARIABLE in os.environ:
        with Path(os.environ[VARIABLE]).open("ab") as file:  # in one write: processes of pytest-xdist share the file
            file.write("".join(f"{message}\n" for message in messages).encode())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Sort the messages and remove duplicates when all processes of pytest-xdist have finished."""
    file = Path(os.environ.get(VARIABLE, ""))
    if file.is_file() and not hasattr(config, "workerinput"):
        messages = set(file.read_text(encoding="utf-8").splitlines())
        file.write_text("".join(f"{message}\n" for message in sorted(messages)), encoding="utf-8")

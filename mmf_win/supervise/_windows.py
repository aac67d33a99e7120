"""Job objects and process groups on Windows."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from typing import Any

assert sys.platform == "win32"

stop_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)

# https://learn.microsoft.com/windows/win32/procthread/process-security-and-access-rights
_SYNCHRONIZE = 0x00100000
_WAIT_TIMEOUT = 0x00000102


def group_options() -> dict[str, Any]:
    """Arguments for Popen: a group of its own, so that the console's Ctrl+C reaches only the parent."""
    return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}


def kill_tree(child: subprocess.Popen[bytes]) -> None:
    """End the child and its descendants."""
    subprocess.run(
        ["taskkill", "/F", "/T", "/PID", str(child.pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    child.kill()
    child.wait()


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    kernel32 = ctypes.windll.kernel32
    handle = kernel32.OpenProcess(_SYNCHRONIZE, False, pid)
    if not handle:
        return False
    try:
        return bool(kernel32.WaitForSingleObject(handle, 0) == _WAIT_TIMEOUT)
    finally:
        kernel32.CloseHandle(handle)

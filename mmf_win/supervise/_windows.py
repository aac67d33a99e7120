"""Process trees on Windows, as job objects."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ctypes import wintypes
from threading import Event
from typing import IO, Any

assert sys.platform == "win32"

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_ntdll = ctypes.WinDLL("ntdll")
_kernel32.CreateJobObjectW.restype = wintypes.HANDLE
_kernel32.CreateJobObjectW.argtypes = [wintypes.LPVOID, wintypes.LPCWSTR]
_kernel32.AssignProcessToJobObject.argtypes = [wintypes.HANDLE, wintypes.HANDLE]
_kernel32.SetInformationJobObject.argtypes = [wintypes.HANDLE, ctypes.c_int, wintypes.LPVOID, wintypes.DWORD]
_kernel32.TerminateJobObject.argtypes = [wintypes.HANDLE, wintypes.UINT]
_kernel32.CloseHandle.argtypes = [wintypes.HANDLE]
_ConsoleHandler = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.DWORD)
_kernel32.SetConsoleCtrlHandler.argtypes = [_ConsoleHandler, wintypes.BOOL]
_ntdll.NtResumeProcess.argtypes = [wintypes.HANDLE]
_ntdll.RtlNtStatusToDosError.argtypes = [ctypes.c_long]

# https://learn.microsoft.com/windows/win32/procthread/process-creation-flags
_CREATE_SUSPENDED = 0x00000004
# https://learn.microsoft.com/windows/console/handlerroutine
_CLOSE_EVENTS = {2, 5, 6}  # CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT
# https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-jobobject_basic_limit_information
_KILL_ON_JOB_CLOSE = 0x00002000
_EXTENDED_LIMIT_INFORMATION = 9
# .../ns-winnt-jobobject_extended_limit_information: two times, the flags, and limits that are not used
_LIMITS = struct.Struct("2q I 2N I N 2I 6Q 4N")
_EXIT_WAIT_SECONDS = 1.5
_ADD, _REMOVE = True, False  # of SetConsoleCtrlHandler


@contextmanager
def on_console_close(on_close: Callable[[], None]) -> Iterator[None]:
    """Call ``on_close`` when the console window is closed, the user logs off or the system shuts down.

    Windows ends this process as soon as its handler returns, or about five seconds after the event. The
    handler runs in its own thread and therefore returns only after the block has ended.
    """
    block_ended = Event()

    def handle(event: int) -> bool:
        if event not in _CLOSE_EVENTS:
            return False
        on_close()
        block_ended.wait()
        return True

    handler = _ConsoleHandler(handle)
    _kernel32.SetConsoleCtrlHandler(handler, _ADD)
    try:
        yield
    finally:
        block_ended.set()
        _kernel32.SetConsoleCtrlHandler(handler, _REMOVE)


class ProcessTree:
    """A process and all its descendants, which also end when this process dies.

    The process starts suspended and is resumed once it is in the job, so that the job also contains what a
    launcher starts first. It has its own console without a window, so that Ctrl+C and a closed window reach
    only this process. The other options of the POSIX class are not needed, since the job ends with this
    process.

    Raises:
        OSError: Windows refuses to start the process or to add it to the job; the process has been killed.
    """

    def __init__(self, command: Sequence[str], *, output: IO[bytes], env: Mapping[str, str], **_unused: object) -> None:
        self._job = _kill_on_close_job()
        with ExitStack() as cleanup:
            cleanup.callback(_kernel32.CloseHandle, self._job)
            flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP | _CREATE_SUSPENDED
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, creationflags=flags, env=env
            )
            cleanup.callback(self.process.wait)
            cleanup.callback(self.process.kill)  # a suspended process never ends by itself
            handle = int(self.process._handle)  # type: ignore[attr-defined]
            _require_success(_kernel32.AssignProcessToJobObject(self._job, handle))
            if status := _ntdll.NtResumeProcess(handle):
                raise ctypes.WinError(_ntdll.RtlNtStatusToDosError(status))
            cleanup.pop_all()

    def has_exited(self, timeout: float) -> bool:
        """Return whether the process exits within ``timeout`` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        return self.process.returncode is not None

    def terminate(self) -> None:
        """Do nothing: Windows has no such signal for a program with its own console."""

    def close(self) -> int:
        """Kill the rest of the tree, with a short wait for processes that the system cannot end yet.

        Returns:
            The exit code.
        """
        _kernel32.TerminateJobObject(self._job, 1)
        _kernel32.CloseHandle(self._job)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_WAIT_SECONDS)
        code = self.process.poll()
        return 1 if code is None else code


def _kill_on_close_job() -> int:
    job: int = _require_success(_kernel32.CreateJobObjectW(None, None))
    limits = _LIMITS.pack(0, 0, _KILL_ON_JOB_CLOSE, *[0] * 16)
    _require_success(_kernel32.SetInformationJobObject(job, _EXTENDED_LIMIT_INFORMATION, limits, _LIMITS.size))
    return job


def _require_success(result: Any) -> Any:
    if not result:
        raise ctypes.WinError(ctypes.get_last_error())
    return result

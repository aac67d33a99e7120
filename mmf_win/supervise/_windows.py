"""Process trees on Windows, held together by a job object."""

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
_CLOSE_EVENTS = {2, 5, 6}  # of the window, of the user's session, of the system
# https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-jobobject_basic_limit_information
_KILL_ON_JOB_CLOSE = 0x00002000
_EXTENDED_LIMIT_INFORMATION = 9
# .../ns-winnt-jobobject_extended_limit_information: two times, the flags, and limits that are not set
_LIMITS = struct.Struct("2q I 2N I N 2I 6Q 4N")
_EXIT_WAIT_SECONDS = 1.5


@contextmanager
def on_console_close(on_close: Callable[[], None]) -> Iterator[None]:
    """Call ``press`` when the console window is closed, the user logs off or the system shuts down.

    Windows ends this process as soon as its handler has returned, and some five seconds after the event in
    any case; so the handler, which has a thread of its own, returns only when the block has ended.
    """
    left = Event()

    def handle(event: int) -> bool:
        if event not in _CLOSE_EVENTS:
            return False
        on_close()
        left.wait()
        return True

    handler = _ConsoleHandler(handle)
    _kernel32.SetConsoleCtrlHandler(handler, True)
    try:
        yield
    finally:
        left.set()
        _kernel32.SetConsoleCtrlHandler(handler, False)


class ProcessTree:
    """A process and all its descendants; they also end when this process does, however that ends.

    The process starts suspended and is let go once it is in the job, so that it also holds what a launcher
    starts first. It has a console of its own, without a window, so that Ctrl+C and a closed window
    reach only this process. What it takes on Linux besides is for where no job ends it with this process.

    Raises OSError where Windows refuses to start the process, or to hold it in the job; it is gone then.
    """

    def __init__(
        self, command: Sequence[str], *, output: IO[bytes], env: Mapping[str, str], **posix_options: object
    ) -> None:
        self._job = _kill_on_close_job()
        with ExitStack() as undo:
            undo.callback(_kernel32.CloseHandle, self._job)
            flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP | _CREATE_SUSPENDED
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, creationflags=flags, env=env
            )
            undo.callback(self.process.wait)
            undo.callback(self.process.kill)  # suspended as it is, it would never end by itself
            handle = int(self.process._handle)  # type: ignore[attr-defined]
            _require_success(_kernel32.AssignProcessToJobObject(self._job, handle))
            if status := _ntdll.NtResumeProcess(handle):
                raise ctypes.WinError(_ntdll.RtlNtStatusToDosError(status))
            undo.pop_all()

    def has_exited(self, timeout: float) -> bool:
        """Whether it has ended, or does so within some seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        return self.process.returncode is not None

    def terminate(self) -> None:
        """Nothing: Windows has no such signal for a program with a console of its own."""

    def close(self) -> int:
        """End what is left of the tree, without waiting long for what the system cannot end yet.

        Returned is the exit code.
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
    _require_success(
        _kernel32.SetInformationJobObject(job, _EXTENDED_LIMIT_INFORMATION, limits, _LIMITS.size)
    )
    return job


def _require_success(result: Any) -> Any:
    if not result:
        raise ctypes.WinError(ctypes.get_last_error())
    return result

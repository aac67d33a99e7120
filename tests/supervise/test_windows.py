"""Errors and events of Windows only: a refused job, a refused resume, a closed console."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

if sys.platform != "win32":
    pytest.skip("only Windows has job objects", allow_module_level=True)

from mmf_win.supervise import _windows

# https://learn.microsoft.com/openspecs/windows_protocols/ms-erref/596a1078-e883-4972-9bbc-49e60bebca55
_STATUS_ACCESS_DENIED = 0xC0000022 - (1 << 32)


@pytest.mark.parametrize(
    ("library", "function", "result"),
    [(_windows._kernel32, "AssignProcessToJobObject", 0), (_windows._ntdll, "NtResumeProcess", _STATUS_ACCESS_DENIED)],
    ids=["no job", "no start"],
)
def test_suspended_child_is_killed_after_a_fake_refusal_of_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: object, function: str, result: int
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    original = subprocess.Popen.__init__

    def remember(process: subprocess.Popen[bytes], *arguments: object, **options: object) -> None:
        original(process, *arguments, **options)  # type: ignore[arg-type]
        started.append(process)

    monkeypatch.setattr(subprocess.Popen, "__init__", remember)
    monkeypatch.setattr(library, function, lambda *_: result)
    with (tmp_path / "log.txt").open("wb") as output, pytest.raises(OSError):
        _windows.ProcessTree([sys.executable, "-c", "pass"], output=output, env=os.environ)
    (child,) = started
    assert child.returncode is not None


@pytest.mark.parametrize("event", [2, 5, 6], ids=["window", "user's session", "system"])
def test_console_close_requests_a_stop_and_waits_with_a_fake_event(monkeypatch: pytest.MonkeyPatch, event: int) -> None:
    """No program can send these events, so the handler is called like by Windows: in a thread."""
    handlers = []
    monkeypatch.setattr(_windows._kernel32, "SetConsoleCtrlHandler", lambda handler, _add: handlers.append(handler))
    stop_requests: list[int] = []
    results: list[bool] = []
    with _windows.on_console_close(lambda: stop_requests.append(event)):
        thread = Thread(target=lambda: results.append(handlers[0](event)))
        thread.start()
        while not stop_requests:
            pass
        assert thread.is_alive() and not results
    thread.join()
    assert (stop_requests, results) == ([event], [True])


def test_ctrl_c_is_not_handled_as_console_close() -> None:
    """The real handler is registered, and ignores Ctrl+C."""
    handlers = []
    original = _windows._ConsoleHandler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_windows, "_ConsoleHandler", lambda handle: handlers.append(handle) or original(handle))
        with _windows.on_console_close(lambda: pytest.fail("Ctrl+C does not close the console")):
            assert handlers[0](0) is False

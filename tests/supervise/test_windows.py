"""What only Windows can do to a child: refuse it a place in its job, or refuse to let it go."""

from __future__ import annotations

import subprocess
import sys

import pytest

if sys.platform != "win32":
    pytest.skip("job objects are a matter of Windows", allow_module_level=True)

from mmf_win.supervise import _windows

# https://learn.microsoft.com/openspecs/windows_protocols/ms-erref/596a1078-e883-4972-9bbc-49e60bebca55
_STATUS_ACCESS_DENIED = 0xC0000022 - (1 << 32)


@pytest.mark.parametrize(
    ("library", "function", "answer"),
    [
        (_windows._kernel32, "AssignProcessToJobObject", 0),
        (_windows._ntdll, "NtResumeProcess", _STATUS_ACCESS_DENIED),
    ],
    ids=["no job", "no start"],
)
def test_a_child_is_not_left_behind_suspended_when_windows_fake_refuses(
    monkeypatch: pytest.MonkeyPatch, library: object, function: str, answer: int
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen.__init__

    def remember(process: subprocess.Popen[bytes], *arguments: object, **options: object) -> None:
        real(process, *arguments, **options)  # type: ignore[arg-type]
        started.append(process)

    monkeypatch.setattr(subprocess.Popen, "__init__", remember)
    monkeypatch.setattr(library, function, lambda *_: answer)
    with pytest.raises(OSError):
        _windows.Tree([sys.executable, "-c", "pass"])
    (child,) = started
    assert child.returncode is not None

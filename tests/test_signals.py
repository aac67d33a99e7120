"""Counting of stop signals with a fake clock, and blocking of signals."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mmf_win import signals
from mmf_win.signals import STOP_SIGNALS, StopRequests, active_stop_signals, block_stop_signals

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


@pytest.mark.parametrize(
    ("received_signals", "count"),
    [
        ([], 0),
        ([("SIGINT", 0)], 1),
        ([("SIGINT", 0), ("SIGINT", 0.99)], 1),
        ([("SIGINT", 0), ("SIGINT", 1)], 2),
        ([("SIGINT", 0), ("SIGINT", 0.5), ("SIGINT", 1.2)], 2),
        ([("SIGINT", 0), ("SIGINT", 1), ("SIGTERM", 2)], 2),
        ([("SIGTERM", 0), ("SIGTERM", 30)], 1),
        ([("SIGTERM", 0), ("SIGINT", 30)], 1),
        ([("SIGTERM", 0), ("SIGINT", 30), ("SIGINT", 31)], 2),
    ],
)
def test_ctrl_c_counts_again_only_after_one_second(
    monkeypatch: pytest.MonkeyPatch, received_signals: list[tuple[str, float]], count: int
) -> None:
    requests = StopRequests()
    for name, seconds in received_signals:
        monkeypatch.setattr(signals.time, "monotonic", lambda seconds=seconds: 1000 + seconds)
        requests.add(getattr(signal, name))
    assert requests.count == count


@posix
def test_signals_of_terminals_and_schedulers_are_one_request() -> None:
    requests = StopRequests()
    for name in ("SIGHUP", "SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2"):
        requests.add(getattr(signal, name))
    assert requests.count == 1


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_signal_ignored_from_the_start_is_not_handled(number: signal.Signals) -> None:
    assert number in active_stop_signals()
    previous_handler = signal.signal(number, signal.SIG_IGN)  # like nohup or a batch job
    try:
        assert number not in active_stop_signals()
    finally:
        signal.signal(number, previous_handler)


@posix
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_process_started_while_signals_are_blocked_survives_them(number: signal.Signals) -> None:
    with block_stop_signals():
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.send_signal(number)
    assert child.communicate(b"alive") == (b"alive", None) and child.returncode == 0
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "the signals of this process must be unblocked again"

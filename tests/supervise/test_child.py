"""Real children, real signals. The children are small Python programs."""

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from mmf_win.supervise import Ended, run_child

LEAVES_WHEN_ASKED = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "up").touch()
while not (folder / "stop").exists():
    time.sleep(0.01)
print("saved")
"""

HOLDS_A_SOCKET = """
import pathlib, signal, socket, sys, time
for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
held = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
(pathlib.Path(sys.argv[1]) / "up").touch()
time.sleep(600)
"""

NEVER_LEAVES = f"""
import signal, subprocess, sys, time
for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {HOLDS_A_SOCKET!r}, *sys.argv[1:]])
time.sleep(600)
"""


class World:
    """A folder for a child, and a user who presses Ctrl+C once the child is up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        self.stop_file = folder / "stop"
        self.told = 0

    def run(self, program: str, *arguments: str, presses: int = 0, patience: float = 60.0) -> Ended:
        left = presses

        def watch() -> bool:
            nonlocal left
            if left and (self.folder / "up").exists():
                left -= 1
                signal.raise_signal(signal.SIGINT)
            return False

        def told() -> None:
            self.told += 1

        return run_child(
            [sys.executable, "-c", program, str(self.folder), *arguments],
            log=self.log,
            environment=os.environ,
            stop_file=self.stop_file,
            watch=watch,
            on_stop=told,
            patience=patience,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_child_that_ends_by_itself_hands_on_its_exit_code_and_output(world: World) -> None:
    ended = world.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert ended == Ended(code=3, stop_requested=False, killed=False)
    assert sorted(world.log.read_text(encoding="utf-8").split()) == ["err", "out"]


def test_output_is_appended_to_what_the_log_holds(world: World) -> None:
    world.log.write_text("earlier\n", encoding="utf-8")
    world.run("print('later')")
    assert world.log.read_text(encoding="utf-8").split() == ["earlier", "later"]


def test_the_first_ctrl_c_asks_the_child_and_lets_it_finish(world: World) -> None:
    ended = world.run(LEAVES_WHEN_ASKED, presses=1)
    assert ended == Ended(code=0, stop_requested=True, killed=False)
    assert "saved" in world.log.read_text(encoding="utf-8")
    assert world.told == 1
    assert not world.stop_file.exists(), "the request to stop must not outlive the run"


def test_a_stop_file_of_an_earlier_run_does_not_stop_this_one(world: World) -> None:
    world.stop_file.touch()
    ended = world.run("import os, sys; sys.exit(os.path.exists(os.path.join(sys.argv[1], 'stop')))")
    assert ended.code == 0


@pytest.mark.parametrize(("presses", "patience"), [(2, 60.0), (1, 0.2)], ids=["second Ctrl+C", "no progress"])
def test_a_child_that_does_not_leave_is_killed_with_its_descendants(
    world: World, presses: int, patience: float
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = str(server.getsockname()[1])
        ended = world.run(NEVER_LEAVES, port, presses=presses, patience=patience)
        assert ended.killed and ended.stop_requested
        connection, _ = server.accept()
        with connection:
            connection.settimeout(60)
            # Windows resets the connections of a process that was killed.
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b"", "the grandchild still holds its socket"


def test_the_signal_handlers_of_the_caller_come_back(world: World) -> None:
    before = signal.getsignal(signal.SIGINT)
    world.run("pass")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_closed_terminal_asks_for_an_end_unless_nohup_said_to_ignore_it() -> None:
    from mmf_win.supervise.processes import stop_signals

    assert signal.SIGHUP in stop_signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stop_signals()
    finally:
        signal.signal(signal.SIGHUP, before)

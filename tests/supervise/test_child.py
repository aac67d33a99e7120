"""Supervision of real child processes, which are small Python programs, with real signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmf_win.supervise import ChildExit, StopPolicy, child, count_oom_kills, run_child
from tests.worlds.liveness import HOLD_CONNECTION_CODE, liveness_monitor

EXITS_ON_STOP_FILE = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "up").touch()
while not (folder / "stop").exists():
    time.sleep(0.01)
print("saved")
"""

EXITS_ON_RELEASE = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "up").touch()
while not (folder / "release").exists():
    time.sleep(0.01)
"""

IGNORES_SIGNALS = """
import signal, sys, time
folder, port = sys.argv[1:]
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
"""

# Holds the GIL in C, so no other thread and no signal handler can run.
HOLDS_GIL = """
import ctypes
if sys.platform == "win32":
    ctypes.PyDLL("kernel32").Sleep(600_000)
else:
    ctypes.PyDLL(None).sleep(600)
"""

STARTS_ANOTHER = """
import subprocess
def start(program, **options):
    subprocess.Popen([sys.executable, "-c", program, folder, port], **options)
"""

REPORT_START = """
import pathlib
(pathlib.Path(folder) / "up").touch()
"""

STUBBORN = IGNORES_SIGNALS + HOLD_CONNECTION_CODE + REPORT_START + "time.sleep(600)"
STUCK_IN_C = IGNORES_SIGNALS + HOLD_CONNECTION_CODE + REPORT_START + HOLDS_GIL
PARENT = IGNORES_SIGNALS + HOLD_CONNECTION_CODE + STARTS_ANOTHER
PARENT_OF_STUBBORN = PARENT + f"start({STUBBORN!r}); time.sleep(600)"
START_RUNAWAY = f"start({STUBBORN!r}, start_new_session=True)"
PARENT_OF_RUNAWAY = f"{PARENT}{START_RUNAWAY}; time.sleep(600)"
# Its child is orphaned and in another session, so only a subreaper can find it.
MIDDLE = IGNORES_SIGNALS + STARTS_ANOTHER + START_RUNAWAY
ANCESTOR_OF_ORPHAN = PARENT + f"start({MIDDLE!r}, start_new_session=True); time.sleep(600)"
TREES = {
    "child": (STUBBORN, 1),
    "child stuck in C": (STUCK_IN_C, 1),
    "grandchild": (PARENT_OF_STUBBORN, 2),
    "grandchild in another session": (PARENT_OF_RUNAWAY, 2),
    "orphaned grandchild in another session": (ANCESTOR_OF_ORPHAN, 2),
}


class ChildRunner:
    """Folder of a child, and a simulated user who presses Ctrl+C once the child has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        self.stop_file = folder / "stop"
        self.stop_calls: list[int] = []

    def run(
        self,
        program: str,
        *arguments: str,
        presses: int = 0,
        timeout: float = 60.0,
        on_start: Callable[[], None] = lambda: signal.raise_signal(signal.SIGINT),
        has_progress: Callable[[], bool] = lambda: False,
    ) -> ChildExit:
        left = presses

        def watch() -> bool:
            nonlocal left
            if left and (self.folder / "up").exists():
                left -= 1
                on_start()
            return has_progress()

        return run_child(
            [sys.executable, "-c", program, str(self.folder), *arguments],
            log=self.log,
            environment=os.environ,
            stop_file=self.stop_file,
            outcome_file=self.folder / "exit.json",
            poll_progress=watch,
            stop_policy=StopPolicy(timeout, on_stop=lambda: self.stop_calls.append(1)),
        )


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChildRunner:
    monkeypatch.setattr("mmf_win.signals.FORCE_STOP_AFTER_SECONDS", 0.0)
    return ChildRunner(tmp_path)


def test_exit_code_and_output_of_a_child_are_returned(runner: ChildRunner) -> None:
    runner.log.write_text("earlier\n", encoding="utf-8")
    status = runner.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert status == ChildExit(exit_code=3, stop_requested=False, killed=False)
    earlier, *later = runner.log.read_text(encoding="utf-8").split()
    assert (earlier, sorted(later)) == ("earlier", ["err", "out"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_signal_that_killed_a_child_is_returned(runner: ChildRunner, name: str) -> None:
    status = runner.run(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert status == ChildExit(exit_code=-getattr(signal, name), stop_requested=False, killed=False)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGBREAK" if sys.platform == "win32" else "SIGHUP"])
def test_first_signal_lets_the_child_finish(runner: ChildRunner, name: str) -> None:
    number = getattr(signal, name)
    status = runner.run(EXITS_ON_STOP_FILE, presses=1, on_start=lambda: signal.raise_signal(number))
    assert status == ChildExit(exit_code=0, stop_requested=True, killed=False)
    assert "saved" in runner.log.read_text(encoding="utf-8")
    assert len(runner.stop_calls) == 1
    assert not runner.stop_file.exists(), "the stop file must be removed"


def test_stale_stop_file_is_removed(runner: ChildRunner) -> None:
    runner.stop_file.touch()
    status = runner.run("import os, sys; sys.exit(os.path.exists(os.path.join(sys.argv[1], 'stop')))")
    assert status.exit_code == 0


@pytest.mark.parametrize(("tree", "presses", "timeout"), [*((tree, 2, 60.0) for tree in TREES), ("grandchild", 1, 0.2)])
def test_second_ctrl_c_or_timeout_kills_the_process_tree(
    runner: ChildRunner, tree: str, presses: int, timeout: float
) -> None:
    program, members = TREES[tree]
    with liveness_monitor() as monitor:
        status = runner.run(program, monitor.port, presses=presses, timeout=timeout)
        assert status.killed and status.stop_requested
        monitor.wait_for_processes(members)
        assert monitor.wait_until_all_exited()


def test_child_with_progress_after_a_stop_is_not_killed(runner: ChildRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "POLL_SECONDS", 0.02)
    timeout = 0.2
    pressed_at: list[float] = []

    def press() -> None:
        pressed_at.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    def has_progress() -> bool:
        if pressed_at and time.monotonic() > pressed_at[0] + 2 * timeout:
            (runner.folder / "release").touch()
        return True

    status = runner.run(EXITS_ON_RELEASE, presses=1, timeout=timeout, on_start=press, has_progress=has_progress)
    assert status == ChildExit(exit_code=0, stop_requested=True, killed=False)


@pytest.mark.parametrize("tree", TREES)
def test_descendants_are_killed_when_the_child_exits(runner: ChildRunner, tree: str) -> None:
    program, members = TREES[tree]
    code = f"""
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {program!r}, *sys.argv[1:]])
while not pathlib.Path(sys.argv[1], "up").exists():
    time.sleep(0.01)
sys.exit(4)
"""
    with liveness_monitor() as monitor:
        assert runner.run(code, monitor.port) == ChildExit(exit_code=4, stop_requested=False, killed=False)
        monitor.wait_for_processes(members)
        assert monitor.wait_until_all_exited()


def test_child_that_wrote_its_outcome_but_does_not_exit_is_killed(
    runner: ChildRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmf_win.supervise.child.EXIT_GRACE_SECONDS", 0.2)
    write_outcome = '(pathlib.Path(folder) / "exit.json").touch()'
    with liveness_monitor() as monitor:
        status = runner.run(
            IGNORES_SIGNALS + HOLD_CONNECTION_CODE + REPORT_START + write_outcome + HOLDS_GIL, monitor.port
        )
        assert status.killed and not status.stop_requested
        monitor.wait_for_processes()
        assert monitor.wait_until_all_exited()


# A separate parent process for each test, which is killed while it supervises a child.
SUPERVISOR_CODE = """
import os, sys
from pathlib import Path
from mmf_win.supervise import StopPolicy, run_child
folder = Path(sys.argv[1])
run_child(
    [sys.executable, "-c", *sys.argv[2:]],
    log=folder / "log.txt",
    environment=os.environ,
    stop_file=folder / "stop",
    outcome_file=folder / "exit.json",
    poll_progress=lambda: False,
    stop_policy=StopPolicy(float(os.environ["STOP_TIMEOUT"])),
)
"""


def start_supervisor(
    runner: ChildRunner, program: str, *arguments: str, timeout: float, terminal: int | None = None
) -> "subprocess.Popen[bytes]":
    """Start a parent process; with a terminal, it is session leader and controls the terminal."""
    take_terminal = "" if terminal is None else "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    argv = [take_terminal + SUPERVISOR_CODE, str(runner.folder), program, str(runner.folder), *arguments]
    stream = subprocess.DEVNULL if terminal is None else terminal
    return subprocess.Popen(
        [sys.executable, "-c", *argv],
        **dict.fromkeys(("stdin", "stdout", "stderr"), stream),
        start_new_session=terminal is not None,
        env={**os.environ, "STOP_TIMEOUT": str(timeout)},
    )


@pytest.mark.parametrize("tree", TREES)
def test_no_process_outlives_a_killed_parent(runner: ChildRunner, tree: str) -> None:
    program, members = TREES[tree]
    with liveness_monitor() as monitor, start_supervisor(runner, program, monitor.port, timeout=0.01) as parent:
        monitor.wait_for_processes(members)
        parent.kill()
        assert monitor.wait_until_all_exited()


CONNECTED_CHILD = "folder, port = __import__('sys').argv[1:]\n" + HOLD_CONNECTION_CODE + EXITS_ON_STOP_FILE


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows the job ends a child immediately")
def test_child_of_a_killed_parent_is_asked_to_stop_first(runner: ChildRunner) -> None:
    with liveness_monitor() as monitor, start_supervisor(runner, CONNECTED_CHILD, monitor.port, timeout=60) as parent:
        monitor.wait_for_processes()
        parent.kill()
        assert monitor.wait_until_all_exited()
    assert "saved" in runner.log.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no terminals of this kind")
def test_closed_terminal_asks_the_child_to_stop(runner: ChildRunner) -> None:
    import pty

    controller, terminal = pty.openpty()
    with liveness_monitor() as monitor:
        with start_supervisor(runner, CONNECTED_CHILD, monitor.port, timeout=60, terminal=terminal) as parent:
            os.close(terminal)
            monitor.wait_for_processes()
            os.close(controller)
            assert parent.wait(60) == 0, "it must exit by itself, not by the signal"
        assert monitor.wait_until_all_exited()
    assert "saved" in runner.log.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no keeper on Windows")
@pytest.mark.parametrize("name", ["SIGSTOP", "SIGKILL"])
def test_stopped_or_killed_keeper_does_not_block(runner: ChildRunner, name: str) -> None:
    disturbance = f"import os, signal; os.kill(os.getppid(), signal.{name})\n"
    with liveness_monitor() as monitor:
        status = runner.run(
            IGNORES_SIGNALS + HOLD_CONNECTION_CODE + disturbance + REPORT_START + "time.sleep(600)",
            monitor.port,
            presses=2,
        )
        assert status.exit_code == -signal.SIGKILL
        monitor.wait_for_processes()
        assert monitor.wait_until_all_exited()


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows no signal reaches the child")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signal_to_the_process_group_does_not_end_the_keeper(runner: ChildRunner, name: str) -> None:
    send_signal = f"\nimport os; signal.signal(signal.{name}, signal.SIG_IGN); os.killpg(0, signal.{name}); sys.exit(5)"
    assert runner.run("import signal, sys" + send_signal).exit_code == 5


def test_signal_handlers_of_the_caller_are_restored(runner: ChildRunner) -> None:
    before = signal.getsignal(signal.SIGINT)
    runner.run("pass")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """Return a control group with a memory limit of 64 MiB."""
    folder = Path("/sys/fs/cgroup")
    is_v1 = (folder / "memory").is_dir()  # control groups v1 have a separate tree for each resource
    group = (folder / "memory" if is_v1 else folder) / f"mmfw-test-{os.getpid()}"
    memory, swap = (
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if is_v1 else ("memory.max", "memory.swap.max")
    )
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no permission to limit memory")
    try:
        try:
            (group / memory).write_text(str(64 << 20), encoding="ascii")
        except OSError:
            pytest.skip("no permission to limit memory")
        if (group / swap).exists():
            (group / swap).write_text(str(64 << 20) if is_v1 else "0", encoding="ascii")
        yield group
    finally:
        group.rmdir()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no out-of-memory killer")
def test_process_killed_for_lack_of_memory_is_counted(small_memory: Path) -> None:
    before = count_oom_kills()
    code = "import sys; sys.stdin.readline(); blocks = [bytearray(b'x') * (1 << 20) for _ in range(300)]"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE) as process:
        (small_memory / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
        process.communicate(b"\n")
    assert process.returncode == -signal.SIGKILL
    after = count_oom_kills()
    assert before is not None and after is not None and after > before


@pytest.mark.parametrize(
    ("content", "kills"),
    [("nr_free_pages 7\noom_kill 12\npgfault 9\n", 12), (None, None), ("nr_free_pages 7\n", None), ("\xff", None)],
)
def test_oom_kills_are_read_from_vmstat(tmp_path: Path, content: str | None, kills: int | None) -> None:
    file = tmp_path / "vmstat"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    assert count_oom_kills(file) == kills

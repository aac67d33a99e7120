"""Real children, real signals. The children are small Python programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmf_win.supervise import ChildExit, child, count_oom_kills, run_child
from tests.worlds.liveness import HOLD_CONNECTION_CODE, liveness_monitor

LEAVES_WHEN_ASKED = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "up").touch()
while not (folder / "stop").exists():
    time.sleep(0.01)
print("saved")
"""

LEAVES_WHEN_RELEASED = """
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

# Holds the interpreter's lock in C: no thread of it, and no handler of a signal, ever runs again.
NEVER_LETS_GO = """
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

UP = """
import pathlib
(pathlib.Path(folder) / "up").touch()
"""

STUBBORN = IGNORES_SIGNALS + HOLD_CONNECTION_CODE + UP + "time.sleep(600)"
STUCK_IN_C = IGNORES_SIGNALS + HOLD_CONNECTION_CODE + UP + NEVER_LETS_GO
PARENT = IGNORES_SIGNALS + HOLD_CONNECTION_CODE + STARTS_ANOTHER
PARENT_OF_STUBBORN = PARENT + f"start({STUBBORN!r}); time.sleep(600)"
START_RUNAWAY = f"start({STUBBORN!r}, start_new_session=True)"
PARENT_OF_RUNAWAY = f"{PARENT}{START_RUNAWAY}; time.sleep(600)"
# Its child has lost its parent and left the session: nothing but adoption finds it.
MIDDLE = IGNORES_SIGNALS + STARTS_ANOTHER + START_RUNAWAY
ANCESTOR_OF_ORPHAN = PARENT + f"start({MIDDLE!r}, start_new_session=True); time.sleep(600)"
TREES = {
    "child": (STUBBORN, 1),
    "child stuck in C": (STUCK_IN_C, 1),
    "grandchild": (PARENT_OF_STUBBORN, 2),
    "grandchild in a session of its own": (PARENT_OF_RUNAWAY, 2),
    "orphaned grandchild in a session of its own": (ANCESTOR_OF_ORPHAN, 2),
}


class World:
    """A folder for a child, and a user who presses Ctrl+C once the child is up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        self.stop_file = folder / "stop"
        self.told: list[int] = []

    def run(
        self,
        program: str,
        *arguments: str,
        presses: int = 0,
        patience: float = 60.0,
        when_up: Callable[[], None] = lambda: signal.raise_signal(signal.SIGINT),
        progressed: Callable[[], bool] = lambda: False,
    ) -> ChildExit:
        left = presses

        def watch() -> bool:
            nonlocal left
            if left and (self.folder / "up").exists():
                left -= 1
                when_up()
            return progressed()

        return run_child(
            [sys.executable, "-c", program, str(self.folder), *arguments],
            log=self.log,
            environment=os.environ,
            stop_file=self.stop_file,
            outcome_file=self.folder / "exit.json",
            poll_progress=watch,
            on_stop=lambda: self.told.append(1),
            stop_timeout=patience,
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("mmf_win.signals.FORCE_STOP_AFTER_SECONDS", 0.0)
    return World(tmp_path)


def test_a_child_that_ends_by_itself_hands_on_its_exit_code_and_output(world: World) -> None:
    world.log.write_text("earlier\n", encoding="utf-8")
    ended = world.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert ended == ChildExit(exit_code=3, stop_requested=False, killed=False)
    earlier, *later = world.log.read_text(encoding="utf-8").split()
    assert (earlier, sorted(later)) == ("earlier", ["err", "out"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no such signals")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_a_child_that_a_signal_ended_hands_that_on(world: World, name: str) -> None:
    ended = world.run(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert ended == ChildExit(exit_code=-getattr(signal, name), stop_requested=False, killed=False)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGBREAK" if sys.platform == "win32" else "SIGHUP"])
def test_the_first_signal_asks_the_child_and_lets_it_finish(world: World, name: str) -> None:
    number = getattr(signal, name)
    ended = world.run(LEAVES_WHEN_ASKED, presses=1, when_up=lambda: signal.raise_signal(number))
    assert ended == ChildExit(exit_code=0, stop_requested=True, killed=False)
    assert "saved" in world.log.read_text(encoding="utf-8")
    assert len(world.told) == 1
    assert not world.stop_file.exists(), "the request to stop must not outlive the run"


def test_a_stop_file_of_an_earlier_run_does_not_stop_this_one(world: World) -> None:
    world.stop_file.touch()
    ended = world.run("import os, sys; sys.exit(os.path.exists(os.path.join(sys.argv[1], 'stop')))")
    assert ended.exit_code == 0


@pytest.mark.parametrize(
    ("tree", "presses", "patience"), [*((tree, 2, 60.0) for tree in TREES), ("grandchild", 1, 0.2)]
)
def test_a_second_ctrl_c_or_no_progress_after_the_first_ends_the_whole_tree(
    world: World, tree: str, presses: int, patience: float
) -> None:
    program, members = TREES[tree]
    with liveness_monitor() as held:
        ended = world.run(program, held.port, presses=presses, patience=patience)
        assert ended.killed and ended.stop_requested
        held.wait_for_processes(members)
        assert held.has_only_dead_processes()


def test_a_child_that_makes_progress_after_a_stop_is_not_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "POLL_SECONDS", 0.02)
    patience = 0.2
    pressed_at: list[float] = []

    def press() -> None:
        pressed_at.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    def progressed() -> bool:
        if pressed_at and time.monotonic() > pressed_at[0] + 2 * patience:
            (world.folder / "release").touch()
        return True

    ended = world.run(
        LEAVES_WHEN_RELEASED, presses=1, patience=patience, when_up=press, progressed=progressed
    )
    assert ended == ChildExit(exit_code=0, stop_requested=True, killed=False)


@pytest.mark.parametrize("tree", TREES)
def test_what_a_child_leaves_behind_ends_with_it(world: World, tree: str) -> None:
    program, members = TREES[tree]
    leaves = f"""
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {program!r}, *sys.argv[1:]])
while not pathlib.Path(sys.argv[1], "up").exists():
    time.sleep(0.01)
sys.exit(4)
"""
    with liveness_monitor() as held:
        assert world.run(leaves, held.port) == ChildExit(exit_code=4, stop_requested=False, killed=False)
        held.wait_for_processes(members)
        assert held.has_only_dead_processes()


def test_a_child_that_has_said_how_it_ended_but_does_not_leave_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmf_win.supervise.child.EXIT_GRACE_SECONDS", 0.2)
    done = '(pathlib.Path(folder) / "exit.json").touch()'
    with liveness_monitor() as held:
        ended = world.run(IGNORES_SIGNALS + HOLD_CONNECTION_CODE + UP + done + NEVER_LETS_GO, held.port)
        assert ended.killed and not ended.stop_requested
        held.wait_for_processes()
        assert held.has_only_dead_processes()


# A parent of its own for each test: it is killed in the middle of its work.
SUPERVISES = """
import os, sys
from pathlib import Path
from mmf_win.supervise import run_child
folder = Path(sys.argv[1])
run_child(
    [sys.executable, "-c", *sys.argv[2:]],
    log=folder / "log.txt",
    environment=os.environ,
    stop_file=folder / "stop",
    exit_file=folder / "exit.json",
    watch=lambda: False,
    on_stop=lambda: None,
    patience=float(os.environ["PATIENCE"]),
)
"""


def supervisor(
    world: World, program: str, *arguments: str, patience: float, terminal: int | None = None
) -> "subprocess.Popen[bytes]":
    """With a terminal it is like the shell of a window: it leads the session, and the terminal is its own."""
    owning = "" if terminal is None else "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    words = [owning + SUPERVISES, str(world.folder), program, str(world.folder), *arguments]
    stream = subprocess.DEVNULL if terminal is None else terminal
    return subprocess.Popen(
        [sys.executable, "-c", *words],
        **dict.fromkeys(("stdin", "stdout", "stderr"), stream),
        start_new_session=terminal is not None,
        env={**os.environ, "PATIENCE": str(patience)},
    )


@pytest.mark.parametrize("tree", TREES)
def test_no_process_outlives_a_parent_that_was_killed(world: World, tree: str) -> None:
    program, members = TREES[tree]
    with liveness_monitor() as held, supervisor(world, program, held.port, patience=0.01) as parent:
        held.wait_for_processes(members)
        parent.kill()
        assert held.has_only_dead_processes()


HELD_UNTIL_ASKED = "folder, port = __import__('sys').argv[1:]\n" + HOLD_CONNECTION_CODE + LEAVES_WHEN_ASKED


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows the job ends a child at once")
def test_a_child_whose_parent_was_killed_is_asked_to_leave_first(world: World) -> None:
    with liveness_monitor() as held, supervisor(world, HELD_UNTIL_ASKED, held.port, patience=60) as parent:
        held.wait_for_processes()
        parent.kill()
        assert held.has_only_dead_processes()
    assert "saved" in world.log.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no terminals of this kind")
def test_a_closed_terminal_asks_the_child_to_leave(world: World) -> None:
    import pty

    ours, theirs = pty.openpty()
    with liveness_monitor() as held:
        with supervisor(world, HELD_UNTIL_ASKED, held.port, patience=60, terminal=theirs) as parent:
            os.close(theirs)
            held.wait_for_processes()
            os.close(ours)
            assert parent.wait(60) == 0, "it ended by itself, not by the signal"
        assert held.has_only_dead_processes()
    assert "saved" in world.log.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no keeper on Windows")
@pytest.mark.parametrize("name", ["SIGSTOP", "SIGKILL"])
def test_a_keeper_that_was_stopped_or_killed_holds_nothing_up(world: World, name: str) -> None:
    disturbs = f"import os, signal; os.kill(os.getppid(), signal.{name})\n"
    with liveness_monitor() as held:
        ended = world.run(
            IGNORES_SIGNALS + HOLD_CONNECTION_CODE + disturbs + UP + "time.sleep(600)", held.port, presses=2
        )
        assert ended.exit_code == -signal.SIGKILL
        held.wait_for_processes()
        assert held.has_only_dead_processes()


@pytest.mark.skipif(sys.platform == "win32", reason="no signal reaches the child on Windows")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_a_signal_to_the_whole_group_does_not_end_the_keeper(world: World, name: str) -> None:
    sends = (
        f"\nimport os; signal.signal(signal.{name}, signal.SIG_IGN); os.killpg(0, signal.{name}); sys.exit(5)"
    )
    assert world.run("import signal, sys" + sends).exit_code == 5


def test_the_signal_handlers_of_the_caller_come_back(world: World) -> None:
    before = signal.getsignal(signal.SIGINT)
    world.run("pass")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group whose processes have 64 MiB together."""
    folder = Path("/sys/fs/cgroup")
    first = (folder / "memory").is_dir()  # the first version of control groups, with a tree for each resource
    group = (folder / "memory" if first else folder) / f"mmfw-test-{os.getpid()}"
    memory, swap = (
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        if first
        else ("memory.max", "memory.swap.max")
    )
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no right to limit memory")
    try:
        try:
            (group / memory).write_text(str(64 << 20), encoding="ascii")
        except OSError:
            pytest.skip("no right to limit memory")
        if (group / swap).exists():
            (group / swap).write_text(str(64 << 20) if first else "0", encoding="ascii")
        yield group
    finally:
        group.rmdir()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows kills nothing for want of memory")
def test_a_process_that_the_kernel_kills_for_want_of_memory_is_counted(small_memory: Path) -> None:
    before = count_oom_kills()
    taking = "import sys; sys.stdin.readline(); taken = [bytearray(b'x') * (1 << 20) for _ in range(300)]"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", taking], stdin=subprocess.PIPE) as process:
        (small_memory / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
        process.communicate(b"\n")
    assert process.returncode == -signal.SIGKILL
    after = count_oom_kills()
    assert before is not None and after is not None and after > before


@pytest.mark.parametrize(
    ("content", "kills"),
    [
        ("nr_free_pages 7\noom_kill 12\npgfault 9\n", 12),
        (None, None),
        ("nr_free_pages 7\n", None),
        ("\xff", None),
    ],
)
def test_kills_for_want_of_memory_are_read_from_counters(
    tmp_path: Path, content: str | None, kills: int | None
) -> None:
    file = tmp_path / "vmstat"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    assert count_oom_kills(file) == kills

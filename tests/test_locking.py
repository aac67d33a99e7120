"""Locks between processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from mmf_win.files import to_mmfw_error
from mmf_win.locking import file_lock, is_locked
from tests.worlds.tools import make_failing_function, preload_environment, requires_tool, run_unprivileged

HOLD_LOCK_CODE = """
import sys
from pathlib import Path
from mmf_win.locking import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

POLL_LOCK_CODE = """
import sys
from pathlib import Path
from mmf_win.locking import is_locked
path = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(sum(is_locked(path) for _ in range(2000)), flush=True)
"""

SHARE_LOCK_CODE = """
import sys
from pathlib import Path
from mmf_win.locking import file_lock
try:
    with file_lock(Path(sys.argv[1]), shared=True):
        print("shared")
except BlockingIOError:
    print("refused")
"""

TAKE_LOCK_CODE = """
import sys
from pathlib import Path
from mmf_win.locking import is_locked, file_lock
path = Path(sys.argv[1])
with file_lock(path, shared=True):
    assert not is_locked(path)
with file_lock(path):
    assert is_locked(path)
"""


def test_lock_is_held_until_its_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "замок 锁"
    assert not is_locked(path)
    command = [sys.executable, "-c", HOLD_LOCK_CODE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        assert is_locked(path)
        with pytest.raises(BlockingIOError), file_lock(path):
            raise AssertionError("the lock was acquired twice")
        holder.kill()
    with file_lock(path):
        pass
    assert not is_locked(path)


def test_checks_of_a_lock_are_no_locks_and_do_not_prevent_locking(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    command = [sys.executable, "-c", POLL_LOCK_CODE, str(path)]
    with ExitStack() as stack:
        pollers = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(3)
        ]
        for poller in pollers:
            assert poller.stdout is not None and poller.stdout.readline().strip() == b"ready"
        *other_pollers, last_poller = pollers
        assert [poller.communicate()[0].strip() for poller in _start_polling(other_pollers)] == [b"0", b"0"]
        assert last_poller.stdin is not None
        last_poller.stdin.write(b"\n")
        last_poller.stdin.flush()
        for _ in range(20):
            with file_lock(path):
                pass


def test_lock_waits_for_release_of_a_shared_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as shared_lock:
        shared_lock.enter_context(file_lock(tmp_path / "lock", shared=True))
        monkeypatch.setattr("time.sleep", lambda _: shared_lock.close())  # released in the first pause
        with file_lock(tmp_path / "lock"):
            assert is_locked(tmp_path / "lock")


@requires_tool("gcc", exists_on_windows=False)
def test_locks_work_with_the_rules_of_nfs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKE_LOCK_CODE, str(tmp_path / "lock")]
    subprocess.run(command, env=preload_environment("nfs_locks.c", tmp_path), check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.EIO, errno.EACCES])
def test_failed_flock_is_an_error_with_file_name_and_hint(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", make_failing_function(number))
    with pytest.raises(OSError, match="cannot be locked") as raised, file_lock(tmp_path / "lock"):
        raise AssertionError("the lock was acquired")
    error = to_mmfw_error(raised.value)
    assert str(error) == f"{tmp_path / 'lock'}: cannot be locked ({os.strerror(number)})"
    assert error.hint


@requires_tool("setpriv", exists_on_windows=False)
def test_read_only_folder_is_shared_with_and_without_a_lock_file(tmp_path: Path) -> None:
    folder, arguments = tmp_path / "run", ("-c", SHARE_LOCK_CODE)
    folder.mkdir()
    path = folder / "lock"
    folder.chmod(0o555)
    assert run_unprivileged(path, program=arguments).stdout == "shared\n"
    assert not path.exists()
    path.touch(0o444)
    assert run_unprivileged(path, program=arguments).stdout == "shared\n"
    with file_lock(path):
        assert run_unprivileged(path, program=arguments).stdout == "refused\n"
    folder.chmod(0o755)


def _start_polling(pollers: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """Let all processes start before waiting for the first one."""
    for poller in pollers:
        assert poller.stdin is not None
        poller.stdin.write(b"\n")
        poller.stdin.flush()
    return pollers

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

HOLDER = """
import sys
from pathlib import Path
from mmf_win.locking import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

ASKER = """
import sys
from pathlib import Path
from mmf_win.locking import is_locked
path = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(sum(is_locked(path) for _ in range(2000)), flush=True)
"""

SHARER = """
import sys
from pathlib import Path
from mmf_win.locking import file_lock
try:
    with file_lock(Path(sys.argv[1]), shared=True):
        print("shared")
except BlockingIOError:
    print("refused")
"""

TAKER = """
import sys
from pathlib import Path
from mmf_win.locking import is_locked, file_lock
path = Path(sys.argv[1])
with file_lock(path, shared=True):
    assert not is_locked(path)
with file_lock(path):
    assert is_locked(path)
"""


def test_a_lock_is_held_until_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "замок 锁"
    assert not is_locked(path)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        assert is_locked(path)
        with pytest.raises(BlockingIOError), file_lock(path):
            raise AssertionError("two hold one lock")
        holder.kill()
    with file_lock(path):
        pass
    assert not is_locked(path)


def test_those_who_ask_see_no_holder_in_each_other_and_keep_nobody_from_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    command = [sys.executable, "-c", ASKER, str(path)]
    with ExitStack() as stack:
        askers = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(3)
        ]
        for asker in askers:
            assert asker.stdout is not None and asker.stdout.readline().strip() == b"ready"
        *others, last = askers
        assert [asker.communicate()[0].strip() for asker in _begun(others)] == [b"0", b"0"]
        assert last.stdin is not None
        last.stdin.write(b"\n")
        last.stdin.flush()
        for _ in range(20):
            with file_lock(path):
                pass


def test_a_share_that_is_given_back_soon_keeps_nobody_from_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as share:
        share.enter_context(file_lock(tmp_path / "lock", shared=True))
        monkeypatch.setattr("time.sleep", lambda _: share.close())  # given back in the first pause
        with file_lock(tmp_path / "lock"):
            assert is_locked(tmp_path / "lock")


@requires_tool("gcc", exists_on_windows=False)
def test_a_lock_is_shared_and_held_as_nfs_wants_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKER, str(tmp_path / "lock")]
    subprocess.run(command, env=preload_environment("nfs_locks.c", tmp_path), check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.EIO, errno.EACCES])
def test_a_lock_that_the_system_refuses_is_named_with_the_next_step(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", make_failing_function(number))
    with pytest.raises(OSError, match="cannot be locked") as raised, file_lock(tmp_path / "lock"):
        raise AssertionError("it was refused")
    told = to_mmfw_error(raised.value)
    assert str(told) == f"{tmp_path / 'lock'}: cannot be locked ({os.strerror(number)})"
    assert told.hint


@requires_tool("setpriv", exists_on_windows=False)
def test_a_folder_that_may_only_be_read_is_shared_by_its_lock_or_without_one(tmp_path: Path) -> None:
    folder, take = tmp_path / "run", ("-c", SHARER)
    folder.mkdir()
    path = folder / "lock"
    folder.chmod(0o555)
    assert run_unprivileged(path, program=take).stdout == "shared\n"
    assert not path.exists()
    path.touch(0o444)
    assert run_unprivileged(path, program=take).stdout == "shared\n"
    with file_lock(path):
        assert run_unprivileged(path, program=take).stdout == "refused\n"
    folder.chmod(0o755)


def _begun(askers: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """Let all of them begin before anybody waits for the first."""
    for asker in askers:
        assert asker.stdin is not None
        asker.stdin.write(b"\n")
        asker.stdin.flush()
    return askers

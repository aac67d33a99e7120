from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win.locking import is_locked, locked

HOLDER = """
import sys
from pathlib import Path
from mmf_win.locking import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_held_until_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "замок 锁"
    assert not is_locked(path)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        assert is_locked(path)
        with pytest.raises(BlockingIOError), locked(path):
            raise AssertionError("two hold one lock")
        holder.kill()
    with locked(path):
        pass
    assert not is_locked(path)

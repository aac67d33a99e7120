"""Linux's count of the processes that it killed because memory ran out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmf_win.supervise import child, oom_kills

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows kills nothing for want of memory")


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


def test_a_process_that_the_kernel_kills_for_want_of_memory_is_counted(small_memory: Path) -> None:
    before = oom_kills()
    taking = "import sys; sys.stdin.readline(); taken = [bytearray(b'x') * (1 << 20) for _ in range(300)]"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", taking], stdin=subprocess.PIPE) as process:
        (small_memory / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
        process.communicate(b"\n")
    assert process.returncode == -signal.SIGKILL
    after = oom_kills()
    assert before is not None and after is not None and after > before


@pytest.mark.parametrize("content", [None, "nr_free_pages 7\n", "\xff"])
def test_where_nobody_counts_there_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "vmstat"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    monkeypatch.setattr(child, "_COUNTERS", file)
    assert oom_kills() is None

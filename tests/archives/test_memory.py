"""No archive takes more memory than a small machine has: bombs are read in a process with a limit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import py7zr
import pytest

from mmf_win.archives import base, open_archive
from mmf_win.errors import ArchiveError
from tests.worlds import hostile
from tests.worlds.bombs import BOMBS
from tests.worlds.memes import Files
from tests.worlds.packing import only, write_7z, write_tar

_CHILD = """\
import resource, sys, time
from pathlib import Path
from mmf_win.archives import open_archive
from mmf_win.errors import ArchiveError

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for name in sys.argv[1:]:
    seconds = int(time.process_time()) + 30
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    try:
        open_archive(Path(name))
    except ArchiveError as error:
        assert name in str(error) and len(str(error)) < 1000, str(error)[:1000]
    print(name, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits, which Windows has not")
def test_bombs_take_less_than_a_gigabyte_and_thirty_seconds(user_dir: Path) -> None:
    for name, make in BOMBS.items():
        make(user_dir / name)
    paths = [str(user_dir / name) for name in BOMBS]
    child = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", _CHILD, *paths],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert child.stdout.splitlines() == paths, child.stderr


@pytest.mark.parametrize("pack", [write_tar, hostile.plain_zip, write_7z])
def test_an_archive_of_very_many_members_is_refused(
    pack: Callable[[Path, Files], Path], user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MOST_MEMBERS", 2)
    monkeypatch.setattr(py7zr.archiveinfo, "MAX_NUMFILES", 2)
    with pytest.raises(ArchiveError, match=r"a\.b: .*2"):
        open_archive(pack(user_dir / "a.b", {"x": b"1", "y": b"2", "z": b"3"}))


def test_a_dictionary_that_would_fill_the_memory_is_refused(user_dir: Path) -> None:
    def unpacked(code: int) -> bytes:
        path = hostile.seven_zip_with_dictionary(user_dir / "a.b", {"x": b"content"}, code)
        with open_archive(path) as opened:
            list(opened.extract(only({"x": user_dir / "x"})))
        return (user_dir / "x").read_bytes()

    assert unpacked(32) == b"content"  # 256 MiB
    (user_dir / "x").unlink()
    with pytest.raises(ArchiveError, match=r"a\.b: .*memory"):
        unpacked(33)
    assert not (user_dir / "x").exists()

"""Installations that fail or are killed at any step."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from mmf_win.files import write_json
from mmf_win.unpacking.staging import (
    finish_installation,
    is_install_incomplete,
    open_staging,
    shared_read_lock,
    staging_folder,
)
from tests.worlds.memes import Files, read_tree, write_tree
from tests.worlds.tools import make_failing_function

OLD: Files = {"a": b"old a", "b": b"old b"}
NEW: Files = {"a": b"new a", "b": b"new b"}
RENAMES = range(1, 5)
"""Renames of an installation: each old file away, each new one to its place."""


class Killed(BaseException):
    """End of a process, after which it changes nothing more."""


class Disk:
    """Fake disk that counts renames and removals and raises an error instead of some of them.

    A KeyboardInterrupt is raised after the operation, not instead of it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._step, self._error = 0, BaseException()
        self._fails: Callable[[int], bool] = lambda step: False
        for name in ("replace", "unlink"):
            self._watch(name)

    def fail(self, error: BaseException, fails: Callable[[int], bool]) -> None:
        """Raise ``error`` instead of performing the steps (from 1) for which ``fails`` is true."""
        self._step, self._error, self._fails = 0, error, fails

    def recover(self) -> None:
        """Allow all operations again."""
        self._fails = lambda step: False

    def _watch(self, name: str) -> None:
        change = getattr(Path, name)

        def watched(path: Path, *arguments: Path, **options: bool) -> object:
            if path.name.endswith(".part"):  # the list of moves, which is written before the first step
                return change(path, *arguments, **options)
            self._step += 1
            fails = self._fails(self._step)
            if fails and not isinstance(self._error, KeyboardInterrupt):
                raise self._error
            result = change(path, *arguments, **options)
            if fails:  # an interrupt is raised after the system call
                raise self._error
            return result

        self._monkeypatch.setattr(Path, name, watched)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def install(root: Path) -> None:
    """Replace both old files by new ones."""
    with open_staging(write_tree(OLD, root)) as staging:
        write_tree(NEW, staging.new_dir)
        staging.install([(staging.new_dir / name, root / name) for name in NEW])


def contents(root: Path) -> Files:
    """Return all visible files."""
    return {name: content for name, content in read_tree(root).items() if not name.startswith(".")}


@pytest.mark.parametrize("failing", RENAMES)
def test_failed_installation_restores_all_old_files(failing: int, user_dir: Path, disk: Disk) -> None:
    root = user_dir / "root"
    disk.fail(OSError(errno.EIO, "the disk fails once"), lambda step: step == failing)
    with pytest.raises(OSError, match="fails once"):
        install(root)
    assert contents(root) == OLD
    assert not is_install_incomplete(root)
    assert not staging_folder(root).exists()


@pytest.mark.parametrize("last", RENAMES)
def test_interrupted_installation_is_completed_by_the_next(last: int, user_dir: Path, disk: Disk) -> None:
    root = user_dir / "root"
    disk.fail(KeyboardInterrupt(), lambda step: step == last)
    with pytest.raises(KeyboardInterrupt):
        install(root)
    assert is_install_incomplete(root)
    disk.recover()
    assert finish_installation(root)
    assert contents(root) == NEW
    assert not staging_folder(root).exists()


@pytest.mark.parametrize("first", RENAMES)
def test_killed_completion_is_completed_by_the_next(first: int, user_dir: Path, disk: Disk) -> None:
    for second in count(1):
        root = user_dir / f"{second}"
        disk.fail(Killed(), lambda step: step >= first)
        with pytest.raises(Killed):
            install(root)
        assert is_install_incomplete(root)
        disk.fail(Killed(), lambda step, last=second: step >= last)  # type: ignore[misc]
        try:
            finished = finish_installation(root)
        except Killed:
            finished = False
            assert is_install_incomplete(root) or contents(root) == NEW
        disk.recover()
        assert finish_installation(root)
        assert contents(root) == NEW
        assert not staging_folder(root).exists()
        if finished:
            break
    assert second > len(RENAMES) - first + 1, "each step must be interrupted"


@pytest.mark.parametrize("died", [False, True])
def test_leftover_old_files_do_not_prevent_the_next_installation(
    died: bool, user_dir: Path, monkeypatch: pytest.MonkeyPatch, disk: Disk
) -> None:
    """Like on Windows if a replaced file is open in another program."""
    root = user_dir / "root"
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)
        install(root)
    [old] = staging_folder(root).glob("old*")
    assert [path.name for path in old.iterdir()] == ["0", "1"]
    with suppress(Killed), monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)
        with open_staging(root) as staging:
            write_tree({"b": b"newest b"}, staging.new_dir)
            disk.fail(Killed(), lambda step: died)
            staging.install([(None, root / "a"), (staging.new_dir / "b", root / "b")])
    disk.recover()
    assert finish_installation(root)
    assert contents(root) == {"b": b"newest b"}
    assert not staging_folder(root).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_files_are_read_without_a_lock_only_without_lock_support(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fcntl.flock", make_failing_function(errno.ENOLCK))
    with shared_read_lock(tmp_path):
        assert f"{tmp_path / '.mmfw-lock'}: the file system does not support locks" in caplog.text
    monkeypatch.setattr("fcntl.flock", make_failing_function(errno.EBADF))
    with pytest.raises(OSError, match="cannot be locked"), shared_read_lock(tmp_path):
        raise AssertionError("files that cannot be locked must not be read")


def test_installation_begun_by_an_earlier_version_is_completed(tmp_path: Path) -> None:
    """Earlier versions kept all old files in one folder. The first move has been made."""
    staging = staging_folder(tmp_path)
    write_tree({"a": b"new a", "b": b"old b"}, tmp_path)
    write_tree({"new/b": b"new b", "old-x/0": b"old a"}, staging)
    moves = [[f"{staging.name}/new/{name}", name] for name in NEW]
    write_json(staging / "installing", {"moves": moves, "old": "old-x"})
    assert finish_installation(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in NEW} == NEW
    assert not is_install_incomplete(tmp_path)

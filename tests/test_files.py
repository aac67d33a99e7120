"""Atomic changes of files, and errors that name the file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from mmf_win import files
from mmf_win.cli import main
from mmf_win.files import (
    atomic_replace,
    fsync_file,
    link_or_copy,
    read_json,
    remove,
    remove_tree,
    rename,
    to_mmfw_error,
    write_bytes,
    write_json,
)
from mmf_win.locking import file_lock
from mmf_win.runs.folder import Run
from mmf_win.runs.request import RunRequest
from tests.worlds.event_log import EventLog
from tests.worlds.flush_recorder import FlushRecorder
from tests.worlds.memes import RUN_SPLITS
from tests.worlds.tools import make_failing_function


def test_old_file_stays_until_new_one_is_complete(user_dir: Path) -> None:
    path = user_dir / "отчёт.txt"
    path.write_text("old", encoding="utf-8")
    with atomic_replace(path) as temporary:
        temporary.write_text("new", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"
    assert list(user_dir.iterdir()) == [path]


def test_failed_replacement_leaves_only_the_old_file(user_dir: Path) -> None:
    path = user_dir / "report.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match="halfway"), atomic_replace(path) as temporary:
        temporary.write_text("ne", encoding="utf-8")
        raise ValueError("halfway")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(user_dir.iterdir()) == [path]


def test_concurrent_replacements_use_different_temporary_files(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with atomic_replace(path) as first, atomic_replace(path) as second:
        second.write_text("second", encoding="utf-8")
        first.write_text("first, and longer", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "first, and longer"
    assert list(tmp_path.iterdir()) == [path]


def test_json_keeps_non_ascii_text(user_dir: Path) -> None:
    path = user_dir / "note.json"
    write_json(path, {"Память": ["中文", None, 1.5]})
    assert read_json(path) == {"Память": ["中文", None, 1.5]}


@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.EIO])
@pytest.mark.parametrize("write", [fsync_file, lambda path: write_bytes(path, b"new")])
def test_failed_fsync_is_an_error_with_file_name_and_hint(
    number: int, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"old")
    monkeypatch.setattr("os.fsync", make_failing_function(number))
    with pytest.raises(OSError, match="cannot be written") as raised:
        write(path)
    error = to_mmfw_error(raised.value)
    assert str(error) == f"{path}: cannot be written ({os.strerror(number)})"
    assert error.hint
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_locked_file_has_a_separate_exit_code(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock"), pytest.raises(BlockingIOError) as raised, file_lock(tmp_path / "lock"):
        raise AssertionError("the lock was acquired twice")
    error = to_mmfw_error(raised.value)
    assert error.exit_code == 8 and str(tmp_path / "lock") in str(error) and error.hint
    assert to_mmfw_error(BlockingIOError(errno.EAGAIN, "no more processes")).exit_code == 3  # raised by os.fork


def test_file_is_flushed_before_it_is_renamed(user_dir: Path, flush_recorder: FlushRecorder) -> None:
    write_bytes(user_dir / "note", b"content")
    assert [rename.is_flushed for rename in flush_recorder.renames_to(user_dir / "note")] == [True]


def test_copy_without_hard_links_is_flushed_before_it_is_renamed(
    user_dir: Path, flush_recorder: FlushRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    (user_dir / "best.ckpt").write_bytes(b"weights")
    link_or_copy(user_dir / "best.ckpt", user_dir / "current.ckpt")
    assert (user_dir / "current.ckpt").read_bytes() == b"weights"
    assert [rename.is_flushed for rename in flush_recorder.renames_to(user_dir / "current.ckpt")] == [True]


class FakeVirusScanner:
    """Replacement of ``Path.replace`` that fails a number of times, as if a virus scanner had the file open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
        self.refusals = refusals
        self.call_count = 0
        original_replace = Path.replace

        def fail_or_replace(path: Path, target: Path) -> Path:
            self.call_count += 1
            if self.call_count <= self.refusals:
                raise PermissionError(13, "in use", str(path))
            return original_replace(path, target)

        monkeypatch.setattr(Path, "replace", fail_or_replace)
        monkeypatch.setattr(files, "RETRY_PAUSE_SECONDS", 0.0)
        monkeypatch.setattr(files, "MAX_TRIES", 3)


@pytest.mark.parametrize(("refusals", "fails"), [(0, False), (1, False), (2, False), (99, True)])
def test_rename_is_retried_with_a_limit_for_fake_virus_scanner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, fails: bool
) -> None:
    scanner = FakeVirusScanner(monkeypatch, refusals)
    (tmp_path / "old").mkdir()
    with pytest.raises(PermissionError) if fails else nullcontext():
        rename(tmp_path / "old", tmp_path / "new")
    assert scanner.call_count == min(refusals + 1, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["old" if fails else "new"]


HOLD_FILES_CODE = """
import sys
for path in sys.argv[1:]:
    with open(path, "rb"):
        print("held", flush=True)
        sys.stdin.readline()
    print("free", flush=True)
"""


@pytest.mark.skipif(sys.platform != "win32", reason="only Windows refuses to change a file that is open")
def test_open_file_is_changed_after_it_is_closed_or_named_in_error(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(user_dir / "save" / "mmbt" / "2026-01-01T00-00-00")
    run.path.mkdir(parents=True)
    run.save_request(RunRequest("mmbt", splits=RUN_SPLITS))
    replaced, removed, nested = user_dir / "exit.json", user_dir / "old.json", user_dir / "runs" / "log.txt"
    nested.parent.mkdir()
    for path in (replaced, removed, nested):
        write_json(path, 1)
    changes = {
        replaced: lambda: write_json(replaced, 2),
        removed: lambda: remove(removed),
        nested: lambda: remove_tree(nested.parent),
    }
    command = [sys.executable, "-c", HOLD_FILES_CODE, *map(str, changes), str(run.request_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        holder_input, holder_output = holder.stdin, holder.stdout

        def let_holder_close(seconds: float) -> None:
            holder_input.write("\n")
            holder_input.flush()
            assert holder_output.readline() == "free\n"

        for change in changes.values():
            assert holder_output.readline() == "held\n"
            monkeypatch.setattr("time.sleep", let_holder_close)
            change()
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        assert holder_output.readline() == "held\n"
        with pytest.raises(PermissionError) as raised:
            write_json(run.request_file, {})
        assert (raised.value.filename, raised.value.filename2) == (str(run.request_file), None)
        assert main(["runs", "rm", "mmbt", "--yes", "--save-dir", str(user_dir / "save")]) == 3
        holder.communicate("\n")
    assert (read_json(replaced), removed.exists(), nested.parent.exists()) == (2, False, False)
    errors = capsys.readouterr().err
    assert str(run.path) in errors and "hint: close any program that has the file open" in errors


def test_folder_that_blocks_a_file_is_the_only_name_in_the_error(user_dir: Path) -> None:
    path = user_dir / "current.ckpt"
    path.mkdir()
    with pytest.raises(OSError) as raised:
        write_bytes(path, b"content")
    assert str(raised.value).endswith(f"{str(path)!r}")
    assert [*user_dir.iterdir()] == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of the size of files")
def test_too_large_file_is_named_and_removed(user_dir: Path) -> None:
    import resource

    path = user_dir / "модель.json"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError) as raised:
            write_bytes(path, bytes(100))
        log = EventLog(user_dir / "events.jsonl", "1")
        with pytest.raises(OSError) as raised_by_log:
            log.write("note", text="longer than the limit, so the system writes only a part of it")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))
    assert (raised_by_log.value.errno, raised_by_log.value.filename) == (errno.EFBIG, str(user_dir / "events.jsonl"))
    assert not path.exists()

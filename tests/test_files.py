"""Files that take their place whole or not at all."""

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


def test_the_old_file_stays_until_the_new_one_is_whole(user_dir: Path) -> None:
    path = user_dir / "отчёт.txt"
    path.write_text("old", encoding="utf-8")
    with atomic_replace(path) as temporary:
        temporary.write_text("new", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"
    assert list(user_dir.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_of_the_new_one(user_dir: Path) -> None:
    path = user_dir / "report.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match="halfway"), atomic_replace(path) as temporary:
        temporary.write_text("ne", encoding="utf-8")
        raise ValueError("halfway")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(user_dir.iterdir()) == [path]


def test_two_that_write_one_file_at_once_write_to_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with atomic_replace(path) as first, atomic_replace(path) as second:
        second.write_text("second", encoding="utf-8")
        first.write_text("first, and longer", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "first, and longer"
    assert list(tmp_path.iterdir()) == [path]


def test_json_of_any_language_comes_back(user_dir: Path) -> None:
    path = user_dir / "note.json"
    write_json(path, {"Память": ["中文", None, 1.5]})
    assert read_json(path) == {"Память": ["中文", None, 1.5]}


@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.EIO])
@pytest.mark.parametrize("write", [fsync_file, lambda path: write_bytes(path, b"new")])
def test_a_flush_that_the_system_refuses_names_the_file_and_the_next_step(
    number: int, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"old")
    monkeypatch.setattr("os.fsync", make_failing_function(number))
    with pytest.raises(OSError, match="cannot be written") as raised:
        write(path)
    told = to_mmfw_error(raised.value)
    assert str(told) == f"{path}: cannot be written ({os.strerror(number)})"
    assert told.hint
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_lock_of_another_process_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock"), pytest.raises(BlockingIOError) as raised, file_lock(tmp_path / "lock"):
        raise AssertionError("two hold one lock")
    told = to_mmfw_error(raised.value)
    assert told.exit_code == 8 and str(tmp_path / "lock") in str(told) and told.hint
    assert to_mmfw_error(BlockingIOError(errno.EAGAIN, "no more processes")).exit_code == 3  # of a fork


def test_a_file_is_flushed_before_it_takes_its_place(user_dir: Path, flush_recorder: FlushRecorder) -> None:
    write_bytes(user_dir / "note", b"content")
    assert [rename.is_flushed for rename in flush_recorder.renames_to(user_dir / "note")] == [True]


def test_a_copy_in_place_of_a_hard_link_is_flushed_before_it_takes_its_place(
    user_dir: Path, flush_recorder: FlushRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    (user_dir / "best.ckpt").write_bytes(b"weights")
    link_or_copy(user_dir / "best.ckpt", user_dir / "current.ckpt")
    assert (user_dir / "current.ckpt").read_bytes() == b"weights"
    assert [rename.is_flushed for rename in flush_recorder.renames_to(user_dir / "current.ckpt")] == [True]


class Scanner:
    """Replacement of Path.replace that refuses some times, as if a virus scanner held the file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
        self.refusals = refusals
        self.asked = 0
        real = Path.replace

        def refuse(path: Path, target: Path) -> Path:
            self.asked += 1
            if self.asked <= self.refusals:
                raise PermissionError(13, "in use", str(path))
            return real(path, target)

        monkeypatch.setattr(Path, "replace", refuse)
        monkeypatch.setattr(files, "RETRY_PAUSE_SECONDS", 0.0)
        monkeypatch.setattr(files, "MAX_TRIES", 3)


@pytest.mark.parametrize(("refusals", "refused"), [(0, False), (1, False), (2, False), (99, True)])
def test_renaming_waits_for_a_fake_virus_scanner_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, refused: bool
) -> None:
    scanner = Scanner(monkeypatch, refusals)
    (tmp_path / "old").mkdir()
    with pytest.raises(PermissionError) if refused else nullcontext():
        rename(tmp_path / "old", tmp_path / "new")
    assert scanner.asked == min(refusals + 1, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["old" if refused else "new"]


HOLDER = """
import sys
for path in sys.argv[1:]:
    with open(path, "rb"):
        print("held", flush=True)
        sys.stdin.readline()
    print("free", flush=True)
"""


@pytest.mark.skipif(sys.platform != "win32", reason="only Windows refuses to change a file that is open")
def test_what_another_program_holds_is_changed_once_it_lets_go_and_else_named_with_what_to_do(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(user_dir / "save" / "mmbt" / "2026-01-01T00-00-00")
    run.path.mkdir(parents=True)
    run.save_request(RunRequest("mmbt", splits=RUN_SPLITS))
    replaced, removed, inside = user_dir / "exit.json", user_dir / "old.json", user_dir / "runs" / "log.txt"
    inside.parent.mkdir()
    for path in (replaced, removed, inside):
        write_json(path, 1)
    changes = {
        replaced: lambda: write_json(replaced, 2),
        removed: lambda: remove(removed),
        inside: lambda: remove_tree(inside.parent),
    }
    command = [sys.executable, "-c", HOLDER, *map(str, changes), str(run.request_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        lets_go, told = holder.stdin, holder.stdout

        def pause(seconds: float) -> None:
            lets_go.write("\n")
            lets_go.flush()
            assert told.readline() == "free\n"

        for change in changes.values():
            assert told.readline() == "held\n"
            monkeypatch.setattr("time.sleep", pause)
            change()
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        assert told.readline() == "held\n"
        with pytest.raises(PermissionError) as refused:
            write_json(run.request_file, {})
        assert (refused.value.filename, refused.value.filename2) == (str(run.request_file), None)
        assert main(["runs", "rm", "mmbt", "--yes", "--save-dir", str(user_dir / "save")]) == 3
        holder.communicate("\n")
    assert (read_json(replaced), removed.exists(), inside.parent.exists()) == (2, False, False)
    said = capsys.readouterr().err
    assert str(run.path) in said and "hint: close any program that has the file open" in said


def test_a_folder_in_the_place_of_a_file_is_named_alone(user_dir: Path) -> None:
    path = user_dir / "current.ckpt"
    path.mkdir()
    with pytest.raises(OSError) as caught:
        write_bytes(path, b"content")
    assert str(caught.value).endswith(f"{str(path)!r}")
    assert [*user_dir.iterdir()] == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no process so")
def test_a_file_that_is_too_large_is_named_and_leaves_nothing(user_dir: Path) -> None:
    import resource

    path = user_dir / "модель.json"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            write_bytes(path, bytes(100))
        log = EventLog(user_dir / "events.jsonl", "1")
        with pytest.raises(OSError) as torn:
            log.write("note", text="more than may be written, of which the system takes a part")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert (torn.value.errno, torn.value.filename) == (errno.EFBIG, str(user_dir / "events.jsonl"))
    assert not path.exists()

"""Choosing a checkpoint by its file alone."""

import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from mmf_win.errors import CheckpointError
from mmf_win.integrity.digest import file_digest
from mmf_win.runs import checkpoints
from mmf_win.runs.folder import Run
from tests.worlds import hostile_archives
from tests.worlds.event_log import EventLog
from tests.worlds.torch_files import write_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "mmbt" / "2026-01-01T00-00-00")


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        (["best", "current"], "best", "best"),
        (["best", "current"], "last", "current"),
        (["current"], "best", "current"),
    ],
)
def test_best_and_last_are_files_and_a_run_too_short_to_have_a_best_gives_its_last(
    run: Run, there: list[str], wanted: str, chosen: str
) -> None:
    for name in there:
        write_checkpoint(run.checkpoints / f"{name}.ckpt", 1)
    assert checkpoints.select_checkpoint(run, wanted).path == run.checkpoints / f"{chosen}.ckpt"


def test_a_cut_off_current_checkpoint_falls_back_to_the_newest_intact_one(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    broken = hostile_archives.truncate_file(write_checkpoint(run.checkpoints / "current.ckpt", 11))
    write_checkpoint(run.checkpoints / "models" / "model_9.ckpt", 9)
    newest = write_checkpoint(run.checkpoints / "models" / "model_10.ckpt", 10)
    assert checkpoints.select_checkpoint(run, "last").path == newest
    [note] = caplog.messages
    assert str(broken) in note and newest.name in note


def test_the_last_of_a_run_that_went_back_to_its_best_is_not_what_it_had_set_aside(run: Run) -> None:
    log = EventLog(run.events, "1")
    best = write_checkpoint(run.checkpoints / "best.ckpt", 20)
    old = write_checkpoint(run.checkpoints / "current.ckpt", 100)
    for kind, update in (("checkpoint", 20), ("checkpoint", 100)):
        log.write(kind, update=update)
    assert checkpoints.select_checkpoint(run, "last").path == old
    assert "80 updates after it" in checkpoints.preserve_last_checkpoint(run, best)
    kept = run.checkpoints / "models" / "model_100_aside_1.ckpt"
    assert kept.samefile(old)
    checkpoints.preserve_last_checkpoint(run, best)
    assert [*kept.parent.iterdir()] == [kept], "once, however often it is tried"
    log.write("train_started", update=20)  # and killed before it saved
    assert checkpoints.select_checkpoint(run, "last").path == best
    log.write("checkpoint", update=30)
    old.unlink()
    hostile_archives.truncate_file(write_checkpoint(old, 30))
    assert checkpoints.select_checkpoint(run, "last").path == best
    log.write("checkpoint", update=110)
    assert checkpoints.select_checkpoint(run, "last").path == best
    assert checkpoints.preserve_last_checkpoint(run, write_checkpoint(old, 110)) == ""
    log.write("checkpoint", update=100)
    write_checkpoint(old, 100)
    assert "model_100_aside_2.ckpt" in checkpoints.preserve_last_checkpoint(run, best)


def test_a_checkpoint_of_another_run_is_passed_over_and_one_whose_save_was_not_recorded_is_not(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    best = write_checkpoint(run.checkpoints / "best.ckpt", 10)
    current = write_checkpoint(run.checkpoints / "current.ckpt", 20)
    log = EventLog(run.events, "1")
    for path, update in ((best, 10), (current, 20)):
        log.write("saving", update=update)
        log.write("checkpoint", update=update, sha256=sha256(path.read_bytes()).hexdigest())
    log.write("saving", update=30)
    assert (
        checkpoints.select_checkpoint(run, "best").path,
        checkpoints.select_checkpoint(run, "last").path,
    ) == (best, current)
    assert [each.problem for each in checkpoints.list_checkpoints(run)] == [None, None]

    write_checkpoint(current, 30)  # and then the worker was killed
    assert checkpoints.select_checkpoint(run, "last").path == current
    write_checkpoint(best, 20, epoch=7)
    assert checkpoints.select_checkpoint(run, "best").path == current
    [note] = caplog.messages
    assert f"{best}: it is whole, but this run has not saved it" in note and "current.ckpt instead" in note
    assert [each.name for each in checkpoints.list_checkpoints(run) if each.problem] == ["best.ckpt"]
    with pytest.raises(CheckpointError, match=r"best\.ckpt: it is whole") as refused:
        checkpoints.require_no_foreign_best(run)
    assert refused.value.hint == "move it away; the next validation makes the best anew"
    assert checkpoints.can_resume(run)
    current.unlink()
    assert not checkpoints.can_resume(run)


@pytest.mark.parametrize(
    "saved_in",
    ["/home/x/save/mmbt/2026-01-01T00-00-00/checkpoints", "D:\\save\\mmbt\\2026-01-01T00-00-00\\checkpoints"],
)
def test_a_run_that_was_copied_while_it_trained_uses_its_checkpoints_and_no_other_runs(
    run: Run, saved_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(run.events, "1")
    first = write_checkpoint(run.checkpoints / "models" / "model_10.ckpt", 10, save_dir=saved_in)
    log.write("saving", update=10)
    log.write("checkpoint", update=10, sha256=sha256(first.read_bytes()).hexdigest(), best=True)
    # The copy of the record ends here; the copies of the checkpoints were made later.
    best = write_checkpoint(run.checkpoints / "best.ckpt", 20, save_dir=saved_in)
    current = write_checkpoint(run.checkpoints / "current.ckpt", 30, save_dir=saved_in)
    assert (
        checkpoints.select_checkpoint(run, "last").path == current
        and checkpoints.select_checkpoint(run, "best").path == best
    )
    checkpoints.require_no_foreign_best(run)
    assert checkpoints.can_resume(run)
    assert [each.problem for each in checkpoints.list_checkpoints(run)] == [None] * 3
    lacks = "intact at update {}; the run's record is older and lacks it"
    assert set(caplog.messages) == {f"{current}: {lacks.format(30)}", f"{best}: {lacks.format(20)}"}

    resumed = write_checkpoint(current, 40, save_dir=saved_in)
    log.write("checkpoint", update=40, sha256=sha256(resumed.read_bytes()).hexdigest())
    assert checkpoints.select_checkpoint(run, "best").path == best, "though the record goes on after the gap"

    other = saved_in.replace("T00-00-00", "T00-00-01")
    write_checkpoint(best, 50, save_dir=other)
    write_checkpoint(first, 10, epoch=7, save_dir=saved_in)  # changed, since the record has this update
    assert [each.name for each in checkpoints.list_checkpoints(run) if each.problem] == [
        "best.ckpt",
        "models/model_10.ckpt",
    ]
    with pytest.raises(CheckpointError, match=r"best\.ckpt: it is whole"):
        checkpoints.require_no_foreign_best(run)


def test_a_checkpoint_of_another_task_whose_run_began_in_the_same_second_is_not_the_runs(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "lr_0.1" / "mmbt" / "2026-01-01T00-00-00")
    current = write_checkpoint(run.checkpoints / "current.ckpt", 20, save_dir=str(run.checkpoints))
    (tmp_path / "lr_0.1" / "param").touch()
    EventLog(run.events, "1").write("checkpoint", update=10, sha256="0" * 64)
    assert checkpoints.select_checkpoint(run, "last").path == current
    write_checkpoint(current, 21, save_dir=str(run.checkpoints).replace("lr_0.1", "lr_0.2"))
    assert not checkpoints.can_resume(run)


def test_the_hint_about_a_foreign_best_names_the_copy_of_the_last_best(run: Run) -> None:
    log = EventLog(run.events, "1")
    models = run.checkpoints / "models"
    earlier, last = (write_checkpoint(models / f"model_{update}.ckpt", update) for update in (10, 20))
    for path, update in ((earlier, 10), (last, 20)):
        log.write("checkpoint", update=update, sha256=sha256(path.read_bytes()).hexdigest(), best=True)
    now = last.stat().st_mtime
    os.utime(earlier, (now + 10, now + 10))  # a restored backup, for example
    write_checkpoint(run.checkpoints / "best.ckpt", 20, epoch=7)
    with pytest.raises(CheckpointError) as refused:
        checkpoints.require_no_foreign_best(run)
    assert str(last) in str(refused.value.hint)


def test_without_an_intact_checkpoint_the_error_names_the_run_or_the_first_broken_one(run: Run) -> None:
    with pytest.raises(CheckpointError, match="mmbt/2026-01-01T00-00-00 has no checkpoint"):
        checkpoints.select_checkpoint(run, "last")
    hostile_archives.truncate_file(write_checkpoint(run.checkpoints / "current.ckpt", 11))
    with pytest.raises(CheckpointError, match=r"current\.ckpt: it is cut off"):
        checkpoints.select_checkpoint(run, "last")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and then nothing"])
def test_a_file_that_is_no_checkpoint_is_told_apart(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "my model.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cut off or not a checkpoint"):
        checkpoints.select_checkpoint(Run(tmp_path), str(path))


def test_a_checkpoint_with_a_damaged_directory_is_told_apart(tmp_path: Path) -> None:
    """Its last record is whole, so that a hasty look takes it for a zip file."""
    path = write_checkpoint(tmp_path / "damaged.ckpt", 1)
    hostile_archives.flip_byte(path, path.read_bytes().index(b"PK\x01\x02"))
    assert checkpoints.check_file(path).problem == "it is cut off or not a checkpoint"


def test_another_zip_file_is_no_checkpoint_and_one_of_torch_before_1_6_passes(tmp_path: Path) -> None:
    path = hostile_archives.write_zip(tmp_path / "photos.zip", {"a.png": b""})
    assert checkpoints.check_file(path).problem == "it is a zip file but not a checkpoint"
    path = tmp_path / "old.pth"
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    assert checkpoints.check_file(path).problem is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_a_pipe_is_refused_and_not_waited_for(run: Run) -> None:
    write_checkpoint(run.checkpoints / "best.ckpt", 1)
    os.mkfifo(run.checkpoints / "current.ckpt")
    assert checkpoints.check_file(run.checkpoints / "current.ckpt").problem == "not a file"
    assert checkpoints.select_checkpoint(run, "last").path.name == "best.ckpt"
    assert {found.name: found.problem for found in checkpoints.list_checkpoints(run)} == {
        "best.ckpt": None,
        "current.ckpt": "not a file",
    }
    assert checkpoints.read_checkpoint_progress(run.checkpoints / "current.ckpt") is None
    with pytest.raises(OSError, match="not a file"):
        file_digest(run.checkpoints / "current.ckpt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.ckpt: there is no such file"):
        checkpoints.select_checkpoint(Run(tmp_path), str(tmp_path / "nowhere.ckpt"))

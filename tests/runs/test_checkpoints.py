"""Selecting and checking checkpoints by their files."""

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
    """Return a run without files."""
    return Run(tmp_path / "mmbt" / "2026-01-01T00-00-00")


@pytest.mark.parametrize(
    ("existing", "spec", "expected"),
    [(["best", "current"], "best", "best"), (["best", "current"], "last", "current"), (["current"], "best", "current")],
)
def test_best_falls_back_to_last_checkpoint(run: Run, existing: list[str], spec: str, expected: str) -> None:
    for name in existing:
        write_checkpoint(run.checkpoints / f"{name}.ckpt", 1)
    assert checkpoints.select_checkpoint(run, spec).path == run.checkpoints / f"{expected}.ckpt"


def test_truncated_last_checkpoint_falls_back_to_newest_intact_one(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    broken = hostile_archives.truncate_file(write_checkpoint(run.checkpoints / "current.ckpt", 11))
    write_checkpoint(run.checkpoints / "models" / "model_9.ckpt", 9)
    newest = write_checkpoint(run.checkpoints / "models" / "model_10.ckpt", 10)
    assert checkpoints.select_checkpoint(run, "last").path == newest
    [warning] = caplog.messages
    assert str(broken) in warning and newest.name in warning


def test_superseded_checkpoint_is_never_the_last_one(run: Run) -> None:
    log = EventLog(run.events, "1")
    best = write_checkpoint(run.checkpoints / "best.ckpt", 20)
    old = write_checkpoint(run.checkpoints / "current.ckpt", 100)
    for kind, update in (("checkpoint", 20), ("checkpoint", 100)):
        log.write(kind, update=update)
    assert checkpoints.select_checkpoint(run, "last").path == old
    assert "the checkpoint of update 100 is kept as" in checkpoints.preserve_last_checkpoint(run, best)
    kept = run.checkpoints / "models" / "model_100_aside_1.ckpt"
    assert kept.samefile(old)
    checkpoints.preserve_last_checkpoint(run, best)
    assert [*kept.parent.iterdir()] == [kept], "repeated calls must keep a single copy"
    log.write("train_started", update=20)  # the attempt was killed before it saved
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


def test_foreign_checkpoint_is_skipped_but_unrecorded_one_of_the_run_is_used(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    best = write_checkpoint(run.checkpoints / "best.ckpt", 10)
    current = write_checkpoint(run.checkpoints / "current.ckpt", 20)
    log = EventLog(run.events, "1")
    for path, update in ((best, 10), (current, 20)):
        log.write("saving", update=update)
        log.write("checkpoint", update=update, sha256=sha256(path.read_bytes()).hexdigest())
    log.write("saving", update=30)
    assert (checkpoints.select_checkpoint(run, "best").path, checkpoints.select_checkpoint(run, "last").path) == (
        best,
        current,
    )
    assert [checkpoint.problem for checkpoint in checkpoints.list_checkpoints(run)] == [None, None]

    write_checkpoint(current, 30)  # the worker was killed afterwards
    assert checkpoints.select_checkpoint(run, "last").path == current
    write_checkpoint(best, 20, epoch=7)
    assert checkpoints.select_checkpoint(run, "best").path == current
    [warning] = caplog.messages
    assert f"{best}: intact, but not written by this run" in warning and "current.ckpt instead" in warning
    assert [checkpoint.name for checkpoint in checkpoints.list_checkpoints(run) if checkpoint.problem] == ["best.ckpt"]
    with pytest.raises(CheckpointError, match=r"best\.ckpt: intact, but not written") as refused:
        checkpoints.require_no_foreign_best(run)
    assert refused.value.hint == "move the file away; the next validation saves a new one"
    assert checkpoints.can_resume(run)
    current.unlink()
    assert not checkpoints.can_resume(run)


@pytest.mark.parametrize(
    "save_dir",
    ["/home/x/save/mmbt/2026-01-01T00-00-00/checkpoints", "D:\\save\\mmbt\\2026-01-01T00-00-00\\checkpoints"],
)
def test_run_copied_during_training_uses_only_its_own_checkpoints(
    run: Run, save_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(run.events, "1")
    first = write_checkpoint(run.checkpoints / "models" / "model_10.ckpt", 10, save_dir=save_dir)
    log.write("saving", update=10)
    log.write("checkpoint", update=10, sha256=sha256(first.read_bytes()).hexdigest(), best=True)
    # The copy of the record ends here; the copies of the checkpoints were made later.
    best = write_checkpoint(run.checkpoints / "best.ckpt", 20, save_dir=save_dir)
    current = write_checkpoint(run.checkpoints / "current.ckpt", 30, save_dir=save_dir)
    assert (
        checkpoints.select_checkpoint(run, "last").path == current
        and checkpoints.select_checkpoint(run, "best").path == best
    )
    checkpoints.require_no_foreign_best(run)
    assert checkpoints.can_resume(run)
    assert [checkpoint.problem for checkpoint in checkpoints.list_checkpoints(run)] == [None] * 3
    message_format = "intact at update {}, but missing from the events of the run"
    assert set(caplog.messages) == {f"{current}: {message_format.format(30)}", f"{best}: {message_format.format(20)}"}

    resumed = write_checkpoint(current, 40, save_dir=save_dir)
    log.write("checkpoint", update=40, sha256=sha256(resumed.read_bytes()).hexdigest())
    assert checkpoints.select_checkpoint(run, "best").path == best, "events after the gap must not change the choice"

    other_dir = save_dir.replace("T00-00-00", "T00-00-01")
    write_checkpoint(best, 50, save_dir=other_dir)
    write_checkpoint(first, 10, epoch=7, save_dir=save_dir)  # the record has another hash
    assert [checkpoint.name for checkpoint in checkpoints.list_checkpoints(run) if checkpoint.problem] == [
        "best.ckpt",
        "models/model_10.ckpt",
    ]
    with pytest.raises(CheckpointError, match=r"best\.ckpt: intact, but not written"):
        checkpoints.require_no_foreign_best(run)


def test_checkpoint_of_another_task_with_same_timestamp_is_foreign(tmp_path: Path) -> None:
    run = Run(tmp_path / "lr_0.1" / "mmbt" / "2026-01-01T00-00-00")
    current = write_checkpoint(run.checkpoints / "current.ckpt", 20, save_dir=str(run.checkpoints))
    (tmp_path / "lr_0.1" / "param").touch()
    EventLog(run.events, "1").write("checkpoint", update=10, sha256="0" * 64)
    assert checkpoints.select_checkpoint(run, "last").path == current
    write_checkpoint(current, 21, save_dir=str(run.checkpoints).replace("lr_0.1", "lr_0.2"))
    assert not checkpoints.can_resume(run)


def test_hint_about_foreign_best_names_copy_of_best_checkpoint_of_run(run: Run) -> None:
    log = EventLog(run.events, "1")
    models = run.checkpoints / "models"
    earlier, last = (write_checkpoint(models / f"model_{update}.ckpt", update) for update in (10, 20))
    for path, update in ((earlier, 10), (last, 20)):
        log.write("checkpoint", update=update, sha256=sha256(path.read_bytes()).hexdigest(), best=True)
    now = last.stat().st_mtime
    os.utime(earlier, (now + 10, now + 10))  # like a restored backup
    write_checkpoint(run.checkpoints / "best.ckpt", 20, epoch=7)
    with pytest.raises(CheckpointError) as refused:
        checkpoints.require_no_foreign_best(run)
    assert str(last) in str(refused.value.hint)


def test_error_without_intact_checkpoint_names_run_or_first_damaged_file(run: Run) -> None:
    with pytest.raises(CheckpointError, match="mmbt/2026-01-01T00-00-00 has no checkpoint"):
        checkpoints.select_checkpoint(run, "last")
    hostile_archives.truncate_file(write_checkpoint(run.checkpoints / "current.ckpt", 11))
    with pytest.raises(CheckpointError, match=r"current\.ckpt: truncated"):
        checkpoints.select_checkpoint(run, "last")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and then nothing"])
def test_file_that_is_not_a_checkpoint_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "my model.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated or not a checkpoint"):
        checkpoints.select_checkpoint(Run(tmp_path), str(path))


def test_checkpoint_with_damaged_zip_directory_is_rejected(tmp_path: Path) -> None:
    """Damage a file before its last record, so that a superficial check takes it for a zip file."""
    path = write_checkpoint(tmp_path / "damaged.ckpt", 1)
    hostile_archives.flip_byte(path, path.read_bytes().index(b"PK\x01\x02"))
    assert checkpoints.check_file(path).problem == "truncated or not a checkpoint"


def test_other_zip_file_is_rejected_and_legacy_torch_file_accepted(tmp_path: Path) -> None:
    path = hostile_archives.write_zip(tmp_path / "photos.zip", {"a.png": b""})
    assert checkpoints.check_file(path).problem == "zip file, but not a checkpoint"
    path = tmp_path / "old.pth"
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    assert checkpoints.check_file(path).problem is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_pipe_is_rejected_without_waiting(run: Run) -> None:
    write_checkpoint(run.checkpoints / "best.ckpt", 1)
    os.mkfifo(run.checkpoints / "current.ckpt")
    assert checkpoints.check_file(run.checkpoints / "current.ckpt").problem == "not a file"
    assert checkpoints.select_checkpoint(run, "last").path.name == "best.ckpt"
    assert {checkpoint.name: checkpoint.problem for checkpoint in checkpoints.list_checkpoints(run)} == {
        "best.ckpt": None,
        "current.ckpt": "not a file",
    }
    assert checkpoints.read_checkpoint_progress(run.checkpoints / "current.ckpt") is None
    with pytest.raises(OSError, match="not a file"):
        file_digest(run.checkpoints / "current.ckpt")


def test_missing_checkpoint_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.ckpt: file not found"):
        checkpoints.select_checkpoint(Run(tmp_path), str(tmp_path / "nowhere.ckpt"))

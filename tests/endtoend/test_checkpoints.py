"""Writing of checkpoints, the files that remain, and their contents."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.integrity import torch_file
from mmf_win.integrity.digest import file_digest
from mmf_win.protocol import read_events
from mmf_win.runs.folder import Run
from mmf_win.runs.lookup import list_runs
from mmf_win.upstream.checkpoint_files import CheckpointProgress, read_checkpoint_progress
from tests.endtoend.conftest import SetFaults, Tool, read_events_of_kind, start_updates
from tests.worlds import hostile_archives
from tests.worlds.tools import split_command

# Each validation has the same score, therefore the first one remains the best.
NO_LEARNING = ("--seed", "1", "optimizer.params.lr=0.0")


def list_files(run: Run) -> set[str]:
    folder = run.checkpoints
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return names - {"config.yaml", "train.log"}


def read_progress(run: Run, name: str) -> CheckpointProgress:
    progress = read_checkpoint_progress(run.checkpoints / name)
    assert progress is not None
    return progress


def test_each_save_is_written_once_and_old_checkpoints_are_removed(tool: Tool) -> None:
    run = tool.train(tool.write_preset("vilbert"), "--updates", "4")
    assert list_files(run) == {
        "best.ckpt",
        "current.ckpt",
        "vilbert_final.pth",
        "models/model_3.ckpt",
        "models/model_4.ckpt",
    }
    current, newest = run.checkpoints / "current.ckpt", run.checkpoints / "models" / "model_4.ckpt"
    assert current.samefile(newest)
    saves = [(e["kind"], e["update"]) for e in read_events(run.events) if e["kind"] in ("saving", "checkpoint")]
    updates = [update for kind, update in saves if kind == "checkpoint"]
    assert saves == [(kind, update) for update in updates for kind in ("saving", "checkpoint")]
    assert all(torch_file.find_problem(run.checkpoints / name) is None for name in list_files(run))
    checkpoints = {c["name"]: c for c in tool("runs", "show", "--verify")["checkpoints"]}
    assert {name: (c["update"], c["problem"]) for name, c in checkpoints.items() if c["update"]} == {
        "best.ckpt": (read_progress(run, "best.ckpt").update, None),
        "current.ckpt": (4, None),
        "models/model_3.ckpt": (3, None),
        "models/model_4.ckpt": (4, None),
    }
    assert checkpoints["vilbert_final.pth"]["problem"] is None
    assert "models/model_4.ckpt" in checkpoints["current.ckpt"]["same_as"]
    assert checkpoints["current.ckpt"]["auroc"] is not None
    tool("train", "--resume", "last", "--updates", "6", "--keep-checkpoints", "0")
    assert {name for name in list_files(run) if name.startswith("models")} == {"models/model_6.ckpt"}
    assert run.request().mmfw_settings.keep == 0, "the run must save the option"


def test_resumed_run_remembers_its_best_checkpoint(tool: Tool) -> None:
    options = ("--updates", "2", "--batch-size", "7", *NO_LEARNING)
    run = tool.train(tool.write_preset("vilbert"), *options)
    assert read_progress(run, "current.ckpt").best_update == 1
    assert (run.checkpoints / "best.ckpt").samefile(run.checkpoints / "models" / "model_1.ckpt")
    tool("train", "--resume", "best", "--updates", "4", "training.early_stop.patience=2")
    progress = read_progress(run, "current.ckpt")
    assert (progress.update, progress.best_update) == (4, 1)
    assert read_progress(run, "best.ckpt").update == 1
    tool("train", "--resume", str(run.path), "--updates", "9", "training.early_stop.enabled=True")
    last_update = read_events_of_kind(run, "train")[-1]["update"]
    assert last_update < 9, "patience must count from the best update, not from the resumed one"
    assert [(e["update"], e["batch"]) for e in read_events_of_kind(run, "train_started")] == [(0, 7), (1, 7), (4, 7)]


def test_scores_name_their_checkpoints_by_the_hashes_recorded_at_each_save(tool: Tool) -> None:
    run = tool.train(tool.write_preset("vilbert"), "--updates", "2", *NO_LEARNING)
    hashes = {name: file_digest(run.checkpoints / f"{name}.ckpt").hex() for name in ("best", "current")}
    saves = [(e["update"], e["best"], e["sha256"]) for e in read_events_of_kind(run, "checkpoint")]
    assert (1, True, hashes["best"]) in saves and saves[-1] == (2, False, hashes["current"])
    options = ("--checkpoint", "best", "--checkpoint", "last", "--ensemble", "mean", "--split", "test_unseen")
    assert tool.run_for_exit_code("predict", *options, "--no-report") == 0
    # In the order of the file names, which depends on whether both are created within the same second.
    predictions = tool("runs", "show")["predictions"]
    assert sorted(prediction["checkpoint"] for prediction in predictions) == ["best", "update 2"]
    [listed] = tool("runs")
    assert (listed["test_checkpoint"], listed["test_split"]) == ("best", "test_unseen")


@pytest.mark.wide
def test_run_that_stopped_early_names_its_update_and_resumes_only_as_hinted(tool: Tool) -> None:
    options = ("training.early_stop.enabled=True", "training.early_stop.patience=2", *NO_LEARNING)
    intervals = ("training.evaluation_interval=2", "training.checkpoint_interval=2")
    result = tool("train", tool.write_preset("vilbert"), "--updates", "12", *options, *intervals)
    assert (result["updates"], result["max_updates"]) == (6, 12)
    assert [validation["update"] for validation in tool("runs", "show")["validations"]] == [2, 4, 6]
    assert tool.run_for_exit_code("train", "--resume", "last") == 2
    assert "update 6" in tool.errors and "resuming" not in tool.errors
    [hint] = [line for line in tool.errors.splitlines() if line.startswith("hint:")]
    # MMF adds the patience to a number, and fails with null.
    assert tool.run_for_exit_code("train", "--resume", "last", "--dry-run", "training.early_stop.patience=null") == 2
    assert tool("train", "--resume", "last", hint.split()[-1].strip("`"), "--updates", "8")["updates"] == 8
    assert start_updates(tool.get_run(result)) == [0, 6]


def test_run_started_from_the_checkpoint_of_another_run_has_its_own_best(tool: Tool) -> None:
    old_run = tool.train(tool.write_preset("vilbert"), "--updates", "3", *NO_LEARNING)
    start = str(old_run.checkpoints / "current.ckpt")
    new_run = tool.train("--resume", start, "--updates", "5")
    assert new_run.path != old_run.path and new_run.request().start_checkpoint == start
    assert start_updates(new_run) == [3]
    assert f"starts from {start}, update 3" in tool.errors
    assert "update 4: validation AUROC" in tool.errors and tool.errors.count("(best)") == 1
    assert read_progress(new_run, "best.ckpt").update == 4
    best = max(e["metrics"]["auroc"] for e in read_events_of_kind(new_run, "val"))
    assert tool("runs")[0]["best_auroc"] == best
    (member,) = tool("predict")["members"]
    assert member["checkpoint"] == str(new_run.checkpoints / "best.ckpt")
    (new_run.checkpoints / "best.ckpt").unlink()
    tool("train", "--resume", "last", "--updates", "7")
    assert read_progress(new_run, "best.ckpt").update == 6


@pytest.mark.wide
def test_checkpoint_set_aside_by_resume_from_best_is_kept_until_the_run_is_further(
    tool: Tool, set_faults: SetFaults
) -> None:
    run = tool.train(tool.write_preset("vilbert"), "--updates", "4", *NO_LEARNING)
    set_aside = run.checkpoints / "models" / "model_4_aside_1.ckpt"
    digest = file_digest(run.checkpoints / "current.ckpt")
    set_faults({"at": "stepped", "do": "stop", "update": 3})
    assert tool.run_for_exit_code("train", "--resume", "best", "--updates", "5") == 130
    assert f"best.ckpt, update 1; the checkpoint of update 4 is kept as {set_aside}" in tool.errors
    assert {name for name in list_files(run) if name.startswith("models")} == {
        f"models/model_{update}.ckpt" for update in (2, 3, "4_aside_1")
    }
    assert file_digest(set_aside) == digest
    for name in ("current.ckpt", "models/model_3.ckpt", "models/model_2.ckpt"):
        hostile_archives.truncate_file(run.checkpoints / name)
    set_faults()
    tool("train", "--resume", "last", "--updates", "4")
    assert start_updates(run) == [0, 1, 1], "the run must not start from the checkpoint that was set aside"
    assert read_progress(run, "current.ckpt").update == 4 and file_digest(set_aside) == digest
    tool("train", "--resume", "last", "--updates", "5")
    assert {name for name in list_files(run) if name.startswith("models")} == {
        f"models/model_{update}.ckpt" for update in (4, 5)
    }


@pytest.mark.wide
def test_checkpoint_set_aside_by_resume_from_best_survives_the_next_such_resume(tool: Tool) -> None:
    run = tool.train(tool.write_preset("vilbert"), "--updates", "5", *NO_LEARNING)
    digests = {}
    for update, updates in ((5, 4), (4, 3)):
        set_aside = run.checkpoints / "models" / f"model_{update}_aside_1.ckpt"
        digests[set_aside] = file_digest(run.checkpoints / "current.ckpt")
        tool("train", "--resume", "best", "--updates", str(updates))
        assert f"is kept as {set_aside}" in tool.errors
    assert {set_aside: file_digest(set_aside) for set_aside in digests} == digests


@pytest.mark.wide
def test_best_checkpoint_of_another_run_is_reported_and_not_resumed(tool: Tool) -> None:
    other_run = tool.get_trained_run("vilbert", run="b")
    run = tool.train(tool.write_preset("vilbert"), "--updates", "2", *NO_LEARNING)
    best, first_checkpoint = run.checkpoints / "best.ckpt", run.checkpoints / "models" / "model_1.ckpt"
    best.unlink()
    shutil.copyfile(other_run.checkpoints / "best.ckpt", best)
    before = {name: file_digest(run.checkpoints / name) for name in list_files(run)}
    assert tool.run_for_exit_code("train", "--resume", str(run.path), "--updates", "4") == 3
    assert str(best) in tool.errors and f"a copy of {first_checkpoint}" in tool.errors
    assert {name: file_digest(run.checkpoints / name) for name in list_files(run)} == before
    for arguments in (("predict", "--checkpoint", str(best)), ("train", "--resume", str(best), "--dry-run")):
        assert tool.run_for_exit_code(*arguments) == 0
        assert f"{best}: intact, but not written by this run" in tool.errors
    assert tool.run_for_exit_code("verify", run.id) == 3
    assert "best.ckpt: intact, but not written" in tool.errors and "a damaged" not in tool.errors
    assert "move the foreign checkpoints away" in tool.errors and "truncated" not in tool.errors
    best.unlink()
    shutil.copyfile(first_checkpoint, best)
    assert tool.run_for_exit_code("verify", run.id) == 0
    tool("train", "--resume", str(run.path), "--updates", "4")
    assert read_progress(run, "best.ckpt").update == 1


def test_run_copied_during_training_is_intact_and_resumes(tool: Tool, tmp_path: Path) -> None:
    run = tool.train(tool.write_preset("vilbert"), "--updates", "3", *NO_LEARNING)
    copy = Run(shutil.copytree(run.path, tmp_path / "backup" / Path(*run.path.parts[-2:])))
    lines = copy.events.read_bytes().splitlines(keepends=True)
    line_count = next(n for n, line in enumerate(lines) if b'"saving"' in line and b'"update": 2' in line)
    copy.events.write_bytes(b"".join(lines[:line_count]))
    save_options = ("--save-dir", str(copy.path.parents[1]))
    assert main(["verify", str(copy.path), *save_options]) == 0
    assert "intact at update 2, but missing from the events of the run" in tool.read_output()[1]
    assert main(["train", "--resume", "last", "--updates", "4", *save_options]) == 0
    assert read_progress(copy, "current.ckpt").update == 4
    assert main(["predict", copy.id, "--no-report", *save_options]) == 0
    assert main(["verify", copy.id, *save_options]) == 0


def test_resume_refuses_another_seed(tool: Tool) -> None:
    run = tool.train(tool.write_preset("bert"), "--updates", "1", "--seed", "1")
    for checkpoint in ("last", str(run.checkpoints / "current.ckpt")):
        for seed_arguments in (("--seed", "2"), ("training.seed=2",)):
            assert tool.run_for_exit_code("train", "--resume", checkpoint, "--updates", "2", *seed_arguments) == 2
            assert "random state" in tool.errors
    assert tool("train", "--resume", "last", "--updates", "2", "--seed", "1")["seed"] == 1


@pytest.mark.wide
def test_weights_of_an_unreadable_run_start_a_new_run_as_hinted(tool: Tool) -> None:
    preset = tool.write_preset("vilbert")
    run = tool.train(preset, "--updates", "1")
    run.request_file.write_text("{}", encoding="utf-8")
    assert tool.run_for_exit_code("train", "--resume", str(run.path)) == 3
    command, _ = re.findall("`mmfw (.*?)`", tool.errors)
    assert tool("train", preset, *split_command(command)[2:], "--updates", "1")["state"] == "done"


@pytest.mark.wide
def test_run_with_a_damaged_checkpoint_continues_as_hinted(tool: Tool) -> None:
    options = ("--name", "a", "--updates", "2", *NO_LEARNING)
    run = tool.train(tool.write_preset("vilbert"), *options)
    tool.get_trained_run("vilbert", run="b")  # possibly a copy of a run that was trained earlier
    run.save_request(replace(run.request(), created=1.0))
    hostile_archives.truncate_file(run.checkpoints / "current.ckpt")
    assert tool.run_for_exit_code("verify", "runs") == 3
    [command] = re.findall("`mmfw (.*?)`", tool.errors)
    assert f"--resume {run.id} " in command and tool.errors.count(f"run {run.id}: a ") == 1
    assert f"run {run.id}: run" not in tool.errors
    assert tool.run_for_exit_code("runs", "show", "--verify", "a") == 0
    assert f"`mmfw {command}`" in tool.errors
    assert main(split_command(command)) == 0
    assert tool.run_for_exit_code("verify", "runs") == 0
    hostile_archives.truncate_file(run.checkpoints / "best.ckpt")
    assert tool.run_for_exit_code("verify", "runs") == 3
    [command] = re.findall("`mmfw (.*?)`", tool.errors)
    assert command.startswith(f"predict {run.id} "), "the hint must name this run"
    assert main(split_command(command)) == 0


def test_full_disk_stops_the_run_and_leaves_its_last_checkpoint_intact(tool: Tool, small_disk: Path) -> None:
    save_options = ("--save-dir", str(small_disk))
    command = ("train", tool.write_preset("vilbert"), "--data-dir", str(tool.world.data), *save_options)
    assert main([*command, "--updates", "2"]) == 0
    run = Run(next(small_disk.glob("*/*")))
    before = list_files(run)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "ballast").write_bytes(bytes(free - 3_000_000))
    assert main(["train", "--resume", "last", "--updates", "4", *save_options]) == 5
    errors = tool.read_output()[1]
    assert "a checkpoint needs" in errors and "--resume last" in errors
    assert list_files(run) == before
    assert torch_file.find_problem(run.checkpoints / "current.ckpt") is None
    (small_disk / "ballast").unlink()
    assert main(["train", "--resume", "last", "--updates", "4", *save_options]) == 0
    assert read_progress(run, "current.ckpt").update == 4


def test_disk_filled_to_its_last_byte_is_reported_and_listed_as_the_reason(
    tool: Tool, set_faults: SetFaults, small_disk: Path
) -> None:
    ballast, save_options = small_disk / "ballast", ("--save-dir", str(small_disk))
    set_faults({"at": "stepped", "do": "fill_disk", "update": 3, "file": str(ballast)})
    preset, data_dir = tool.write_preset("vilbert"), str(tool.world.data)
    command = ("train", preset, "--data-dir", data_dir, "--updates", "4", *save_options)
    assert main([*command, "training.log_interval=1", "training.checkpoint_interval=1"]) == 5
    errors = tool.read_output()[1]
    assert "a checkpoint needs" in errors and "0 B are free" in errors and "exit.json" not in errors
    assert "free some space" in errors and "--resume last" in errors and "to start over" not in errors
    assert main(["runs", *save_options, "--json"]) == 0
    assert '"state": "failed: disk"' in tool.read_output()[0]
    ballast.unlink()
    set_faults()
    assert main(["train", "--resume", "last", *save_options]) == 0
    [run] = list_runs(small_disk)
    assert start_updates(run) == [0, 2]
    assert not list(run.path.glob("attempts/*/reserve"))


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
def test_checkpoint_above_the_file_size_limit_leaves_the_last_one_intact(tool: Tool, set_faults: SetFaults) -> None:
    """Report the system's error, not the one that torch raises after it; quotas and full disks end in the same way."""
    set_faults({"at": "step", "do": "limit_files", "update": 2, "bytes": 300_000})
    options = ("--updates", "3", "training.checkpoint_interval=1", "training.evaluation_interval=3")
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), *options) == 5
    run = Run(next(tool.save_dir.glob("*/*")))
    assert str(run.checkpoints) in tool.errors and "ulimit -f" in tool.errors
    assert "enforce fail" not in tool.errors
    assert read_progress(run, "current.ckpt").update == 1
    assert all(torch_file.find_problem(run.checkpoints / name) is None for name in list_files(run))
    set_faults()
    assert tool("train", "--resume", "last")["updates"] == 3


def test_run_killed_during_a_save_resumes_from_the_previous_save(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "writing", "do": "kill", "update": 3})
    options = ("--updates", "4", "training.checkpoint_interval=1", "training.evaluation_interval=4")
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), *options) != 0
    run = Run(next(tool.save_dir.glob("*/*")))
    assert list((run.checkpoints / "models").glob("model_3.ckpt.*.part"))
    assert read_progress(run, "current.ckpt").update == 2
    set_faults()
    assert tool("train", "--resume", "last")["updates"] == 4
    assert start_updates(run) == [0, 2]
    assert not [name for name in list_files(run) if name.endswith(".part")]


def test_resume_skips_a_truncated_checkpoint(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "saved", "do": "truncate", "update": 2}, {"at": "step", "do": "memory_error", "update": 3})
    command = ("train", tool.write_preset("vilbert"), "--updates", "4", "training.checkpoint_interval=1")
    assert tool.run_for_exit_code(*command) == 5
    assert tool("runs")[0]["updates"] == 2
    set_faults({"at": "step", "do": "memory_error", "update": 4})
    assert tool.run_for_exit_code("train", "--resume", "last", "--updates", "4") == 5
    assert "current.ckpt: truncated" in tool.errors and "model_2.ckpt instead" in tool.errors
    assert tool("runs")[0]["updates"] == 3

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

# Every validation scores the same, so the first remains the best.
NOTHING_IS_LEARNED = ("--seed", "1", "optimizer.params.lr=0.0")


def files(run: Run) -> set[str]:
    folder = run.checkpoints
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return found - {"config.yaml", "train.log"}


def known(run: Run, name: str) -> CheckpointProgress:
    found = read_checkpoint_progress(run.checkpoints / name)
    assert found is not None
    return found


def test_a_save_is_one_write_and_old_ones_are_removed(tool: Tool) -> None:
    run = tool.train(tool.preset("vilbert"), "--updates", "4")
    assert files(run) == {
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
    assert all(torch_file.find_problem(run.checkpoints / name) is None for name in files(run))
    found = {c["name"]: c for c in tool("runs", "show", "--verify")["checkpoints"]}
    assert {name: (c["update"], c["problem"]) for name, c in found.items() if c["update"]} == {
        "best.ckpt": (known(run, "best.ckpt").update, None),
        "current.ckpt": (4, None),
        "models/model_3.ckpt": (3, None),
        "models/model_4.ckpt": (4, None),
    }
    assert found["vilbert_final.pth"]["problem"] is None
    assert "models/model_4.ckpt" in found["current.ckpt"]["same_as"]
    assert found["current.ckpt"]["auroc"] is not None
    tool("train", "--resume", "last", "--updates", "6", "--keep-checkpoints", "0")
    assert {name for name in files(run) if name.startswith("models")} == {"models/model_6.ckpt"}
    assert run.request().mmfw_settings.keep == 0, "the run remembers it"


def test_the_best_is_remembered_when_a_run_goes_on(tool: Tool) -> None:
    words = ("--updates", "2", "--batch-size", "7", *NOTHING_IS_LEARNED)
    run = tool.train(tool.preset("vilbert"), *words)
    assert known(run, "current.ckpt").best_update == 1
    assert (run.checkpoints / "best.ckpt").samefile(run.checkpoints / "models" / "model_1.ckpt")
    tool("train", "--resume", "best", "--updates", "4", "training.early_stop.patience=2")
    now = known(run, "current.ckpt")
    assert (now.update, now.best_update) == (4, 1)
    assert known(run, "best.ckpt").update == 1
    tool("train", "--resume", str(run.path), "--updates", "9", "training.early_stop.enabled=True")
    reached = read_events_of_kind(run, "train")[-1]["update"]
    assert reached < 9, "patience counts from the best, not from where the run went on"
    assert [(e["update"], e["batch"]) for e in read_events_of_kind(run, "train_started")] == [(0, 7), (1, 7), (4, 7)]


def test_scores_are_of_the_checkpoints_whose_hashes_were_told_when_they_were_saved(tool: Tool) -> None:
    run = tool.train(tool.preset("vilbert"), "--updates", "2", *NOTHING_IS_LEARNED)
    hashed = {name: file_digest(run.checkpoints / f"{name}.ckpt").hex() for name in ("best", "current")}
    told = [(e["update"], e["best"], e["sha256"]) for e in read_events_of_kind(run, "checkpoint")]
    assert (1, True, hashed["best"]) in told and told[-1] == (2, False, hashed["current"])
    words = ("--checkpoint", "best", "--checkpoint", "last", "--ensemble", "mean", "--split", "test_unseen")
    assert tool.run_for_exit_code("predict", *words, "--no-report") == 0
    assert [each["checkpoint"] for each in tool("runs", "show")["predictions"]] == ["best", "update 2"]
    [listed] = tool("runs")
    assert (listed["test_checkpoint"], listed["test_split"]) == ("best", "test_unseen")


@pytest.mark.wide
def test_a_run_that_stopped_early_says_where_and_resumes_only_to_train_on(tool: Tool) -> None:
    words = ("training.early_stop.enabled=True", "training.early_stop.patience=2", *NOTHING_IS_LEARNED)
    often = ("training.evaluation_interval=2", "training.checkpoint_interval=2")
    result = tool("train", tool.preset("vilbert"), "--updates", "12", *words, *often)
    assert (result["updates"], result["max_updates"]) == (6, 12)
    assert [one["update"] for one in tool("runs", "show")["validations"]] == [2, 4, 6]
    assert tool.run_for_exit_code("train", "--resume", "last") == 2
    assert "update 6" in tool.errors and "resuming" not in tool.errors
    [hint] = [line for line in tool.errors.splitlines() if line.startswith("hint:")]
    # MMF would add the patience to a number.
    assert tool.run_for_exit_code("train", "--resume", "last", "--dry-run", "training.early_stop.patience=null") == 2
    assert tool("train", "--resume", "last", hint.split()[-1], "--updates", "8")["updates"] == 8
    assert start_updates(tool.get_run(result)) == [0, 6]


def test_a_run_that_begins_at_a_checkpoint_of_another_has_a_best_of_its_own(tool: Tool) -> None:
    old = tool.train(tool.preset("vilbert"), "--updates", "3", *NOTHING_IS_LEARNED)
    start = str(old.checkpoints / "current.ckpt")
    new = tool.train("--resume", start, "--updates", "5")
    assert new.path != old.path and new.request().start == start and start_updates(new) == [3]
    assert f"starts from {start}, update 3" in tool.errors
    assert "update 4: validation AUROC" in tool.errors and tool.errors.count("(best)") == 1
    assert known(new, "best.ckpt").update == 4
    best = max(e["metrics"]["auroc"] for e in read_events_of_kind(new, "val"))
    assert tool("runs")[0]["best_auroc"] == best
    (member,) = tool("predict")["members"]
    assert member["checkpoint"] == str(new.checkpoints / "best.ckpt")
    (new.checkpoints / "best.ckpt").unlink()
    tool("train", "--resume", "last", "--updates", "7")
    assert known(new, "best.ckpt").update == 6


@pytest.mark.wide
def test_what_a_resume_from_the_best_leaves_behind_is_kept_until_the_run_is_further(
    tool: Tool, set_faults: SetFaults
) -> None:
    run = tool.train(tool.preset("vilbert"), "--updates", "4", *NOTHING_IS_LEARNED)
    left_behind = run.checkpoints / "models" / "model_4_aside_1.ckpt"
    before = file_digest(run.checkpoints / "current.ckpt")
    set_faults({"at": "stepped", "do": "stop", "update": 3})
    assert tool.run_for_exit_code("train", "--resume", "best", "--updates", "5") == 130
    assert f"best.ckpt, update 1; the checkpoint of update 4 is kept as {left_behind}" in tool.errors
    assert {name for name in files(run) if name.startswith("models")} == {
        f"models/model_{update}.ckpt" for update in (2, 3, "4_aside_1")
    }
    assert file_digest(left_behind) == before
    for name in ("current.ckpt", "models/model_3.ckpt", "models/model_2.ckpt"):
        hostile_archives.truncate_file(run.checkpoints / name)
    set_faults()
    tool("train", "--resume", "last", "--updates", "4")
    assert start_updates(run) == [0, 1, 1], "not from what was set aside"
    assert known(run, "current.ckpt").update == 4 and file_digest(left_behind) == before
    tool("train", "--resume", "last", "--updates", "5")
    assert {name for name in files(run) if name.startswith("models")} == {
        f"models/model_{update}.ckpt" for update in (4, 5)
    }


@pytest.mark.wide
def test_what_one_resume_from_the_best_has_set_aside_survives_the_next(tool: Tool) -> None:
    run = tool.train(tool.preset("vilbert"), "--updates", "5", *NOTHING_IS_LEARNED)
    heads = {}
    for update, then in ((5, 4), (4, 3)):
        head = run.checkpoints / "models" / f"model_{update}_aside_1.ckpt"
        heads[head] = file_digest(run.checkpoints / "current.ckpt")
        tool("train", "--resume", "best", "--updates", str(then))
        assert f"is kept as {head}" in tool.errors
    assert {head: file_digest(head) for head in heads} == heads


@pytest.mark.wide
def test_another_runs_best_is_named_and_no_run_goes_on_with_it(tool: Tool) -> None:
    other = tool.get_trained_run("vilbert", run="b")
    run = tool.train(tool.preset("vilbert"), "--updates", "2", *NOTHING_IS_LEARNED)
    best, own = run.checkpoints / "best.ckpt", run.checkpoints / "models" / "model_1.ckpt"
    best.unlink()
    shutil.copyfile(other.checkpoints / "best.ckpt", best)
    before = {name: file_digest(run.checkpoints / name) for name in files(run)}
    assert tool.run_for_exit_code("train", "--resume", str(run.path), "--updates", "4") == 3
    assert str(best) in tool.errors and f"a copy of {own}" in tool.errors
    assert {name: file_digest(run.checkpoints / name) for name in files(run)} == before
    for words in (("predict", "--checkpoint", str(best)), ("train", "--resume", str(best), "--dry-run")):
        assert tool.run_for_exit_code(*words) == 0
        assert f"{best}: intact, but not written by this run" in tool.errors
    assert tool.run_for_exit_code("verify", run.id) == 3
    assert "best.ckpt: intact, but not written" in tool.errors and "a damaged" not in tool.errors
    assert "move the foreign checkpoints away" in tool.errors and "truncated" not in tool.errors
    best.unlink()
    shutil.copyfile(own, best)
    assert tool.run_for_exit_code("verify", run.id) == 0
    tool("train", "--resume", str(run.path), "--updates", "4")
    assert known(run, "best.ckpt").update == 1


def test_a_run_that_was_copied_while_it_trained_is_intact_and_resumes(tool: Tool, tmp_path: Path) -> None:
    run = tool.train(tool.preset("vilbert"), "--updates", "3", *NOTHING_IS_LEARNED)
    copy = Run(shutil.copytree(run.path, tmp_path / "backup" / Path(*run.path.parts[-2:])))
    lines = copy.events.read_bytes().splitlines(keepends=True)
    ends = next(n for n, line in enumerate(lines) if b'"saving"' in line and b'"update": 2' in line)
    copy.events.write_bytes(b"".join(lines[:ends]))
    save = ("--save-dir", str(copy.path.parents[1]))
    assert main(["verify", str(copy.path), *save]) == 0
    assert "intact at update 2, but missing from the events of the run" in tool.read_output()[1]
    assert main(["train", "--resume", "last", "--updates", "4", *save]) == 0
    assert known(copy, "current.ckpt").update == 4
    assert main(["predict", copy.id, "--no-report", *save]) == 0
    assert main(["verify", copy.id, *save]) == 0


def test_a_seed_that_would_not_hold_is_refused_beside_what_is_resumed(tool: Tool) -> None:
    run = tool.train(tool.preset("bert"), "--updates", "1", "--seed", "1")
    for wanted in ("last", str(run.checkpoints / "current.ckpt")):
        for seed in (("--seed", "2"), ("training.seed=2",)):
            assert tool.run_for_exit_code("train", "--resume", wanted, "--updates", "2", *seed) == 2
            assert "random state" in tool.errors
    assert tool("train", "--resume", "last", "--updates", "2", "--seed", "1")["seed"] == 1


@pytest.mark.wide
def test_the_weights_of_a_run_that_cannot_be_read_begin_another_as_the_hint_says(tool: Tool) -> None:
    preset = tool.preset("vilbert")
    run = tool.train(preset, "--updates", "1")
    run.request_file.write_text("{}", encoding="utf-8")
    assert tool.run_for_exit_code("train", "--resume", str(run.path)) == 3
    begin, _ = re.findall("`mmfw (.*?)`", tool.errors)
    assert tool("train", preset, *split_command(begin)[2:], "--updates", "1")["state"] == "done"


@pytest.mark.wide
def test_a_run_whose_checkpoint_is_damaged_goes_on_as_hints_say(tool: Tool) -> None:
    words = ("--name", "a", "--updates", "2", *NOTHING_IS_LEARNED)
    old = tool.train(tool.preset("vilbert"), *words)
    tool.get_trained_run("vilbert", run="b")  # which may be a copy of a run that was trained before
    old.save_request(replace(old.request(), created=1.0))
    hostile_archives.truncate_file(old.checkpoints / "current.ckpt")
    assert tool.run_for_exit_code("verify", "runs") == 3
    [command] = re.findall("`mmfw (.*?)`", tool.errors)
    assert f"--resume {old.id} " in command and tool.errors.count(f"run {old.id}: a ") == 1
    assert f"run {old.id}: run" not in tool.errors
    assert tool.run_for_exit_code("runs", "show", "--verify", "a") == 0
    assert f"`mmfw {command}`" in tool.errors
    assert main(split_command(command)) == 0
    assert tool.run_for_exit_code("verify", "runs") == 0
    hostile_archives.truncate_file(old.checkpoints / "best.ckpt")
    assert tool.run_for_exit_code("verify", "runs") == 3
    [command] = re.findall("`mmfw (.*?)`", tool.errors)
    assert command.startswith(f"predict {old.id} "), "the intact one is at the run's end"
    assert main(split_command(command)) == 0


def test_a_full_disk_stops_the_run_and_leaves_its_last_checkpoint_whole(tool: Tool, small_disk: Path) -> None:
    save = ("--save-dir", str(small_disk))
    words = ("train", tool.preset("vilbert"), "--data-dir", str(tool.world.data), *save)
    assert main([*words, "--updates", "2"]) == 0
    run = Run(next(small_disk.glob("*/*")))
    before = files(run)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "ballast").write_bytes(bytes(free - 3_000_000))
    assert main(["train", "--resume", "last", "--updates", "4", *save]) == 5
    said = tool.read_output()[1]
    assert "a checkpoint needs" in said and "--resume last" in said
    assert files(run) == before
    assert torch_file.find_problem(run.checkpoints / "current.ckpt") is None
    (small_disk / "ballast").unlink()
    assert main(["train", "--resume", "last", "--updates", "4", *save]) == 0
    assert known(run, "current.ckpt").update == 4


def test_a_disk_that_fills_up_to_its_last_byte_is_the_reason_that_is_told_and_listed(
    tool: Tool, set_faults: SetFaults, small_disk: Path
) -> None:
    ballast, save = small_disk / "ballast", ("--save-dir", str(small_disk))
    set_faults({"at": "stepped", "do": "fill_disk", "update": 3, "file": str(ballast)})
    words = ("train", tool.preset("vilbert"), "--data-dir", str(tool.world.data), "--updates", "4", *save)
    assert main([*words, "training.log_interval=1", "training.checkpoint_interval=1"]) == 5
    said = tool.read_output()[1]
    assert "a checkpoint needs" in said and "0 B are free" in said and "exit.json" not in said
    assert "free some space" in said and "--resume last" in said and "to start over" not in said
    assert main(["runs", *save, "--json"]) == 0
    assert '"state": "failed: disk"' in tool.read_output()[0]
    ballast.unlink()
    set_faults()
    assert main(["train", "--resume", "last", *save]) == 0
    [run] = list_runs(small_disk)
    assert start_updates(run) == [0, 2]
    assert not list(run.path.glob("attempts/*/reserve"))


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no file's length")
def test_a_checkpoint_that_becomes_longer_than_a_file_may_leaves_the_last_one_whole(
    tool: Tool, set_faults: SetFaults
) -> None:
    """The system tells torch, which tells of something else; a quota and a full disk end the same way."""
    set_faults({"at": "step", "do": "limit_files", "update": 2, "bytes": 300_000})
    words = ("--updates", "3", "training.checkpoint_interval=1", "training.evaluation_interval=3")
    assert tool.run_for_exit_code("train", tool.preset("vilbert"), *words) == 5
    run = Run(next(tool.save_dir.glob("*/*")))
    assert str(run.checkpoints) in tool.errors and "ulimit -f" in tool.errors
    assert "enforce fail" not in tool.errors
    assert known(run, "current.ckpt").update == 1
    assert all(torch_file.find_problem(run.checkpoints / name) is None for name in files(run))
    set_faults()
    assert tool("train", "--resume", "last")["updates"] == 3


def test_a_run_that_was_killed_in_a_save_goes_on_from_the_save_before(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "writing", "do": "kill", "update": 3})
    words = ("--updates", "4", "training.checkpoint_interval=1", "training.evaluation_interval=4")
    assert tool.run_for_exit_code("train", tool.preset("vilbert"), *words) != 0
    run = Run(next(tool.save_dir.glob("*/*")))
    assert list((run.checkpoints / "models").glob("model_3.ckpt.*.part"))
    assert known(run, "current.ckpt").update == 2
    set_faults()
    assert tool("train", "--resume", "last")["updates"] == 4
    assert start_updates(run) == [0, 2]
    assert not [name for name in files(run) if name.endswith(".part")]


def test_a_checkpoint_that_is_cut_off_is_passed_over_on_resume(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "saved", "do": "truncate", "update": 2}, {"at": "step", "do": "memory_error", "update": 3})
    assert (
        tool.run_for_exit_code("train", tool.preset("vilbert"), "--updates", "4", "training.checkpoint_interval=1") == 5
    )
    assert tool("runs")[0]["updates"] == 2
    set_faults({"at": "step", "do": "memory_error", "update": 4})
    assert tool.run_for_exit_code("train", "--resume", "last", "--updates", "4") == 5
    assert "current.ckpt: truncated" in tool.errors and "model_2.ckpt instead" in tool.errors
    assert tool("runs")[0]["updates"] == 3

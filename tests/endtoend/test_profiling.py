"""``mmfw train --profile``, and the warning about waiting for data, with the real MMF."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.runs import user_code
from tests.endtoend.conftest import CTRL_C, INTERRUPTED_EXIT_CODE, SetFaults, Tool, read_events_of_kind, start_command
from tests.worlds.tools import requires_console_events

# Each row takes 50 ms, during which the CPU is idle.
SLOW_ROWS_CODE = """
import time
from mmf.datasets.builders.hateful_memes.dataset import HatefulMemesFeaturesDataset as Rows
get = Rows.__getitem__
Rows.__getitem__ = lambda self, number: time.sleep(0.05) or get(self, number)
"""


def write_slow_rows(tool: Tool) -> str:
    """Write user code that loads rows slowly; return the override that enables it."""
    folder = tool.folder / "slow_rows"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(SLOW_ROWS_CODE, encoding="utf-8")
    return f"env.user_dir={folder}"


def list_profile_files(tool: Tool) -> list[str]:
    """Return the names of all files in the save dir, which must be in folders of ``profiles``."""
    files = [path for path in tool.save_dir.rglob("*") if path.is_file()]
    assert all(path.parents[1] == tool.save_dir / "profiles" for path in files)
    return sorted(path.name for path in files)


def test_profile_reports_where_time_is_spent(tool: Tool) -> None:
    profile = tool("train", tool.write_preset("mmbt"), "--profile", "7", "training.num_workers=0")
    assert list_profile_files(tool) == ["trace.json"]
    assert set(profile["spent"]) <= profile["shares"].keys() and sum(profile["shares"].values()) == pytest.approx(1)
    assert all(profile["spent"][phase] > 0 for phase in ("data", "forward", "backward", "optimizer", "other"))
    assert profile["checkpoint"] > 0 and profile["validation"] > 0
    assert profile["batch_size"] == 4 and profile["gpu_busy"] is None
    assert profile["checkpoint_interval"] == 1000 and profile["evaluation_interval"] == 1000
    assert profile["largest_cost"]
    assert "Self CPU" in profile["table"] and "aten::" in profile["table"]
    trace = json.loads(Path(profile["trace"]).read_text(encoding="utf-8"))
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert sum(name.startswith("Optimizer.step") for name in names) == 1, "exactly one update must be traced"
    assert {"data", "forward", "backward", "optimizer"} <= set(names), "the phases of the update must be named"
    assert "validation" not in names and "checkpoint" not in names


@pytest.mark.wide
def test_profile_of_run_leaves_it_unchanged(tool: Tool) -> None:
    run = tool.get_trained_run("vilbert")

    def read_content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tool.save_dir.rglob("*") if path.is_file()}

    content_before = read_content()
    arguments = ("--profile", "6", write_slow_rows(tool), "training.checkpoint_interval=7", "--batch-size", "2")
    profile = tool("train", "--resume", run.id, *arguments, "training.evaluation_interval=1000")
    assert profile["batch_size"] == 2
    assert profile["checkpoint_interval"] == 7 and profile["evaluation_interval"] == 1000
    Path(profile["trace"]).unlink()
    assert read_content() == content_before
    assert "the model waits for data" in profile["largest_cost"] and "for the disk" in profile["largest_cost"]
    assert ": training.num_workers=" in profile["largest_cost"]


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["checkpoint", "evaluation"])
def test_profile_names_too_frequent_saving_or_validation(tool: Tool, kind: str) -> None:
    other_kind = {"checkpoint": "evaluation", "evaluation": "checkpoint"}[kind]
    arguments = (f"training.{kind}_interval=1", f"training.{other_kind}_interval=1000", "training.max_updates=100000")
    profile = tool("train", tool.write_preset("vilbert"), "--profile", "6", *arguments)
    assert f": training.{kind}_interval=" in profile["largest_cost"]


@pytest.mark.wide
@requires_console_events
def test_profile_keeps_no_files_after_ctrl_c(tool: Tool, set_faults: SetFaults) -> None:
    paused = tool.folder / "at"
    set_faults({"at": "forward", "do": "wait", "once": str(paused), "update": 2})
    with start_command(tool, "train", tool.write_preset("vilbert"), "--profile", "6") as command:
        command.wait_until(paused.exists)
        command.process.send_signal(CTRL_C)
        command.wait_for_output("stopping…")
        Path(f"{paused}.go").touch()
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert "nothing was saved" in command.output
    assert not tool.save_dir.exists()


@pytest.mark.wide
def test_failed_profile_keeps_its_log(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "forward", "do": "nan", "update": 3})
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), "--profile", "6") == 7
    assert "the loss of update 3 is not a number" in tool.errors
    assert list_profile_files(tool) == ["log.txt"]
    assert str(next(tool.save_dir.rglob("log.txt"))) in tool.errors


def test_profile_with_invalid_setting_is_refused_at_once(tool: Tool) -> None:
    preset = tool.write_preset("vilbert")
    paths_before = set(tool.folder.rglob("*"))
    assert tool.run_for_exit_code("train", preset, "--profile", "6", "training.checkpoint_interval=0") == 2
    assert "training.checkpoint_interval: 0" in tool.errors
    trusted = {user_code.trusted_folders_path(), user_code.trusted_folders_path().with_suffix(".lock")}
    assert set(tool.folder.rglob("*")) - paths_before <= trusted, "only trust in the tests' user code may be recorded"


@pytest.mark.wide
def test_profile_restarts_after_out_of_memory_in_validation(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "validation", "do": "cuda_oom", "once": str(tool.folder / "struck")})
    assert tool("train", tool.write_preset("vilbert"), "--profile", "6")["largest_cost"]
    assert "training from the beginning" in tool.errors


def test_profile_that_starts_after_update_0_is_refused(tool: Tool) -> None:
    run = tool.get_trained_run("vilbert")
    weights = f"checkpoint.resume_file={run.checkpoints / 'current.ckpt'}"
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), "--profile", "6", weights) == 2
    assert "training did not start at update 0" in tool.errors


def test_training_that_waits_for_data_warns_once(tool: Tool) -> None:
    arguments = ("--updates", "30", "--seed", "1", "training.evaluation_interval=30", write_slow_rows(tool))
    result = tool("train", tool.write_preset("vilbert"), *arguments)
    (note,) = [event["text"] for event in read_events_of_kind(tool.get_run(result), "note")]
    assert note.startswith("the model waits for data ") and note.endswith(" may help")
    assert f"warning: {note}" in tool.errors

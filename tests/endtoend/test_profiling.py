"""``mmfw train --profile``, and the note of a training that waits for data, on the real MMF."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.runs import user_code
from tests.endtoend.conftest import SetFaults, Tool, read_events_of_kind
from tests.endtoend.test_stopping import _CTRL_C, _INTERRUPTED, user
from tests.worlds.tools import requires_console_events

# Each row takes 50 ms, in which no processor works.
SLOW_ROWS = """
import time
from mmf.datasets.builders.hateful_memes.dataset import HatefulMemesFeaturesDataset as Rows
get = Rows.__getitem__
Rows.__getitem__ = lambda self, number: time.sleep(0.05) or get(self, number)
"""


def slow_rows(tool: Tool) -> str:
    """The folder of code that makes rows slow, as an override."""
    folder = tool.folder / "slow_rows"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(SLOW_ROWS, encoding="utf-8")
    return f"env.user_dir={folder}"


def left(tool: Tool) -> list[str]:
    """The names of all files in the save dir; each is in a folder of ``profiles``."""
    files = [path for path in tool.save_dir.rglob("*") if path.is_file()]
    assert all(path.parents[1] == tool.save_dir / "profiles" for path in files)
    return sorted(path.name for path in files)


def test_a_profile_says_where_the_time_of_a_preset_goes(tool: Tool) -> None:
    found = tool("train", tool.preset("mmbt"), "--profile", "7", "training.num_workers=0")
    assert left(tool) == ["trace.json"]
    assert set(found["spent"]) <= found["shares"].keys() and sum(found["shares"].values()) == pytest.approx(1)
    assert all(found["spent"][phase] > 0 for phase in ("data", "forward", "backward", "optimizer", "other"))
    assert found["checkpoint"] > 0 and found["validation"] > 0
    assert found["batch_size"] == 4 and found["gpu_busy"] is None
    assert found["checkpoint_interval"] == 1000 and found["evaluation_interval"] == 1000
    assert found["largest_cost"]
    assert "Self CPU" in found["table"] and "aten::" in found["table"]
    trace = json.loads(Path(found["trace"]).read_text(encoding="utf-8"))
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert sum(name.startswith("Optimizer.step") for name in names) == 1, "an update is traced"
    assert {"data", "forward", "backward", "optimizer"} <= set(names), "its phases are named"
    assert "validation" not in names and "checkpoint" not in names


@pytest.mark.wide
def test_a_profile_of_a_run_leaves_it_as_it_is(tool: Tool) -> None:
    run = tool.get_trained_run("vilbert")

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tool.save_dir.rglob("*") if path.is_file()}

    before = content()
    words = ("--profile", "6", slow_rows(tool), "training.checkpoint_interval=7", "--batch-size", "2")
    found = tool("train", "--resume", run.id, *words, "training.evaluation_interval=1000")
    assert found["batch_size"] == 2
    assert found["checkpoint_interval"] == 7 and found["evaluation_interval"] == 1000
    Path(found["trace"]).unlink()
    assert content() == before
    assert "the model waits for data" in found["largest_cost"] and "for the disk" in found["largest_cost"]
    assert ": training.num_workers=" in found["largest_cost"]


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["checkpoint", "evaluation"])
def test_saving_or_validating_after_each_update_is_named(tool: Tool, kind: str) -> None:
    other = {"checkpoint": "evaluation", "evaluation": "checkpoint"}[kind]
    words = (f"training.{kind}_interval=1", f"training.{other}_interval=1000", "training.max_updates=100000")
    found = tool("train", tool.preset("vilbert"), "--profile", "6", *words)
    assert f": training.{kind}_interval=" in found["largest_cost"]


@pytest.mark.wide
@requires_console_events
def test_after_ctrl_c_nothing_is_kept(tool: Tool, set_faults: SetFaults) -> None:
    at = tool.folder / "at"
    set_faults({"at": "forward", "do": "wait", "once": str(at), "update": 2})
    with user(tool, "train", tool.preset("vilbert"), "--profile", "6") as somebody:
        somebody.waits_for(at.exists)
        somebody.process.send_signal(_CTRL_C)
        somebody.reads("stopping…")
        Path(f"{at}.go").touch()
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert "nothing was saved" in somebody.read
    assert not tool.save_dir.exists()


@pytest.mark.wide
def test_of_a_training_that_fails_the_log_stays(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "forward", "do": "nan", "update": 3})
    assert tool.run_for_exit_code("train", tool.preset("vilbert"), "--profile", "6") == 7
    assert "the loss of update 3 is not a number" in tool.errors
    assert left(tool) == ["log.txt"]
    assert str(next(tool.save_dir.rglob("log.txt"))) in tool.errors


def test_a_mistake_is_named_at_once(tool: Tool) -> None:
    preset = tool.preset("vilbert")
    before = set(tool.folder.rglob("*"))
    assert tool.run_for_exit_code("train", preset, "--profile", "6", "training.checkpoint_interval=0") == 2
    assert "training.checkpoint_interval: 0" in tool.errors
    trusted = {user_code.trusted_folders_path(), user_code.trusted_folders_path().with_suffix(".lock")}
    assert set(tool.folder.rglob("*")) - before <= trusted, "the tests' own code is trusted"


@pytest.mark.wide
def test_memory_that_runs_out_in_the_validation_of_a_profile_makes_it_begin_again(
    tool: Tool, set_faults: SetFaults
) -> None:
    set_faults({"at": "validation", "do": "cuda_oom", "once": str(tool.folder / "struck")})
    assert tool("train", tool.preset("vilbert"), "--profile", "6")["largest_cost"]
    assert "training from the beginning" in tool.errors


def test_a_profile_that_would_begin_later_is_refused(tool: Tool) -> None:
    run = tool.get_trained_run("vilbert")
    weights = f"checkpoint.resume_file={run.checkpoints / 'current.ckpt'}"
    assert tool.run_for_exit_code("train", tool.preset("vilbert"), "--profile", "6", weights) == 2
    assert "training did not start at update 0" in tool.errors


def test_a_training_that_waits_for_data_says_so_once(tool: Tool) -> None:
    words = ("--updates", "30", "--seed", "1", "training.evaluation_interval=30", slow_rows(tool))
    result = tool("train", tool.preset("vilbert"), *words)
    (note,) = [event["text"] for event in read_events_of_kind(tool.get_run(result), "note")]
    assert note.startswith("the model waits for data ") and note.endswith(" may help")
    assert f"warning: {note}" in tool.errors

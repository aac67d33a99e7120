"""Runs of sweeps: all commands accept them, but no command selects them by default."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest

import mmf_win.commands.sweep  # noqa: F401 - it must not be imported first while a test patches commands.track
from mmf_win.files import link_or_copy, write_json
from mmf_win.locking import file_lock
from mmf_win.runs.folder import Run
from mmf_win.runs.lookup import find_run, find_runs, iter_matching_runs
from mmf_win.sweeps.folder import SweepFolder
from mmf_win.sweeps.planning import list_tasks, plan_tasks
from mmf_win.sweeps.table import estimate_cost
from tests.worlds.hostile_archives import truncate_file
from tests.worlds.small_sweeps import make_specification, write_ended_task, write_finished_run
from tests.worlds.tools import MmfwRunner, split_command
from tests.worlds.torch_files import write_checkpoint

_GRID = "template: {t: 'mmfw train demo optimizer.params.lr={lr} [seed]'}\n---\nlr: [0.1, 0.2]\nseed: [1, 2]\n"
TASK = "sweeps/grid/Lr_0.1-Seed_1"


def make(output: Path, text: str = _GRID) -> SweepFolder:
    """Make a sweep of trained tasks, each a little better than the one before."""
    sweep = SweepFolder(output)
    for number, task in enumerate(plan_tasks(make_specification(text)).tasks):
        write_ended_task(sweep, task)
        run = write_finished_run(sweep.task_folder(task.name), 0.6 + number / 100)
        write_checkpoint(run.checkpoints / "best.ckpt", 20)
    sweep.specification.write_text(text, encoding="utf-8")
    return sweep


@pytest.fixture
def save(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a save dir with a sweep, and a run that is older than all runs of the sweep."""
    monkeypatch.setenv("MMF_SAVE_DIR", str(user_dir / "save"))
    monkeypatch.setenv("MMF_CACHE_DIR", str(user_dir / "cache"))
    make(user_dir / "save" / "sweeps" / "grid")
    run = write_finished_run(SweepFolder(user_dir).task_folder("save"), 0.5)
    run.path.rename(run.path.with_name("2025-01-01T00-00-00"))
    return user_dir / "save"


def test_run_of_a_task_is_found_by_its_name_and_each_folder(mmfw: MmfwRunner, save: Path) -> None:
    for name in (TASK, save / TASK, f"{TASK}/demo/2026-01-01T00-00-00", save / TASK / "demo/2026-01-01T00-00-00"):
        run_info = mmfw.json("runs", "show", name)
        assert (run_info["id"], run_info["best_auroc"]) == (TASK, 0.6)
    assert mmfw.json("runs", "show")["id"] == "demo/2025-01-01T00-00-00", (
        "a newer run of a sweep must not be the default"
    )
    mmfw("runs", "show", "2026-01-01T00-00-00", code=2)


def test_printed_ids_find_the_runs_again(save: Path) -> None:
    second = Run(save / TASK / "demo" / "2026-01-02T00-00-00")
    second.path.mkdir()
    second.request_file.write_text("{}", encoding="utf-8")
    other_sweep = make(save.parent / "elsewhere")
    runs = [find_run(save, str(folder.parent)) for folder in save.glob("sweeps/*/*/param")]
    runs += [second, Run(second.path.with_name("2026-01-01T00-00-00"))]
    runs += [find_run(save, str(folder.parent)) for folder in other_sweep.path.glob("*/param")]
    ids = {run.id: run.path for run in runs}
    assert len(ids) == 9, "IDs must be unique"
    assert {name: find_run(save, name).path for name in ids} == ids
    task = save / TASK  # save dir of the commands of a task
    assert find_run(task, "demo") == find_run(task, second.id) == second
    assert find_run(save, TASK) == second, "the name of a task must mean its newest run"
    for param in (*save.glob("sweeps/*/*/param"), *other_sweep.path.glob("*/param")):
        param.unlink()
    (save.parent / "sweep.yaml").touch()  # a user's file, which does not turn the save dir into a task
    runs.append(find_run(save, "demo"))
    ids["demo/2025-01-01T00-00-00"] = runs[-1].path
    assert {run.id: find_run(save, run.id).path for run in runs} == ids, (
        "IDs must be resolved without the files of the tasks"
    )


def test_sweep_is_one_line_of_the_list_of_runs(mmfw: MmfwRunner, save: Path) -> None:
    *_, run, sweep = mmfw("runs").splitlines()
    assert run.startswith("demo/2025") and re.match(r"sweeps/grid .* 4 success", sweep)
    assert [run["id"] for run in mmfw.json("runs")] == ["demo/2025-01-01T00-00-00"]
    for name in ("grid", "sweeps/grid", save / "sweeps" / "grid"):
        runs = mmfw.json("runs", "--sweep", name)
        assert [run["id"].rpartition("/")[0] for run in runs] == ["sweeps/grid"] * 4
    mmfw("runs", "rm", runs[0]["id"], "--yes")
    assert len(mmfw.json("runs", "--sweep", "grid")) == 3
    assert "no sweep named nope" in mmfw("runs", "--sweep", "nope", code=2)
    assert "did you mean grid?" in mmfw("sweep", "status", "GRIDS", code=2)
    assert "did you mean `mmfw sweep run demo`?" in mmfw("sweep", "demo", code=2)


@pytest.mark.parametrize("arguments", [("predict",), ("runs", "show"), ("train", "--resume")], ids=" ".join)
def test_sweep_in_place_of_a_run_names_the_command_that_lists_its_runs(
    mmfw: MmfwRunner, save: Path, arguments: tuple[str, ...]
) -> None:
    mmfw(*arguments, "grid", code=2)
    [command] = re.findall("`mmfw (.*?)`", mmfw.err)
    assert TASK in mmfw(*split_command(command))


@pytest.mark.parametrize("command", ["track status", "track push --to mlflow", "report", "verify", "repair"])
def test_bare_name_is_never_taken_for_a_sweep(
    mmfw: MmfwRunner, save: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("mmf_win.commands.track.select_enabled_trackers", lambda *_: ["a tracker"])
    mmfw(*command.split(), "grid", code=2)
    assert "did you mean sweeps/grid?" in mmfw.err
    monkeypatch.chdir(save / "sweeps")
    mmfw(*command.split(), "grid", code=2)
    assert "did you mean sweeps/grid?" in mmfw.err, "a folder of the current folder must not be preferred"
    monkeypatch.chdir(save)
    mmfw(*command.split(), "sweeps/gird", code=2)
    assert "did you mean sweeps/grid?" in mmfw.err


@pytest.mark.usefixtures("save")
@pytest.mark.parametrize("command", ["runs show", "predict", "train --resume"])
def test_command_for_one_run_shows_how_to_list_the_runs_of_a_sweep(mmfw: MmfwRunner, command: str) -> None:
    for name in ("grid", "sweeps/grid"):
        mmfw(*command.split(), name, code=2)
        assert f"list its runs with `mmfw runs --sweep {name}" in mmfw.err and "did you mean" not in mmfw.err


def test_uploading_a_sweep_without_runs_is_an_error(
    mmfw: MmfwRunner, save: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmf_win.commands.track.select_enabled_trackers", lambda *_: ["a tracker"])
    (save / "sweeps" / "new").mkdir()
    (save / "sweeps" / "new" / "sweep.yaml").write_text(_GRID, encoding="utf-8")
    mmfw("track", "push", "sweeps/new", "--to", "mlflow", code=2)
    [command] = re.findall("`mmfw (.*?)`", mmfw.err)
    assert "no task of this sweep has a run" in mmfw.err and "4 tasks" in mmfw(*split_command(command)) + mmfw.err


def test_name_of_both_a_run_and_a_sweep_means_the_run(mmfw: MmfwRunner, save: Path) -> None:
    pytest.importorskip("matplotlib")
    make(save / "sweeps" / "demo")
    assert [run.id for run in find_runs(save, "demo")] == ["demo/2025-01-01T00-00-00"]
    assert len(find_runs(save, "sweeps/demo")) == len(find_runs(save, str(save / "sweeps" / "demo"))) == 4
    assert mmfw.json("report", "demo")["runs"] == ["demo/2025-01-01T00-00-00"]
    assert len(mmfw.json("report", "sweeps/demo")["runs"]) == 4


@pytest.mark.parametrize(
    "command", ["train", "predict", "runs show", "report", "verify", "sweep run", "features status", "check"]
)
def test_wrong_name_in_capitals_gets_a_suggestion(mmfw: MmfwRunner, save: Path, command: str) -> None:
    pytest.importorskip("matplotlib")
    assert "did you mean mmbt_grid?" in mmfw(*command.split(), "MMBT_GRIDS", code=2)


def test_one_name_does_not_remove_several_runs_of_a_task(mmfw: MmfwRunner, save: Path) -> None:
    second = Run(save / TASK / "demo" / "2026-01-02T00-00-00")
    second.path.mkdir()
    second.request_file.write_text("{}", encoding="utf-8")
    errors = mmfw("runs", "rm", TASK, "--yes", code=2)
    assert "2 runs" in errors and all(run.id in errors for run in iter_matching_runs(save, TASK))
    mmfw("runs", "rm", second.id, "--yes")
    assert not second.path.exists() and find_run(save, TASK).id == TASK


@pytest.mark.parametrize("arguments", [(), ("runs",), ("sweeps/grid",), (TASK,)], ids=str)
def test_damaged_checkpoint_of_a_sweep_is_found(mmfw: MmfwRunner, save: Path, arguments: tuple[str, ...]) -> None:
    mmfw("verify", *arguments)
    assert TASK in mmfw.out
    truncate_file(find_run(save, TASK).checkpoints / "best.ckpt")
    assert f"run {TASK}" in mmfw("verify", *arguments, code=3)


def test_sweep_and_run_are_compared(mmfw: MmfwRunner, save: Path) -> None:
    pytest.importorskip("matplotlib")
    result = mmfw.json("report", "sweeps/grid", "demo")
    assert len(set(result["runs"])) == 5 and Path(result["report"]).parent == save
    result = mmfw.json("report", "sweeps/grid")
    assert len(set(result["runs"])) == 4 and Path(result["report"]).parent == save / "sweeps" / "grid"


def test_names_in_the_table_are_accepted_by_other_commands(mmfw: MmfwRunner, save: Path) -> None:
    best, second = mmfw.json("sweep", "table", "grid")
    assert best["tasks"] == ["sweeps/grid/Lr_0.2-Seed_1", "sweeps/grid/Lr_0.2-Seed_2"]
    assert best["tasks"][0] in mmfw("sweep", "table", "grid") and TASK in mmfw("sweep", "status", "grid")
    for name in [*best["tasks"], *second["tasks"]]:
        mmfw("runs", "show", name)
    assert " ".join(best["tasks"]) in mmfw("sweep", "table", "grid", "--format", "csv")
    for name in best["tasks"]:
        mmfw("runs", "rm", name, "--yes")
        assert name not in mmfw("sweep", "table", "grid")


def test_best_combination_is_chosen_by_validation_not_test_scores(mmfw: MmfwRunner, save: Path) -> None:
    low_score_run = find_run(save, TASK)
    low_score_run.reports.mkdir()
    metrics = {"auroc": 1.0, "split": "test_seen", "rows": 8, "full_rows": 8, "created": 1e9}
    write_json(low_score_run.reports / "hateful_memes_demo_test_seen_2026.metrics.json", metrics)
    (find_run(save, "sweeps/grid/Lr_0.2-Seed_2").checkpoints / "best.ckpt").unlink()
    other_sweep = shutil.copytree(save / "sweeps" / "grid", save.parent / "sweeps" / "copy")
    for sweep in ("grid", other_sweep):
        errors = mmfw("predict", "--best-of", sweep, code=3)
        assert f"run sweeps/{Path(sweep).name}/Lr_0.2-Seed_2 has no checkpoint" in errors
    assert "cannot be combined with RUN" in mmfw("predict", "demo", "--best-of", "grid", code=2)
    for events in save.glob("sweeps/grid/*/demo/*/events.jsonl"):
        events.unlink()
    assert "no finished task" in mmfw("predict", "--best-of", "grid", code=2), "the newest run must not be used instead"


@pytest.mark.parametrize(
    "arguments",
    [
        *(("sweep", "rm", "--yes"), ("sweep", "table"), ("sweep", "status"), ("sweep", "run")),
        *(("runs", "--sweep"), ("runs", "--preset"), ("runs", "show"), ("runs", "rm", "--yes")),
        *(("predict",), ("predict", "--best-of"), ("verify",), ("report",)),
        *(("train", "demo", "--resume"), ("train", "--resume", "best")),
    ],
    ids=" ".join,
)
def test_empty_name_is_rejected(
    mmfw: MmfwRunner, save: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    if arguments[0] == "report":
        pytest.importorskip("matplotlib")
    before = sorted(save.rglob("*"))
    for folder in (save.parent, save / "sweeps" / "grid"):
        monkeypatch.chdir(folder)
        mmfw(*arguments, "", code=2)
        assert mmfw.out == ""
    assert sorted(save.rglob("*")) == before


def test_sweep_is_removed_only_if_unused_and_without_other_files(
    mmfw: MmfwRunner, save: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, run = save / "sweeps" / "grid", find_run(save, TASK)
    rm = ("sweep", "rm", "grid", "--yes")
    for lock in (save / TASK / "lock", run.training_lock_file, run.usage_lock_file):
        with file_lock(lock):
            mmfw(*rm, code=8)
    user_folder = sweep / "notes"
    user_folder.mkdir()
    assert str(user_folder) in mmfw(*rm, code=2)
    user_folder.rmdir()
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "--yes" in mmfw(*rm[:-1], code=2)
    assert len(mmfw.json("runs", "--sweep", "grid")) == 4
    assert mmfw.json(*rm)["removed"] == ["grid"]
    assert [path.name for path in (save / "sweeps").iterdir()] == []
    assert mmfw.json("runs", "show")["id"].startswith("demo/")


def test_file_with_several_names_counts_once_and_frees_space_with_its_last_name(
    mmfw: MmfwRunner, save: Path, tmp_path: Path
) -> None:
    def count_bytes(run: str) -> int:
        files = [path.stat() for path in (save / run).rglob("*") if path.is_file()]
        return sum({file.st_ino: file.st_size for file in files}.values())

    large = 1 << 20
    for path in [*save.glob("sweeps/grid/*/demo/*"), next(save.glob("demo/*"))]:
        checkpoints = Run(path).checkpoints
        checkpoints.mkdir(exist_ok=True)
        (checkpoints / "best.ckpt").write_bytes(bytes(large))
        for name in ("current.ckpt", "demo_final.pth"):
            link_or_copy(checkpoints / "best.ckpt", checkpoints / name)
    for run_info in mmfw.json("runs"):
        assert large < run_info["size"] < 2 * large
    single = "demo/2025-01-01T00-00-00"
    assert mmfw.json("runs", "show", single)["size"] == count_bytes(single)

    sweep = SweepFolder(save / "sweeps" / "grid")
    measured = estimate_cost(sweep, list_tasks(sweep), None, save)
    assert measured is not None and large < measured[2] < 2 * large

    size = count_bytes(single)
    link_or_copy(save / single / "checkpoints" / "best.ckpt", tmp_path / "kept.ckpt")
    freed = mmfw.json("runs", "rm", single, "--yes")["freed"]
    assert freed == size - large
    size = count_bytes("sweeps/grid")
    assert mmfw.json("sweep", "rm", "grid", "--yes")["freed"] == size

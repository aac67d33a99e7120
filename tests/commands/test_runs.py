"""``mmfw runs``: list, show, compare and remove runs, including damaged ones."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

import mmf_win.runs
from mmf_win.console import format_size, format_utc_time
from mmf_win.dataset.user_memes import user_annotations_path
from mmf_win.files import link_or_copy, write_json
from mmf_win.locking import file_lock
from mmf_win.protocol import AttemptOutcome
from mmf_win.runs.folder import Run
from tests.worlds import hostile_archives
from tests.worlds.damaged_runs import DamagedRuns
from tests.worlds.event_log import EventLog
from tests.worlds.memes import RUN_SPLITS
from tests.worlds.run_requests import make_run_request
from tests.worlds.tools import MmfwRunner, requires_tool, run_unprivileged, split_command
from tests.worlds.torch_files import write_checkpoint, write_torch_zip


def make(save: Path, run_id: str, *, outcome: str = "ok", **request_values: Any) -> Run:
    """Make a run of ten updates."""
    run = Run(save / run_id)
    run.checkpoints.mkdir(parents=True)
    values: dict[str, Any] = {
        "preset": "mmbt_grid",
        "model": "mmbt",
        "config": None,
        "settings": {"training": {"batch_size": 8}},
        "overrides": [],
        "splits": RUN_SPLITS,
        "data_dir": "data",
        "created": 1e9,
    }
    run.save_request(make_run_request(**values | request_values))
    log = EventLog(run.events, "1")
    log.write("run_started", torch="2")
    for final in (False, True):  # the best checkpoint is validated again at the end
        log.write("val", update=10, metrics={"auroc": 0.7}, final=final)
    AttemptOutcome(outcome, "" if outcome == "ok" else "why it failed").save(run.outcome_file)  # type: ignore[arg-type]
    return run


@pytest.fixture(autouse=True)
def _save_dir(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMF_SAVE_DIR", str(user_dir))


@pytest.fixture
def save(user_dir: Path) -> Path:
    """Make three runs of two presets, and one whose request is damaged."""
    make(user_dir, "a/2026-01-01T00-00-00")
    make(user_dir, "a/2026-01-02T00-00-00", outcome="cuda_oom")
    make(user_dir, "b/2026-01-03T00-00-00", preset="vilbert", settings={"training": {"batch_size": 4}})
    damaged_run = make(user_dir, "c/2026-01-04T00-00-00")
    damaged_run.request_file.write_text("{", encoding="utf-8")
    return user_dir


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
@pytest.mark.parametrize("name", ["request.json", "events.jsonl", "exit.json"])
def test_pipe_in_place_of_a_file_makes_a_run_unreadable(save: Path, name: str, mmfw: MmfwRunner) -> None:
    file = save / "b/2026-01-03T00-00-00" / name
    file.unlink()
    os.mkfifo(file)
    states = {run["id"]: run["state"] for run in mmfw.json("runs")}
    assert states["b/2026-01-03T00-00-00"] == "unreadable"
    assert states["a/2026-01-01T00-00-00"] == "done"
    mmfw("runs", "show", "b", code=3)


@requires_tool("setpriv", exists_on_windows=False)
def test_run_without_read_permission_is_listed_with_the_reason(save: Path) -> None:
    folder = save / "b/2026-01-03T00-00-00"
    folder.chmod(0)
    list_process, show_process = (run_unprivileged("runs", *arguments) for arguments in (("--json",), ("show", "b")))
    folder.chmod(0o700)
    states = {run["id"]: run["state"] for run in json.loads(list_process.stdout)}
    assert (states["b/2026-01-03T00-00-00"], states["a/2026-01-01T00-00-00"]) == ("unreadable", "done")
    assert "b/2026-01-03T00-00-00 cannot be read" in list_process.stderr and "Permission denied" in list_process.stderr
    assert show_process.returncode == 3 and f"error: {folder}" in show_process.stderr


@pytest.mark.parametrize("arguments", [("runs", "show"), ("report",), ("predict",)])
def test_unreadable_run_is_removed_as_hinted(save: Path, arguments: tuple[str, ...], mmfw: MmfwRunner) -> None:
    pytest.importorskip("matplotlib")
    mmfw(*arguments, "c", "--save-dir", save, code=3)
    [command] = re.findall("`mmfw (.*?)`", mmfw.err)
    mmfw(*split_command(command), "--yes")
    assert not (save / "c").exists()


@pytest.mark.parametrize(
    ("arguments", "days"),
    [
        ((), [4, 3, 2, 1]),
        (("--state", "unreadable"), [4]),
        (("--preset", "mmbt_grid"), [2, 1]),
        (("--state", "failed"), [2]),
        (("--state", "done", "--limit", "1"), [3]),
        (("--preset", "visual_bert"), []),
    ],
)
def test_list_is_filtered(mmfw: MmfwRunner, save: Path, arguments: tuple[str, ...], days: list[int]) -> None:
    runs = mmfw.json("runs", *arguments)
    assert [int(run["id"][10:12]) for run in runs] == days


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "dmo", "--json"], "did you mean demo?"),
        (["--format", "csv", "--json"], "cannot be combined"),
        (["--limit", "1", "show", "a"], "cannot be combined with show"),
        (["rm", "a", "--yes"], "a matches 2 runs"),
        (["rm", "2026-01-01T00-00-00", "--yes"], "2026-01-01T00-00-00 matches 2 runs"),
    ],
    ids=" ".join,
)
def test_invalid_arguments_are_rejected(mmfw: MmfwRunner, save: Path, arguments: list[str], message: str) -> None:
    make(save, "b/2026-01-01T00-00-00")
    assert message in mmfw("runs", *arguments, code=2)


def test_csv_has_one_row_per_run(mmfw: MmfwRunner, save: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(mmfw("runs", "--format", "csv"))))
    assert [row["preset"] for row in rows] == ["", "vilbert", "mmbt_grid", "mmbt_grid"]
    assert rows[1]["best_auroc"] == "0.7"
    assert [row["started"] for row in rows[:2]] == ["", "2001-09-09T01:46:40+00:00"]


def test_unreadable_run_is_listed_with_the_reason(mmfw: MmfwRunner, save: Path) -> None:
    mmfw("runs")
    output, errors = mmfw.out, mmfw.err
    assert "unreadable" in output.splitlines()[1]
    assert "c/2026-01-04T00-00-00" in errors and "request.json" in errors
    mmfw("runs", "rm", "c", "--yes")
    assert not (save / "c").exists()


def test_list_shows_test_scores_and_differing_settings(mmfw: MmfwRunner, user_dir: Path) -> None:
    same = "training.fp16=True"
    first = make(user_dir, "a/2026-01-01T00-00-00", overrides=[same, "optimizer.params.lr=1e-5"], mmf_version="1.0.0")
    make(user_dir, "a/2026-01-02T00-00-00", overrides=[same], batch_size=16, seed=7)
    for update, seed in ((0, 3), (10, 8)):
        EventLog(first.events, "1").write("train_started", update=update, seed=seed)
    first.reports.mkdir()
    scores = {"dev_seen": 0.75, "test_seen": 0.625, "test_unseen": None}
    for number, (split, auroc) in enumerate(scores.items()):
        csv_file = first.reports / f"hateful_memes_a_{split}_2026-01-01T00-00-0{number}.csv"
        csv_file.touch()
        metrics = {"auroc": auroc, "split": split, "rows": 8, "full_rows": 10}
        write_json(csv_file.with_suffix(".metrics.json"), metrics)
    user_predictions = first.reports / "hateful_memes_a_test_own_2026-01-01T00-00-09.csv"
    user_predictions.touch()
    write_json(user_predictions.with_suffix(".metrics.json"), {"auroc": 1.0, "split": "test_own", "rows": 1})
    user_annotations_path(user_predictions).touch()
    later, earlier = mmfw.json("runs")
    keys = ("test_auroc", "test_split", "test_rows", "test_full_rows", "seed", "mmf", "differs")
    expected_of_first = [0.625, "test_seen", 8, 10, 3, "1.0.0", "optimizer.params.lr=1e-05"]
    assert [earlier[key] for key in keys] == expected_of_first
    assert [later[key] for key in keys] == [None, None, None, None, 7, None, "training.batch_size=16"]
    text = mmfw("runs")
    assert "8 of 10 rows of test_seen  unknown" in text


def test_failed_run_is_shown_with_the_reason(mmfw: MmfwRunner, save: Path) -> None:
    run_info = mmfw.json("runs", "show", "a")
    assert (run_info["state"], run_info["why"]) == ("failed: cuda_oom", "why it failed")
    assert run_info["validations"] == [{"update": 10, "auroc": 0.7}]
    text = mmfw("runs", "show", "a")
    assert "Reason: why it failed\n" in text and "    10  0.7000  -\n" in text
    assert "Trained: 10 of ? updates in 0 s; attempts: 1\n" in text and "Model: mmbt\n" in text
    assert not [name for name in run_info if "_" in name and name in text], "JSON keys must not appear in the text"


def test_scores_are_shown_with_coverage_and_without_control_characters(mmfw: MmfwRunner, user_dir: Path) -> None:
    run = make(user_dir, "a/2026-01-01T00-00-00")
    log = EventLog(run.events, "1")
    log.write("train_started", update=0, data={"split": "train", "rows": 8400, "full_rows": 8500})
    data = {"split": "dev_unseen", "rows": 433, "full_rows": 540}
    log.write("val", update=20, metrics={"auroc": 0.75}, data=data)
    log.write("val", update=30, metrics={"auroc": 0.6}, data={**data, "rows": 540})
    csv = run.reports / "hateful_memes_a_test_unseen_2026-01-01T00-00-01.csv"
    csv.parent.mkdir()
    csv.write_text("id,proba,label\n", encoding="utf-8")
    metrics = {"auroc": 0.625, "split": "test_unseen", "rows": 1593, "full_rows": 2000}
    write_json(csv.with_suffix(".metrics.json"), {**metrics, "threshold": 0.5})
    csv.with_name("hateful_memes_a_train_2026-01-01T00-00-00.csv").touch()  # without a record
    csv_with_controls = csv.with_name("hateful_memes_a_train_2026-01-01T00-00-02.csv")
    csv_with_controls.touch()
    write_json(csv_with_controls.with_suffix(".metrics.json"), {**metrics, "split": "\x1b[31mtrain", "auroc": 0.5})

    assert "0.7500  433 of 540 rows of dev_unseen" in mmfw("runs")
    [listed_run] = mmfw.json("runs")
    assert [listed_run[f"val_{key}"] for key in ("split", "rows", "full_rows")] == ["dev_unseen", 433, 540]
    run_info = mmfw.json("runs", "show", "a")
    assert run_info["predictions"][0] == {"csv": str(csv), "checkpoint": "unknown", **metrics}
    assert run_info["predictions"][1]["auroc"] is None
    assert run_info["trained_on"] == {"split": "train", "rows": 8400, "full_rows": 8500}
    assert run_info["validations"] == [
        {"update": 10, "auroc": 0.7},
        {"update": 20, "auroc": 0.75, **data},
        {"update": 30, "auroc": 0.6, **data, "rows": 540},
    ]
    text = mmfw("runs", "show", "a")
    assert "Training rows: 8,400 of 8,500 rows of train\n" in text
    assert "Best validation AUROC: 0.7500 on 433 of 540 rows of dev_unseen\n" in text
    assert "    20  0.7500  433 of 540 rows of dev_unseen\n" in text
    assert f"{csv}  0.6250  1,593 of 2,000 rows of test_unseen  " in text
    assert "rows of \\u001b[31mtrain" in text and "\x1b" not in text
    other = make(user_dir, "b/2026-01-01T00-00-00", seed=0)
    run_info = mmfw.json("runs", "show", "b")
    assert [run_info[key] for key in ("val_split", "val_rows", "val_full_rows")] == ["dev", None, None]
    assert run_info["trained_on"] is None and "Seed: 0\n" in mmfw("runs", "show", "b")
    comparison = mmfw.json("runs", "compare", run.id, other.id)
    assert comparison["scores"]["validated_on"] == ["433 of 540 rows of dev_unseen", "dev"]


def test_compare_shows_only_differences(mmfw: MmfwRunner, save: Path) -> None:
    for run, rate in (("a/2026-01-02T00-00-00", "1e-5"), ("b/2026-01-03T00-00-00", "5e-5")):
        config = f"optimizer:\n  lr: {rate}\n  type: adam\nenv:\n  save_dir: {run}\nref: ${{env.save_dir}}\n"
        (save / run / "checkpoints" / "config.yaml").write_text(config, encoding="utf-8")
    comparison = mmfw.json("runs", "compare", "a", "b")
    assert comparison["differences"] == {
        "mmf.optimizer.lr": [1e-5, 5e-5],
        "request.preset": ["mmbt_grid", "vilbert"],
        "request.settings.training.batch_size": [8, 4],
    }
    assert comparison["scores"]["state"] == ["failed: cuda_oom", "done"]
    assert "request.preset" in mmfw("runs", "compare", "a", "b")


def test_invalid_configuration_is_named(mmfw: MmfwRunner, save: Path) -> None:
    for run in ("a/2026-01-02T00-00-00", "b/2026-01-03T00-00-00"):
        (save / run / "checkpoints" / "config.yaml").write_text("a: [", encoding="utf-8")
    assert "config.yaml" in mmfw("runs", "compare", "a", "b", code=3)


def test_run_is_removed_and_the_freed_space_is_shown(mmfw: MmfwRunner, save: Path) -> None:
    (save / "b/2026-01-03T00-00-00/checkpoints/best.ckpt").write_bytes(bytes(1 << 20))
    removed = mmfw.json("runs", "rm", "b", "a/2026-01-02T00-00-00", "--yes")
    assert removed["removed"] == ["b/2026-01-03T00-00-00", "a/2026-01-02T00-00-00"]
    assert removed["freed"] > 1 << 20
    assert not (save / "b").exists()
    assert [path.name for path in (save / "a").iterdir()] == ["2026-01-01T00-00-00"]


@pytest.mark.parametrize(("stdin", "code", "message"), [("n\n", 0, "nothing removed"), ("", 2, "--yes")])
def test_nothing_is_removed_without_confirmation(
    mmfw: MmfwRunner, save: Path, monkeypatch: pytest.MonkeyPatch, stdin: str, code: int, message: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    mmfw("runs", "rm", "b", code=code)
    assert message in mmfw.err
    assert (save / "b/2026-01-03T00-00-00").is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
@pytest.mark.parametrize(
    "command",
    [
        *("", "show {}", "show {} --verify", "show {} --config", "compare {} b", "rm {} --yes", "show {}x"),
        *("fix-names .", "--format csv"),
    ],
)
def test_control_characters_in_run_names_are_escaped(
    mmfw: MmfwRunner, save: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(save)
    name = "gnp.\u202eexe\x1b]0;title\x07"
    make(save, f"{name}/2026-01-05T00-00-00", preset=name, settings={"training": {"seed:": name}})
    (save / f"{name}/a:b").touch()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    mmfw("runs", *command.format(name).split(), code=2 if command.endswith("x") else 0)
    assert not set(mmfw.out + mmfw.err) & set("\x1b\x07\u202e")


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
@pytest.mark.parametrize("other_ids", [[], ["b/2026-01-03T00-00-00"]], ids=["alone", "with another ID"])
def test_run_is_removed_through_a_link(mmfw: MmfwRunner, save: Path, other_ids: list[str]) -> None:
    (save / "b" / "latest").symlink_to("2026-01-03T00-00-00")
    mmfw("runs", "rm", "b/latest", *other_ids, "--yes")
    assert not (save / "b").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_link_to_the_runs_of_a_name_is_kept(mmfw: MmfwRunner, save: Path, tmp_path: Path) -> None:
    (save / "b").rename(tmp_path / "elsewhere")
    (save / "b").symlink_to(tmp_path / "elsewhere")
    mmfw("runs", "rm", "b/2026-01-03T00-00-00", "--yes")
    assert (save / "b").is_symlink() and not (tmp_path / "elsewhere" / "2026-01-03T00-00-00").exists()


def test_run_in_training_is_not_removed(mmfw: MmfwRunner, save: Path) -> None:
    run = Run(save / "b/2026-01-03T00-00-00")
    with file_lock(run.training_lock_file):
        assert "is being trained" in mmfw("runs", "rm", "a/2026-01-02T00-00-00", "b", "--yes", code=8)
    assert (save / "a/2026-01-02T00-00-00").is_dir(), "no run may be removed if one of them is refused"


def test_runs_are_a_dataframe_in_a_notebook(save: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table = mmf_win.runs.runs_dataframe(save)
    assert list(table["preset"]) == ["", "vilbert", "mmbt_grid", "mmbt_grid"]
    assert str(table["started"].dt.tz) == "UTC"
    assert list(mmf_win.runs.runs_dataframe(tmp_path / "nowhere").columns) == list(table.columns)


@pytest.fixture
def run(user_dir: Path) -> Run:
    """Make a run with its best update 4 and its last update 6, whose checkpoint has two names."""
    run = make(user_dir, "a/2026-01-01T00-00-00")
    log = EventLog(run.events, "1")
    for update, auroc in ((4, 0.8), (6, 0.6)):
        log.write("val", update=update, metrics={"auroc": auroc})
    log.write("val", update=6, metrics={"auroc": 0.8}, final=True)
    write_checkpoint(run.checkpoints / "best.ckpt", 4)
    last = write_checkpoint(run.checkpoints / "models" / "model_6.ckpt", 6, epoch=2)
    link_or_copy(last, run.checkpoints / "current.ckpt")
    write_torch_zip(run.checkpoints / "mmbt_final.pth", {"weight": None})
    return run


def verify_checkpoints(mmfw: MmfwRunner, run: Run) -> dict[str, Any]:
    """Run ``mmfw runs show --verify`` with and without ``--json``; return the checkpoints by name."""
    arguments = ("runs", "show", run.path.parent.name, "--verify", "--save-dir", run.path.parents[1])
    info = mmfw.json(*arguments)
    mmfw(*arguments)
    return {entry["name"]: entry for entry in info["checkpoints"]}


def test_checkpoints_are_shown_with_their_contents(mmfw: MmfwRunner, run: Run) -> None:
    by_name = verify_checkpoints(mmfw, run)
    assert list(by_name) == ["best.ckpt", "current.ckpt", "models/model_6.ckpt", "mmbt_final.pth"]
    figures = {name: [c["update"], c["epoch"], c["auroc"]] for name, c in by_name.items()}
    assert figures["best.ckpt"] == [4, 1, 0.8]
    assert figures["current.ckpt"] == figures["models/model_6.ckpt"] == [6, 2, 0.6]
    assert figures["mmbt_final.pth"] == [None, None, None], "the file contains only weights"
    assert all(by_name[name]["problem"] is None for name in figures)
    assert by_name["best.ckpt"]["written"] == format_utc_time((run.checkpoints / "best.ckpt").stat().st_mtime)
    *_, header, best, _, _, _ = mmfw.out.splitlines()
    assert header.split()[:5] == ["checkpoint", "update", "epoch", "AUROC", "size"]
    assert best.split()[:4] == ["best.ckpt", "4", "1", "0.8000"] and best.endswith("intact")
    assert "on disk" in mmfw.err and "newest intact checkpoint" not in mmfw.err


def test_file_with_two_names_is_counted_once(mmfw: MmfwRunner, run: Run) -> None:
    checkpoints = verify_checkpoints(mmfw, run)
    assert checkpoints["current.ckpt"]["same_as"] == ["models/model_6.ckpt"]
    assert checkpoints["best.ckpt"]["same_as"] == []
    names = ("best.ckpt", "current.ckpt", "mmbt_final.pth")
    total = sum((run.checkpoints / name).stat().st_size for name in names)
    assert f"{format_size(total)} on disk" in mmfw.err


def test_damaged_checkpoint_is_shown_with_the_reason(mmfw: MmfwRunner, run: Run) -> None:
    best = run.checkpoints / "best.ckpt"
    hostile_archives.flip_byte(best, best.stat().st_size // 2)
    checkpoints = verify_checkpoints(mmfw, run)
    assert checkpoints["best.ckpt"]["problem"] == "damaged at model/data/0"
    assert checkpoints["current.ckpt"]["problem"] is None
    assert next(line for line in mmfw.out.splitlines() if line.startswith("best.ckpt")).endswith("damaged")
    assert "best.ckpt: damaged at model/data/0" in mmfw.err
    assert "mmfw predict a/2026-01-01T00-00-00 --save-dir" in mmfw.err, (
        "predict must be suggested, because training is complete"
    )
    damaged_run = make(run.path.parents[1], "b/2026-01-02T00-00-00")
    (damaged_run.checkpoints / "best.ckpt").write_bytes(b"cut off")
    verify_checkpoints(mmfw, damaged_run)
    assert "newest intact checkpoint" not in mmfw.err, "no checkpoint may be named if none is intact"


def test_run_without_checkpoints_is_not_an_error(mmfw: MmfwRunner, user_dir: Path) -> None:
    assert verify_checkpoints(mmfw, make(user_dir, "b/2026-01-02T00-00-00")) == {}
    assert "has no checkpoint yet" in mmfw.err


@pytest.mark.parametrize("part", range(4))
def test_damaged_file_of_a_run_is_a_clear_error_of_each_command(user_dir: Path, part: int) -> None:
    """More kinds of damage: ``python scripts/fuzz.py runs``."""
    world, can_report = DamagedRuns(user_dir), all(map(find_spec, ("jinja2", "matplotlib", "PIL", "numpy")))
    problems: list[str] = []
    for seed in range(part, 40, 4):
        failures = world.find_failures(Random(seed), with_reports=can_report and seed % 3 == part % 3)
        problems += [f"seed {seed}, {line}" for line in failures]
    assert not problems, f"{len(problems)}: " + "\n".join(problems[:20])

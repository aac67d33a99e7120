"""Predictions: of several splits, runs and checkpoints, blended, with a threshold, and beside MMF's own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.console import format_utc_time
from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.prediction_file import Prediction, read_predictions
from mmf_win.files import link_or_copy, read_json
from mmf_win.integrity.verify import LOCK_NAME
from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.results.blending import best_accuracy_threshold, blend
from mmf_win.runs import attempts
from mmf_win.runs.folder import Run
from tests.endtoend.conftest import SetFaults, Tool, attempt_outcomes, predicted_ids, probabilities
from tests.endtoend.test_stopping import user
from tests.worlds import hostile_archives
from tests.worlds.memes import dataset_files
from tests.worlds.mounts import private_mounts_command
from tests.worlds.tools import preload_environment, requires_tool, run_unprivileged, split_command

ROOT = Path(__file__).parents[2]


def predict(tool: Tool, *words: str) -> list[dict[str, Any]]:
    """Return the objects that ``mmfw predict --json`` prints, one for each prediction file."""
    assert tool.run_for_exit_code("predict", *words, "--json") == 0, tool.errors
    return [json.loads(line) for line in tool.output.splitlines()]


def sha256(path: Path | str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_weights_that_training_replaces_meanwhile_do_not_get_the_score(
    tool: Tool, set_faults: SetFaults, tmp_path: Path
) -> None:
    run, other = tool.get_trained_run("vilbert"), tool.get_trained_run("vilbert", seed=2, run="other")
    best, here = run.checkpoints / "best.ckpt", tmp_path / "here"
    words = ("predict", run.id, "--split", "test_seen", "--split", "test_unseen", "--no-report")
    weights = sha256(best)
    set_faults({"at": "validation", "do": "wait", "once": str(here)})
    with user(tool, *words, "--threshold", "best-accuracy") as somebody:
        somebody.waits_for(here.exists)
        link_or_copy(other.checkpoints / "best.ckpt", best)  # as training does
        here.with_name("here.go").touch()
        assert somebody.gets_the_prompt_back() == 0, somebody.read
    assert sha256(best) != weights and not run.pins.exists()
    records = [read_json(file) for file in run.reports.glob("*.metrics.json")]
    assert {record["split"] for record in records} == {"test_seen", "test_unseen"}
    assert {record["members"][0]["checkpoint_sha256"] for record in records} == {weights}
    [made] = run.reports.glob("*_test_unseen_*.csv")
    tool.read_output()  # what that command has printed
    [again] = predict(tool, "--checkpoint", str(best), "--split", "test_unseen", "--no-report")
    assert [row.proba for row in read_predictions(made)] != probabilities(again), "of the other weights"


def test_a_prediction_that_lost_a_row_is_an_error_and_recorded_as_one(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_worker = attempts.run_worker

    def losing(place: Run, asked: AttemptRequest, **options: Any) -> AttemptOutcome:
        end = run_worker(place, asked, **options)
        [file] = asked.folder.raw_predictions.glob("*.csv")
        rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join(rows[:-1]), encoding="utf-8")
        return end

    run = tool.get_trained_run("concat_bert")
    monkeypatch.setattr(attempts, "run_worker", losing)
    assert tool.run_for_exit_code("predict", run.id) == 3
    assert "1 ids missing" in tool.errors and not [*run.reports.glob("*")]
    assert attempt_outcomes(run) == ["ok", "data"]


def test_annotations_that_change_meanwhile_get_no_score(tool: Tool, set_faults: SetFaults, tmp_path: Path) -> None:
    run, own, here = tool.get_trained_run("vilbert"), tool.with_world_copy("changing"), tmp_path / "here"
    changed = own.world.dataset / "annotations" / "test_unseen.jsonl"
    words = ("predict", run.id, "--split", "test_seen", "--split", changed.stem, "--no-report")
    set_faults({"at": "validation", "do": "wait", "once": str(here)})
    with user(own, *words, "-o", str(tmp_path / "out")) as somebody:
        somebody.waits_for(here.exists)
        changed.write_text(changed.read_text(encoding="utf-8").replace('"text": "', '"text": "no '), "utf-8")
        here.with_name("here.go").touch()
        assert somebody.gets_the_prompt_back() == 3, somebody.read
    assert "test_unseen.jsonl: changed while in use" in " ".join(somebody.read.split())
    assert [read_json(file)["split"] for file in (tmp_path / "out").glob("*.json")] == ["test_seen"]
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_two_runs_are_blended_and_labelled_by_the_threshold_that_is_best_in_validation(tool: Tool) -> None:
    runs = [tool.get_trained_run("vilbert", seed=seed, run=f"n{seed}") for seed in (1, 2)]
    words = ("n1", "n2", "--split", "test_unseen", "--ensemble", "mean", "--threshold", "best-accuracy")
    results = predict(tool, *words)
    assert [len(result["members"]) for result in results] == [1, 1, 2]
    first, second, blended = results

    annotations = tool.world.dataset / "annotations"
    for result in results:
        rows = read_annotations(annotations / "test_unseen.jsonl")
        assert predicted_ids(result) == [row.display_id for row in rows]
        assert result["annotations_sha256"] == sha256(annotations / "test_unseen.jsonl")
        beside = Path(result["csv"]).with_suffix(".metrics.json")
        record = json.loads(beside.read_text(encoding="utf-8"))
        told = {"csv": result["csv"], "report": result["report"], "created": format_utc_time(record["created"])}
        assert record | told == result
        assert Path(result["report"]) == Path(result["csv"]).with_suffix(".html")
        assert {"mmfw", "mmf", "torch", "python"} <= set(result["versions"])
    for result, run in zip(results, runs, strict=False):
        assert Path(result["csv"]).parent == run.reports
        assert result["members"][0]["checkpoint_sha256"] == sha256(run.checkpoints / "best.ckpt")
        assert (result["threshold"], result["threshold_from"]) == (0.5, "default")

    page = Path(blended["report"]).read_text(encoding="utf-8")
    assert all(run.id in page for run in runs)
    assert probabilities(blended) == blend("mean", [probabilities(first), probabilities(second)])
    val = [read_predictions(next(run.reports.glob("*_dev_unseen_*.csv"))) for run in runs]
    labels = [int(row.label or 0) for row in read_annotations(annotations / "dev_unseen.jsonl")]
    threshold = best_accuracy_threshold(labels, blend("mean", [[row.proba for row in member] for member in val]))
    assert (blended["threshold"], blended["threshold_from"]) == (threshold, "best accuracy on dev_unseen")
    predictions = read_predictions(Path(blended["csv"]))
    assert [row.label for row in predictions] == [int(row.proba > threshold) for row in predictions]
    assert [tool.get_run({"path": r["path"]}) for r in tool("runs")] == runs[::-1], "an ensemble is no run"

    assert tool.run_for_exit_code("predict", "n1", "--ensemble", "mean") == 2
    assert "at least two members" in tool.errors
    assert tool.run_for_exit_code("predict", "n1", "--split", "test") == 3
    assert "choose one of train, dev_seen, dev_unseen, test_seen, test_unseen" in tool.errors


def test_what_is_not_predicted_yet_or_wrong_is_predicted_as_the_hint_says(tool: Tool) -> None:
    run, _ = (tool.get_trained_run("vilbert", run=name) for name in "ab")
    report = ("report", "a", "--split", "test_seen")
    assert tool.run_for_exit_code(*report) == 2
    assert main(hinted(tool.errors)) == 0
    assert tool.run_for_exit_code(*report) == 0
    [csv] = run.path.glob("reports/*.csv")
    csv.write_text("id,proba,label\n", encoding="utf-8")
    tool.read_output()
    check = ["check-submission", str(csv), "--split", "test_seen", "--data-dir", str(tool.world.data)]
    assert main(check) == 3
    assert main(hinted(tool.read_output()[1])) == 0
    newest = max(run.path.glob("reports/*.csv"))
    assert newest != csv and main(["check-submission", str(newest), *check[2:]]) == 0


def hinted(errors: str) -> list[str]:
    """The words of the command that a hint names last."""
    return split_command(re.findall(r"mmfw (predict [^`\n]*)", errors)[-1])


def test_every_probability_is_that_of_mmfs_own_predict(tool: Tool) -> None:
    run = tool.train(tool.preset("vilbert"), "--updates", "2", "--seed", "1")
    trained = {file: sha256(file) for file in (*run.checkpoints.rglob("*"), run.log) if file.is_file()}
    results = predict(
        tool, *("--split", "test_unseen", "--split", "dev_unseen"), *("--checkpoint", "last", "--checkpoint", "best")
    )
    found = {file: sha256(file) for file in (*run.checkpoints.rglob("*"), run.log) if file.is_file()}
    assert found == trained, "also the log, to which a training may be writing"
    assert len(list(run.path.glob("attempts/*/log.txt"))) == len(results), "each prediction has its own"
    whose = [(r["split"], Path(r["members"][0]["checkpoint"]).name) for r in results]
    assert whose == [(s, c) for s in ("test_unseen", "dev_unseen") for c in ("current.ckpt", "best.ckpt")]
    ours = results[-1]
    own = predicted_by_mmf(tool, run.path, "dev_unseen")
    mine = read_predictions(Path(ours["csv"]))
    assert {row.id for row in own} == {row.id for row in mine}
    by_id = {row.id: row for row in own}
    assert [row.proba for row in mine] == pytest.approx([by_id[row.id].proba for row in mine], abs=1e-6)
    assert [row.label for row in mine] == [by_id[row.id].label for row in mine]
    for result in results:
        page = Path(result["report"]).read_text(encoding="utf-8")
        assert Path(result["csv"]).name in page and result["members"][0]["checkpoint_sha256"] in page


@requires_tool("gcc", exists_on_windows=False)
def test_a_folder_without_locks_is_named_before_anything_is_calculated(tool: Tool, tmp_path: Path) -> None:
    run, environment = tool.get_trained_run("vilbert"), preload_environment("no_locks.c", tmp_path)
    before = sorted(run.path.rglob("*"))
    places = ["--data-dir", str(tool.world.data), "--save-dir", str(tool.save_dir)]
    archive, new = hostile_archives.write_zip(tmp_path / "memes.zip", dataset_files()), tmp_path / "data"
    for folder, words in (
        (tool.save_dir, ["predict", run.id, *places]),
        (tool.save_dir, ["train", "--resume", run.id, "--updates", "2", *places]),
        (tool.save_dir, ["sweep", "run", str(tool.preset("text")), "--seeds", "1,2", *places]),
        (new, ["convert", "--zip", str(archive), "--data-dir", str(new)]),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mmf_win", *words],
            env={**environment, "NO_LOCKS": str(folder)},
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        assert done.returncode == 3, words
        assert f"error: {folder}" in done.stderr and "does not support locks" in done.stderr
        assert "--save-dir or MMF_SAVE_DIR" in done.stderr
    made = set(run.path.rglob("*")).difference(before)
    assert made <= {run.training_lock_file, run.usage_lock_file}
    assert {path.name for path in tool.save_dir.glob("sweeps/text/*/*")} <= {"lock"}, "no task has begun"
    shown = [sys.executable, "-m", "mmf_win", "runs", "show", run.id, *places[2:]]
    subprocess.run(shown, env={**environment, "NO_LOCKS": str(tool.save_dir)}, check=True)


@requires_tool("gcc", exists_on_windows=False)
def test_a_run_predicts_where_locks_are_those_of_nfs(tool: Tool, tmp_path: Path) -> None:
    run = tool.get_trained_run("vilbert")
    places = ["--data-dir", str(tool.world.data), "--save-dir", str(tool.save_dir)]
    done = subprocess.run(
        [sys.executable, "-m", "mmf_win", "predict", run.id, "--no-report", *places],
        env=preload_environment("nfs_locks.c", tmp_path),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert run.usage_lock_file.exists() and (tool.world.dataset / LOCK_NAME).exists()


@requires_tool("setpriv", exists_on_windows=False)
def test_a_checkpoint_of_a_run_that_may_only_be_read_predicts(tool: Tool) -> None:
    run, other = (tool.get_trained_run("vilbert", seed=seed, run=name) for seed, name in ((1, "a"), (2, "b")))
    places = ("--data-dir", tool.world.data, "--save-dir", tool.save_dir)
    other.path.chmod(0o555)
    done = run_unprivileged("predict", run.id, "--checkpoint", other.checkpoints / "best.ckpt", "--no-report", *places)
    other.path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert not other.usage_lock_file.exists()


# Prints the probability of a meme by a predictor: run, save dir, data folder, image and text.
ONE_MEME = """
import sys
from mmf_win import Predictor
run, save_dir, data_dir, image, text = sys.argv[1:]
with Predictor(run, save_dir=save_dir, data_dir=data_dir) as predictor:
    print(predictor.predict(image, text))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows mounts no folder read-only")
def test_a_run_and_data_that_may_only_be_read_predict_into_another_folder(tool: Tool) -> None:
    run, output = tool.get_trained_run("mmbt"), tool.folder / "elsewhere"
    run.usage_lock_file.unlink(missing_ok=True)
    both = [shlex.quote(str(folder)) for folder in (tool.save_dir, tool.world.data)]
    mounts = " && ".join(f"mount --bind {at} {at} && mount -o remount,bind,ro {at}" for at in both)
    row = read_annotations(tool.world.dataset / "annotations" / "test_unseen.jsonl")[0]
    places = [str(tool.save_dir), str(tool.world.data)]
    words = ["predict", run.id, "-o", str(output), "--split", "test_unseen"]
    words += ["--save-dir", places[0], "--data-dir", places[1]]
    image = str(tool.world.dataset / "images" / row.img)
    for command in (["-m", "mmf_win", *words], ["-c", ONE_MEME, run.id, *places, image, row.text]):
        done = subprocess.run(
            [*private_mounts_command(mounts), sys.executable, *command],
            env={**os.environ, "PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stderr
    [csv] = output.glob("*.csv")
    assert read_predictions(csv)[0].proba == pytest.approx(float(done.stdout), abs=1e-6)
    assert csv.with_suffix(".html").exists() and not run.usage_lock_file.exists()


def predicted_by_mmf(tool: Tool, run: Path, split: str) -> list[Prediction]:
    reports = tool.folder / "by mmf itself"
    reports.mkdir()
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "_mmf_predict.py", run, split, reports],
        cwd=ROOT,
        env={**os.environ, **tool.world.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [csv] = reports.glob("*.csv")
    return read_predictions(csv)

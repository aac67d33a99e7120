"""Predictions of several splits, runs and checkpoints, with ensembles and thresholds, compared with those of MMF."""

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
from tests.endtoend.conftest import SetFaults, Tool, attempt_outcomes, predicted_ids, probabilities, start_command
from tests.worlds import hostile_archives
from tests.worlds.memes import dataset_files
from tests.worlds.mounts import private_mounts_command
from tests.worlds.tools import preload_environment, requires_tool, run_unprivileged, split_command

ROOT = Path(__file__).parents[2]


def run_predict(tool: Tool, *arguments: str) -> list[dict[str, Any]]:
    """Return the objects that ``mmfw predict --json`` prints, one for each prediction file."""
    assert tool.run_for_exit_code("predict", *arguments, "--json") == 0, tool.errors
    return [json.loads(line) for line in tool.output.splitlines()]


def compute_sha256(path: Path | str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_weights_replaced_during_prediction_do_not_get_its_score(
    tool: Tool, set_faults: SetFaults, tmp_path: Path
) -> None:
    run, other_run = tool.get_trained_run("vilbert"), tool.get_trained_run("vilbert", seed=2, run="other")
    best, paused = run.checkpoints / "best.ckpt", tmp_path / "here"
    arguments = ("predict", run.id, "--split", "test_seen", "--split", "test_unseen", "--no-report")
    weights = compute_sha256(best)
    set_faults({"at": "validation", "do": "wait", "once": str(paused)})
    with start_command(tool, *arguments, "--threshold", "best-accuracy") as command:
        command.wait_until(paused.exists)
        link_or_copy(other_run.checkpoints / "best.ckpt", best)  # as training does
        paused.with_name("here.go").touch()
        assert command.wait_for_exit() == 0, command.output
    assert compute_sha256(best) != weights and not run.pins.exists()
    records = [read_json(file) for file in run.reports.glob("*.metrics.json")]
    assert {record["split"] for record in records} == {"test_seen", "test_unseen"}
    assert {record["members"][0]["checkpoint_sha256"] for record in records} == {weights}
    [csv] = run.reports.glob("*_test_unseen_*.csv")
    tool.read_output()  # discard the output
    [result] = run_predict(tool, "--checkpoint", str(best), "--split", "test_unseen", "--no-report")
    assert [row.proba for row in read_predictions(csv)] != probabilities(result), "the weights must differ"


def test_prediction_with_missing_row_is_recorded_as_error(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    run_worker = attempts.run_worker

    def run_worker_and_drop_row(worker_run: Run, request: AttemptRequest, **options: Any) -> AttemptOutcome:
        outcome = run_worker(worker_run, request, **options)
        [file] = request.folder.raw_predictions.glob("*.csv")
        rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join(rows[:-1]), encoding="utf-8")
        return outcome

    run = tool.get_trained_run("concat_bert")
    monkeypatch.setattr(attempts, "run_worker", run_worker_and_drop_row)
    assert tool.run_for_exit_code("predict", run.id) == 3
    assert "1 ids missing" in tool.errors and not [*run.reports.glob("*")]
    assert attempt_outcomes(run) == ["ok", "data"]


def test_annotations_changed_during_prediction_get_no_score(tool: Tool, set_faults: SetFaults, tmp_path: Path) -> None:
    run, changing_tool, paused = tool.get_trained_run("vilbert"), tool.with_world_copy("changing"), tmp_path / "here"
    annotations = changing_tool.world.dataset / "annotations" / "test_unseen.jsonl"
    arguments = ("predict", run.id, "--split", "test_seen", "--split", annotations.stem, "--no-report")
    set_faults({"at": "validation", "do": "wait", "once": str(paused)})
    with start_command(changing_tool, *arguments, "-o", str(tmp_path / "out")) as command:
        command.wait_until(paused.exists)
        annotations.write_text(annotations.read_text(encoding="utf-8").replace('"text": "', '"text": "no '), "utf-8")
        paused.with_name("here.go").touch()
        assert command.wait_for_exit() == 3, command.output
    assert "test_unseen.jsonl: changed while in use" in " ".join(command.output.split())
    assert [read_json(file)["split"] for file in (tmp_path / "out").glob("*.json")] == ["test_seen"]
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_two_runs_are_blended_and_labelled_with_best_validation_threshold(tool: Tool) -> None:
    runs = [tool.get_trained_run("vilbert", seed=seed, run=f"n{seed}") for seed in (1, 2)]
    arguments = ("n1", "n2", "--split", "test_unseen", "--ensemble", "mean", "--threshold", "best-accuracy")
    results = run_predict(tool, *arguments)
    assert [len(result["members"]) for result in results] == [1, 1, 2]
    first, second, blended = results

    annotations = tool.world.dataset / "annotations"
    for result in results:
        rows = read_annotations(annotations / "test_unseen.jsonl")
        assert predicted_ids(result) == [row.display_id for row in rows]
        assert result["annotations_sha256"] == compute_sha256(annotations / "test_unseen.jsonl")
        metrics_file = Path(result["csv"]).with_suffix(".metrics.json")
        record = json.loads(metrics_file.read_text(encoding="utf-8"))
        output_fields = {
            "csv": result["csv"],
            "report": result["report"],
            "created": format_utc_time(record["created"]),
        }
        assert record | output_fields == result
        assert Path(result["report"]) == Path(result["csv"]).with_suffix(".html")
        assert {"mmfw", "mmf", "torch", "python"} <= set(result["versions"])
    for result, run in zip(results, runs, strict=False):
        assert Path(result["csv"]).parent == run.reports
        assert result["members"][0]["checkpoint_sha256"] == compute_sha256(run.checkpoints / "best.ckpt")
        assert (result["threshold"], result["threshold_from"]) == (0.5, "default")

    page = Path(blended["report"]).read_text(encoding="utf-8")
    assert all(run.id in page for run in runs)
    assert probabilities(blended) == blend("mean", [probabilities(first), probabilities(second)])
    validation_predictions = [read_predictions(next(run.reports.glob("*_dev_unseen_*.csv"))) for run in runs]
    labels = [int(row.label or 0) for row in read_annotations(annotations / "dev_unseen.jsonl")]
    threshold = best_accuracy_threshold(
        labels, blend("mean", [[row.proba for row in member] for member in validation_predictions])
    )
    assert (blended["threshold"], blended["threshold_from"]) == (threshold, "best accuracy on dev_unseen")
    predictions = read_predictions(Path(blended["csv"]))
    assert [row.label for row in predictions] == [int(row.proba > threshold) for row in predictions]
    assert [tool.get_run({"path": r["path"]}) for r in tool("runs")] == runs[::-1], "no ensemble may be listed"

    assert tool.run_for_exit_code("predict", "n1", "--ensemble", "mean") == 2
    assert "at least two members" in tool.errors
    assert tool.run_for_exit_code("predict", "n1", "--split", "test") == 3
    assert "choose one of train, dev_seen, dev_unseen, test_seen, test_unseen" in tool.errors


def test_missing_or_invalid_prediction_is_created_by_hinted_command(tool: Tool) -> None:
    run, _ = (tool.get_trained_run("vilbert", run=name) for name in "ab")
    report_arguments = ("report", "a", "--split", "test_seen")
    assert tool.run_for_exit_code(*report_arguments) == 2
    assert main(read_hinted_command(tool.errors)) == 0
    assert tool.run_for_exit_code(*report_arguments) == 0
    [csv] = run.path.glob("reports/*.csv")
    csv.write_text("id,proba,label\n", encoding="utf-8")
    tool.read_output()
    check = ["check-submission", str(csv), "--split", "test_seen", "--data-dir", str(tool.world.data)]
    assert main(check) == 3
    assert main(read_hinted_command(tool.read_output()[1])) == 0
    newest = max(run.path.glob("reports/*.csv"))
    assert newest != csv and main(["check-submission", str(newest), *check[2:]]) == 0


def read_hinted_command(errors: str) -> list[str]:
    """Return the arguments of the last command in hints."""
    return split_command(re.findall(r"mmfw (predict [^`\n]*)", errors)[-1])


def test_probabilities_equal_those_of_mmf_predict(tool: Tool) -> None:
    run = tool.train(tool.write_preset("vilbert"), "--updates", "2", "--seed", "1")
    hashes_before = {file: compute_sha256(file) for file in (*run.checkpoints.rglob("*"), run.log) if file.is_file()}
    results = run_predict(
        tool, *("--split", "test_unseen", "--split", "dev_unseen"), *("--checkpoint", "last", "--checkpoint", "best")
    )
    hashes_after = {file: compute_sha256(file) for file in (*run.checkpoints.rglob("*"), run.log) if file.is_file()}
    assert hashes_after == hashes_before, "no prediction may change files of a training"
    assert len(list(run.path.glob("attempts/*/log.txt"))) == len(results), "each prediction must have its own log"
    sources = [(r["split"], Path(r["members"][0]["checkpoint"]).name) for r in results]
    assert sources == [(s, c) for s in ("test_unseen", "dev_unseen") for c in ("current.ckpt", "best.ckpt")]
    last_result = results[-1]
    mmf_rows = predict_with_mmf(tool, run.path, "dev_unseen")
    rows = read_predictions(Path(last_result["csv"]))
    assert {row.id for row in mmf_rows} == {row.id for row in rows}
    mmf_row_by_id = {row.id: row for row in mmf_rows}
    assert [row.proba for row in rows] == pytest.approx([mmf_row_by_id[row.id].proba for row in rows], abs=1e-6)
    assert [row.label for row in rows] == [mmf_row_by_id[row.id].label for row in rows]
    for result in results:
        page = Path(result["report"]).read_text(encoding="utf-8")
        assert Path(result["csv"]).name in page and result["members"][0]["checkpoint_sha256"] in page


@requires_tool("gcc", exists_on_windows=False)
def test_folder_without_lock_support_is_named_before_any_work(tool: Tool, tmp_path: Path) -> None:
    run, environment = tool.get_trained_run("vilbert"), preload_environment("no_locks.c", tmp_path)
    paths_before = sorted(run.path.rglob("*"))
    folder_options = ["--data-dir", str(tool.world.data), "--save-dir", str(tool.save_dir)]
    archive, new_data_dir = hostile_archives.write_zip(tmp_path / "memes.zip", dataset_files()), tmp_path / "data"
    for folder, arguments in (
        (tool.save_dir, ["predict", run.id, *folder_options]),
        (tool.save_dir, ["train", "--resume", run.id, "--updates", "2", *folder_options]),
        (tool.save_dir, ["sweep", "run", str(tool.write_preset("text")), "--seeds", "1,2", *folder_options]),
        (new_data_dir, ["convert", "--zip", str(archive), "--data-dir", str(new_data_dir)]),
    ):
        process = subprocess.run(
            [sys.executable, "-m", "mmf_win", *arguments],
            env={**environment, "NO_LOCKS": str(folder)},
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        assert process.returncode == 3, arguments
        assert f"error: {folder}" in process.stderr and "does not support locks" in process.stderr
        assert "--save-dir or MMF_SAVE_DIR" in process.stderr
    created = set(run.path.rglob("*")).difference(paths_before)
    assert created <= {run.training_lock_file, run.usage_lock_file}
    assert {path.name for path in tool.save_dir.glob("sweeps/text/*/*")} <= {"lock"}, "no task may start"
    show_command = [sys.executable, "-m", "mmf_win", "runs", "show", run.id, *folder_options[2:]]
    subprocess.run(show_command, env={**environment, "NO_LOCKS": str(tool.save_dir)}, check=True)


@requires_tool("gcc", exists_on_windows=False)
def test_run_predicts_with_nfs_locks(tool: Tool, tmp_path: Path) -> None:
    run = tool.get_trained_run("vilbert")
    folder_options = ["--data-dir", str(tool.world.data), "--save-dir", str(tool.save_dir)]
    process = subprocess.run(
        [sys.executable, "-m", "mmf_win", "predict", run.id, "--no-report", *folder_options],
        env=preload_environment("nfs_locks.c", tmp_path),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stderr
    assert run.usage_lock_file.exists() and (tool.world.dataset / LOCK_NAME).exists()


@requires_tool("setpriv", exists_on_windows=False)
def test_checkpoint_of_read_only_run_predicts(tool: Tool) -> None:
    run, read_only_run = (tool.get_trained_run("vilbert", seed=seed, run=name) for seed, name in ((1, "a"), (2, "b")))
    folder_options = ("--data-dir", tool.world.data, "--save-dir", tool.save_dir)
    read_only_run.path.chmod(0o555)
    process = run_unprivileged(
        "predict", run.id, "--checkpoint", read_only_run.checkpoints / "best.ckpt", "--no-report", *folder_options
    )
    read_only_run.path.chmod(0o755)
    assert process.returncode == 0, process.stderr
    assert not read_only_run.usage_lock_file.exists()


# Prints the probability of a meme; the arguments are run, save dir, data dir, image and text.
PREDICT_ONE_MEME = """
import sys
from mmf_win import Predictor
run, save_dir, data_dir, image, text = sys.argv[1:]
with Predictor(run, save_dir=save_dir, data_dir=data_dir) as predictor:
    print(predictor.predict(image, text))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows mounts no folder read-only")
def test_read_only_run_and_data_predict_into_another_folder(tool: Tool) -> None:
    run, output = tool.get_trained_run("mmbt"), tool.folder / "elsewhere"
    run.usage_lock_file.unlink(missing_ok=True)
    read_only_dirs = [shlex.quote(str(folder)) for folder in (tool.save_dir, tool.world.data)]
    mounts = " && ".join(
        f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}" for folder in read_only_dirs
    )
    row = read_annotations(tool.world.dataset / "annotations" / "test_unseen.jsonl")[0]
    folders = [str(tool.save_dir), str(tool.world.data)]
    arguments = ["predict", run.id, "-o", str(output), "--split", "test_unseen"]
    arguments += ["--save-dir", folders[0], "--data-dir", folders[1]]
    image = str(tool.world.dataset / "images" / row.img)
    for command in (["-m", "mmf_win", *arguments], ["-c", PREDICT_ONE_MEME, run.id, *folders, image, row.text]):
        process = subprocess.run(
            [*private_mounts_command(mounts), sys.executable, *command],
            env={**os.environ, "PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
        )
        assert process.returncode == 0, process.stderr
    [csv] = output.glob("*.csv")
    assert read_predictions(csv)[0].proba == pytest.approx(float(process.stdout), abs=1e-6)
    assert csv.with_suffix(".html").exists() and not run.usage_lock_file.exists()


def predict_with_mmf(tool: Tool, run: Path, split: str) -> list[Prediction]:
    reports = tool.folder / "by mmf itself"
    reports.mkdir()
    process = subprocess.run(
        [sys.executable, ROOT / "scripts" / "_mmf_predict.py", run, split, reports],
        cwd=ROOT,
        env={**os.environ, **tool.world.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stdout + process.stderr
    [csv] = reports.glob("*.csv")
    return read_predictions(csv)

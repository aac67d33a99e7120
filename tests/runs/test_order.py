"""Order of runs and predictions, independent of their names."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from mmf_win.errors import DataError
from mmf_win.files import write_json
from mmf_win.runs import history, lookup
from mmf_win.runs.folder import PARAMETERS_FILE, SPECIFICATION_FILE, Run
from mmf_win.runs.request import RunRequest
from mmf_win.runs.scores import read_scores
from tests.worlds.memes import RUN_SPLITS
from tests.worlds.tools import MmfwRunner

OCTOBER_25 = 1_792_886_400.0
"""2026-10-25T00:00:00 in UTC; an hour later, clocks in Europe are set back from 3 to 2."""
HOUR = 3600.0


def make_run(save: Path, run_id: str, created: float) -> Run:
    """Create a run in a folder with any name."""
    run = Run(save / run_id)
    run.path.mkdir(parents=True)
    request = RunRequest(preset="mmbt", model="mmbt", splits=RUN_SPLITS, data_dir="data", created=created)
    run.save_request(request)
    return run


def remove_creation_time(run: Run, modified: float, **changes: object) -> None:
    """Remove the creation time from the request of a run and set its modification time."""
    values = json.loads(run.request_file.read_bytes())
    del values["created"]
    run.request_file.write_text(json.dumps({**values, **changes}), encoding="utf-8")
    os.utime(run.request_file, (modified, modified))


@pytest.mark.parametrize(
    ("older_name", "newer_name"),
    [
        pytest.param("a/2026-10-25T09-00-00", "a/2026-10-25T00-00-00", id="Tokyo and UTC"),
        pytest.param("a/2026-10-25T02-30-00", "a/2026-10-25T02-00-00", id="the repeated hour"),
        pytest.param("a/2026-10-25T02-00-00", "a/2025-the good one", id="a renamed folder"),
        pytest.param("a/2099-01-01T00-00-00", "b/2026-10-25T02-00-00", id="copied under another name"),
    ],
)
def test_run_created_last_is_newest(tmp_path: Path, mmfw: MmfwRunner, older_name: str, newer_name: str) -> None:
    older, newer = make_run(tmp_path, older_name, OCTOBER_25), make_run(tmp_path, newer_name, OCTOBER_25 + HOUR / 2)
    assert lookup.list_runs(tmp_path) == [newer, older]
    assert lookup.find_run(tmp_path, None) == newer
    assert [summary.id for summary in history.summarize_runs(tmp_path)] == [newer.id, older.id]
    assert [summary.id for summary in history.summarize_runs(tmp_path, limit=1)] == [newer.id]
    if older_name[:2] == newer_name[:2]:
        assert lookup.find_run(tmp_path, "a") == newer


def test_runs_in_two_time_zones_are_ordered_by_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(time, "tzset"):
        pytest.skip("Windows has one time zone for all processes")
    runs = []
    try:
        for zone in ("UTC-9", "UTC"):  # UTC-9 is Tokyo's zone in POSIX notation
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            run = Run.create(tmp_path, "a")
            run.save_request(RunRequest(preset="mmbt", model="mmbt", splits=RUN_SPLITS, data_dir="data"))
            runs.append(run)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert runs[0].path.name > runs[1].path.name
    assert lookup.list_runs(tmp_path) == runs[::-1]


@pytest.mark.parametrize(
    "created", [{}, *({"created": time_value} for time_value in ("yesterday", -1, 1e300, 10**400))]
)
def test_invalid_creation_time_falls_back_to_modification_time_with_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, created: dict[str, object]
) -> None:
    oldest, newest = make_run(tmp_path, "a/1", OCTOBER_25), make_run(tmp_path, "a/2", OCTOBER_25 + 2 * HOUR)
    between = make_run(tmp_path, "a/3", 0.0)
    remove_creation_time(between, OCTOBER_25 + HOUR, **created)
    assert lookup.list_runs(tmp_path) == [newest, between, oldest]
    assert lookup.find_first_usable_run(tmp_path, "a/3", lambda run: run) == between
    assert f"{between.request_file}: no creation time" in caplog.text
    if not created:
        assert between.request().created == OCTOBER_25 + HOUR


def test_creation_time_in_the_future_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_run(tmp_path, "a/now", time.time())
    future_run = make_run(tmp_path, "a/ahead", time.time() + HOUR)
    assert lookup.find_run(tmp_path, None) == future_run
    assert f"run {future_run.id} was created in the future" in caplog.text
    caplog.clear()
    assert lookup.find_run(tmp_path, "a/now") and not caplog.text


def test_newest_prediction_is_the_one_created_last(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a/1", OCTOBER_25)
    run.reports.mkdir()
    for stamp, created in (("2026-10-25T02-30-00", 0.0), ("2026-10-25T02-00-00", HOUR / 2)):
        csv = run.reports / f"hateful_memes_a_test_seen_{stamp}.csv"
        csv.touch()
        record = {"split": "test_seen", "rows": 2, "full_rows": 2, "auroc": 0.5, "members": [{}]}
        write_json(csv.with_suffix(".metrics.json"), {**record, "created": OCTOBER_25 + created})
    newest, older = read_scores(run, []).predictions
    assert (newest.csv.stem[-8:], older.csv.stem[-8:]) == ("02-00-00", "02-30-00")
    assert read_scores(run, []).newest_by_split["test_seen"] == newest


def test_invalid_request_files_do_not_hide_other_runs(tmp_path: Path) -> None:
    intact_run = make_run(tmp_path, "a/1", time.time())
    for number, content in enumerate(('["x"]', '"x"', "[" * 100_000, "")):
        damaged_run = make_run(tmp_path, f"b/{number}", 0.0)
        damaged_run.request_file.write_text(content, encoding="utf-8")
        os.utime(damaged_run.request_file, (0, 0))
        with pytest.raises(DataError):
            damaged_run.request()
    assert lookup.find_run(tmp_path, None) == intact_run
    assert [summary.state for summary in history.summarize_runs(tmp_path)] == ["killed", *["unreadable"] * 4]


def test_runs_of_sweep_are_found_by_name_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / SPECIFICATION_FILE).touch()
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / PARAMETERS_FILE).touch()
    older, newer = make_run(tmp_path / "task", "p/2", OCTOBER_25), make_run(tmp_path / "task", "p/1", OCTOBER_25 + 1)
    assert lookup.find_run(tmp_path, None) == lookup.find_run(tmp_path, "p") == newer
    assert lookup.find_run(tmp_path, "p/2") == lookup.find_run(tmp_path, older.id) == older

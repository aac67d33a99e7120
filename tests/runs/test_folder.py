"""Names in a run's folder that several processes reserve concurrently."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win import paths
from mmf_win.paths import create_timestamped_dir
from mmf_win.runs.folder import Run
from tests.worlds import concurrent_processes

ROUNDS = 10
STAMP = "2026-01-01T00-00-00"


def reserve_prediction_names(folder: Path) -> list[str]:
    """Reserve names of predictions within one second; in every other round, all processes hold theirs at once."""
    paths.timestamp = lambda when=None: STAMP
    run = Run(folder)
    names = []
    for round_number in range(ROUNDS):
        concurrent_processes.wait_at_barrier()
        attempt = run.create_attempt()
        attempt.request_file.write_text("{}", encoding="utf-8")
        with run.reserve_prediction_file("test_seen") as csv:
            if round_number % 2:
                concurrent_processes.wait_at_barrier()
            assert not csv.exists()
            csv.write_text(attempt.path.name, encoding="utf-8")
        names += [attempt.path.name, csv.name]
    return names


def create_run_folders(folder: Path) -> list[str]:
    """Create run folders within one second."""
    paths.timestamp = lambda when=None: STAMP
    names = []
    for _ in range(ROUNDS):
        concurrent_processes.wait_at_barrier()
        names.append(create_timestamped_dir(folder / "demo").name)
    return names


def test_concurrent_predictions_get_different_names(user_dir: Path) -> None:
    names = concurrent_processes.run_concurrently(reserve_prediction_names, user_dir)
    assert len(set(names)) == len(names) == 2 * ROUNDS * concurrent_processes.PROCESS_COUNT
    run = Run(user_dir)
    csvs = sorted(path for path in run.reports.iterdir())
    assert [path.suffix for path in csvs] == [".csv"] * ROUNDS * concurrent_processes.PROCESS_COUNT, (
        "no other files may be left"
    )
    assert len({path.read_text(encoding="utf-8") for path in csvs}) == len(csvs)


def test_concurrent_run_folders_get_different_names(user_dir: Path) -> None:
    names = concurrent_processes.run_concurrently(create_run_folders, user_dir)
    assert len(set(names)) == len(names) == ROUNDS * concurrent_processes.PROCESS_COUNT


def test_failed_prediction_leaves_no_files(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(ValueError, match="diverged"), run.reserve_prediction_file("test_seen"):
        assert list(run.reports.glob("*.csv")) == [], "a reserved name must not look like a prediction"
        raise ValueError("diverged")
    assert list(run.reports.iterdir()) == []

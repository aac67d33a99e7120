"""Finding the run that a folder or file belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.errors import RunNotFoundError
from mmf_win.runs.folder import Run
from mmf_win.runs.lookup import find_run, find_run_containing

REPORT = "reports/test.csv"


@pytest.mark.parametrize("name", ["mmbt", "attempts"])
@pytest.mark.parametrize("file", [REPORT, "attempts/1/raw/test.csv", "attempts/1/test.csv"])
def test_file_in_attempt_folder_belongs_to_run(tmp_path: Path, name: str, file: str) -> None:
    run = Run(tmp_path / name / "2026-01-01T00-00-00")
    for folder in (run.path, run.path / "attempts" / "1"):
        folder.mkdir(parents=True)
        (folder / "request.json").write_text("{}", encoding="utf-8")
    assert find_run_containing(run.path / file) == run
    assert find_run_containing(tmp_path / REPORT) is None


def test_attempt_folder_is_not_a_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "mmbt" / "2026-01-01T00-00-00")
    run.path.mkdir(parents=True)
    run.request_file.write_text("{}", encoding="utf-8")
    attempt = run.create_attempt()
    attempt.request_file.write_text("{}", encoding="utf-8")
    assert find_run(tmp_path, str(run.path)) == run
    with pytest.raises(RunNotFoundError):
        find_run(tmp_path, str(attempt.path))

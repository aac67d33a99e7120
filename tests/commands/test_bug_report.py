"""``mmfw doctor --report``: the contents of the zip, and secrets that must not be in it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from mmf_win.paths import MmfPaths
from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from mmf_win.runs.folder import Run
from tests.worlds.event_log import EventLog
from tests.worlds.memes import RUN_SPLITS
from tests.worlds.run_requests import make_run_request
from tests.worlds.tools import MmfwRunner

SECRETS = ("hunter2 \"'2", "hf_hunter3hunter3", "hunter4")


@pytest.fixture
def run(empty_paths: MmfPaths, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Make a failed run with secrets in all its files."""
    monkeypatch.chdir(user_dir)
    monkeypatch.setenv("MMFW_PASSWORD", SECRETS[0])
    monkeypatch.setenv("HF_TOKEN", SECRETS[1])
    run = Run.create(empty_paths.save_dir, "mmbt_grid")
    overrides = [f"training.tracker.api_key={SECRETS[2]}", "training.max_updates=3"]
    run.save_request(make_run_request(model="mmbt", splits=RUN_SPLITS, overrides=overrides))
    attempt = run.create_attempt()
    AttemptRequest(TrainTask(), "mmbt", "mmf", str(attempt.path)).save()
    attempt.config.write_text(f"training: {{tracker: {{api_key: {SECRETS[2]}}}}}\n", encoding="utf-8")
    EventLog(run.events, "1").write("note", text=f"password: {SECRETS[0]}")
    AttemptOutcome("internal", f"KeyError: {SECRETS[1]!r}", source_location=f"{Path.home() / 'x.py'}:3").save(
        attempt.outcome_file
    )
    log = [f"opts=['training.tracker.api_key={SECRETS[2]}']", f"Using {SECRETS[1]}"]
    log += [f"'training.tracker.api_key', '{SECRETS[2]}'", f"Overriding option x.api_key to {SECRETS[2]}"]
    run.log.write_text("\r\n".join([*log, "gnp.\u202eexe\x1b[2J", "Traceback\n"]), encoding="utf-8")
    run.reports.mkdir()
    (run.reports / "own.csv").write_text("", encoding="utf-8")
    return run


def read_report(mmfw: MmfwRunner, *arguments: str) -> dict[str, bytes]:
    target = Path(f"report-{len(list(Path().iterdir()))}.zip")
    result = mmfw.json("doctor", "--report", target, *arguments)
    assert result["report"] == str(target.absolute())
    with zipfile.ZipFile(result["report"]) as archive:
        assert archive.namelist() == result["files"]
        return {name: archive.read(name) for name in result["files"]}


def test_report_contains_no_secret(run: Run, mmfw: MmfwRunner) -> None:
    members = read_report(mmfw, "--run", run.id, "--log")
    assert not set(b"".join(members.values()).decode()) & set("\u202e\x1b")
    for secret in (*SECRETS, "hunter", str(Path.home())):
        for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]):
            for name, content in members.items():
                assert form == "/" or form.encode() not in content, (name, form)


def test_report_has_diagnostics_and_logs_only_on_request(run: Run, mmfw: MmfwRunner) -> None:
    members = read_report(mmfw)
    assert set(members) == {
        "doctor.json",
        *(f"run/{name}" for name in ("request.json", "events.jsonl")),
        *(f"run/attempts/1/{name}" for name in ("request.json", "mmf.yaml", "exit.json")),
    }
    assert json.loads(members["doctor.json"])["versions"]["mmfw"]
    request = json.loads(members["run/request.json"])
    assert request["settings"]["training"] == {"tracker": {"api_key": "<secret>"}, "max_updates": 3}
    assert json.loads(members["run/attempts/1/exit.json"])["message"] == "KeyError: '<secret>'"
    assert read_report(mmfw, "--log")["run/log.txt"].splitlines()[-1] == b"Traceback"


def test_only_the_end_of_a_long_log_is_included(run: Run, mmfw: MmfwRunner) -> None:
    with run.log.open("a", encoding="utf-8") as log:
        log.writelines(f"update {n}\n" for n in range(100_000))
    lines = read_report(mmfw, "--log")["run/log.txt"].decode().splitlines()
    assert lines[-1] == "update 99999"
    assert len(lines) < 100_000 and lines[0].startswith("update ")


def test_existing_file_is_kept_and_an_unreadable_run_is_reported(run: Run, mmfw: MmfwRunner) -> None:
    mmfw("doctor", "--report", "bug.zip")
    assert mmfw.out.strip() == str(Path("bug.zip").absolute())
    assert f"5 files of run {run.id}" in mmfw.err
    before = Path("bug.zip").read_bytes()
    run.request_file.write_text("{", encoding="utf-8")
    mmfw("doctor", "--report", "bug.zip", code=2)
    assert "bug.zip: already exists" in mmfw.err and Path("bug.zip").read_bytes() == before
    mmfw("doctor", "--report", "other.zip")
    assert sorted(path.name for path in Path().glob("*.zip")) == ["bug.zip", "other.zip"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--report", "missing/bug.zip"), "missing: folder not found"),
        (("--log",), "--run and --log require --report"),
        (("--run", "mmbt_grid"), "--run and --log require --report"),
        (("--compat", "--report", "bug.zip"), "--report and --compat cannot be combined"),
    ],
)
def test_invalid_report_options_are_usage_errors(
    run: Run, mmfw: MmfwRunner, arguments: tuple[str, ...], message: str
) -> None:
    mmfw("doctor", *arguments, code=2)
    assert message in mmfw.err
    assert not list(Path().rglob("*.zip*"))


def test_report_without_runs_describes_the_machine(
    empty_paths: MmfPaths, user_dir: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    monkeypatch.chdir(user_dir)
    assert set(read_report(mmfw)) == {"doctor.json"}
    mmfw("doctor", "--report", "bug.zip", "--run", "no-such-run", code=2)


@pytest.mark.parametrize("arguments", [(), ("mmbt_grid", "--log"), ("--help",)])
def test_removed_command_names_its_replacement(mmfw: MmfwRunner, arguments: tuple[str, ...]) -> None:
    mmfw("bug-report", *arguments, code=2)
    assert mmfw.err == "error: `mmfw bug-report` was replaced by `mmfw doctor --report FILE.zip`\n"
    mmfw("--help")
    assert "bug-report" not in mmfw.out

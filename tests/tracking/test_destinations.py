"""Destinations set by the environment: invalid ones are rejected, local ones are reported as such."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmf_win.tracking.mlflow_tracker import MLflowTracker
from mmf_win.tracking.tracker import retry_advice
from mmf_win.tracking.upload import load_upload_states
from tests.tracking.conftest import run_follower
from tests.tracking.test_wandb import list_folders
from tests.worlds.mlflow_server import requires_mlflow_server
from tests.worlds.report_world import ReportWorld
from tests.worlds.tools import MmfwRunner, requires_package

pytestmark = pytest.mark.wide
requires_wandb, requires_clearml = requires_package("wandb"), requires_package("clearml")
requires_mlflow = requires_package("mlflow")


@pytest.fixture(autouse=True)
def mmfw_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home without settings of trackers, which is also the current directory."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("HOME", "USERPROFILE", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("CLEARML_CONFIG_FILE", str(folder / "clearml.conf"))
    return folder


def push(world: ReportWorld, *arguments: object, code: int = 0) -> tuple[Any, str]:
    """Run ``mmfw track push`` in a separate process; return its result and its messages."""
    command = [sys.executable, "-m", "mmf_win", "track", "push", *map(str, arguments), "--json"]
    process = subprocess.run(
        [*command, "--save-dir", str(world.save)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.returncode == code and "Traceback" not in process.stderr, process.stderr
    return json.loads(process.stdout) if code == 0 else None, process.stderr


@requires_wandb
@pytest.mark.parametrize("source", ["WANDB_MODE=offline", "WANDB_MODE=dryrun", "wandb/settings", "settings"])
def test_offline_run_is_stored_in_a_folder_and_reported(
    world: ReportWorld, mmfw_home: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.add_run()
    if "=" in source:
        monkeypatch.setenv(*source.split("="))
    else:
        (mmfw_home / source).parent.mkdir(exist_ok=True)
        (mmfw_home / source).write_text("[default]\nmode = offline\n", encoding="utf-8")
    [pushed], messages = push(world, "--to", "wandb")
    [sent] = load_upload_states(run)
    assert pushed["upload"] == sent.upload == sent.address.split()[0] == "offline"
    assert sent.link == str(run.tracking) and len(list_folders(run)) == 1
    assert "W&B is offline; run `wandb sync" in messages


@requires_wandb
@pytest.mark.parametrize("source", ["WANDB_MODE=disabled", "wandb/settings"])
def test_nothing_is_recorded_as_sent_if_wandb_is_disabled(
    world: ReportWorld, mmfw_home: Path, source: str, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    run = world.add_run()
    if "=" in source:
        monkeypatch.setenv(*source.split("="))
    else:
        (mmfw_home / source).parent.mkdir()
        (mmfw_home / source).write_text("[default]\nmode = disabled\n", encoding="utf-8")
    _, messages = push(world, "--to", "wandb", code=2)
    assert "nothing is uploaded" in messages and "WANDB_MODE=online" in messages
    assert load_upload_states(run) == [] and not run.tracking.exists()
    assert run_follower("wandb", run).returncode == 3
    assert all(not sent.events and sent.id is None for sent in load_upload_states(run)), (
        "a follower must not record data as sent either"
    )
    mmfw("train", "mmbt_grid", "--data-dir", world.data / "none", "--track", "wandb", code=3)
    assert "nothing is uploaded" in mmfw.err and "no Hateful Memes dataset" in mmfw.err, (
        "the training must start anyway"
    )


@requires_clearml
def test_offline_clearml_is_reported(world: ReportWorld, mmfw_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = world.add_run()
    monkeypatch.setenv("CLEARML_OFFLINE_MODE", "1")
    monkeypatch.setenv("CLEARML_CACHE_DIR", str(mmfw_home))
    [pushed], messages = push(world, "--to", "clearml")
    [sent] = load_upload_states(run)
    assert pushed["upload"] == sent.upload == "offline" and Path(pushed["link"]).parent == mmfw_home / "offline"
    assert "import_offline_session" in messages


@requires_mlflow
@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
def test_local_store_is_reported_and_differs_per_folder(
    world: ReportWorld, mmfw_home: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy")
    run = world.add_run()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}:///mlflow.db")
    [pushed], messages = push(world, "--to", "mlflow")
    assert pushed["upload"] == "local" and "a store on this machine" in messages
    assert str(mmfw_home / "mlflow.db") in messages and (mmfw_home / "mlflow.db").is_file()
    assert not push(world, "--to", "mlflow")[0][0]["new"]
    (mmfw_home / "other").mkdir()
    monkeypatch.chdir(mmfw_home / "other")
    assert push(world, "--to", "mlflow")[0][0]["new"] and (mmfw_home / "other" / "mlflow.db").is_file()
    assert len(load_upload_states(run)) == 2


@requires_mlflow_server
def test_server_is_reported_and_rejected_host_name_names_the_option(
    world: ReportWorld, server: str, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    run, port = world.add_run(), server.rpartition(":")[2]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    [pushed], _ = push(world, "--to", "mlflow")
    assert pushed["upload"] == load_upload_states(run)[0].upload == "server"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.1:{port}")
    mmfw("train", "mmbt_grid", "--track", "mlflow", code=2)
    assert f"`mlflow server --allowed-hosts 127.1:{port},localhost:*`" in mmfw.err
    assert "again later" not in mmfw.err


@pytest.mark.parametrize(
    ("tracker", "environ", "message"),
    [
        ("mlflow", "MLFLOW_TRACKING_URI=file:./runs", "MLFLOW_ALLOW_FILE_STORE=true"),
        ("mlflow", "MLFLOW_TRACKING_URI=./mlruns", "MLFLOW_ALLOW_FILE_STORE=true"),
        ("mlflow", "MLFLOW_TRACKING_URI=sqlite://", "is not a file"),
        ("mlflow", "MLFLOW_TRACKING_URI=sqlite:///:memory:", "is not a file"),
        ("mlflow", "MLFLOW_TRACKING_URI=sqlite:///.", "is not a file"),
        ("mlflow", "MLFLOW_TRACKING_URI=mlruns", "MLFLOW_ALLOW_FILE_STORE=true"),
        ("mlflow", "MLFLOW_TRACKING_URI=C:\\mlruns", "MLFLOW_ALLOW_FILE_STORE=true"),
        ("mlflow", "MLFLOW_TRACKING_URI=sqlite+foo:///runs.db", "sqlalchemy.dialects:sqlite.foo"),
        ("mlflow", "MLFLOW_TRACKING_URI=foo://host", "is not a server of mlflow"),
        ("mlflow", "MLFLOW_TRACKING_URI=http://", "http://HOST:PORT"),
        ("mlflow", "MLFLOW_TRACKING_URI=localhost:5000", "http://HOST:PORT"),
        ("mlflow", "MLFLOW_TRACKING_URI=databricks", "DATABRICKS_TOKEN"),
        ("mlflow", "MLFLOW_TRACKING_URI=databricks-uc", "is not a server of mlflow"),
        ("wandb", "WANDB_MODE=online", "WANDB_API_KEY"),
        ("wandb", "WANDB_BASE_URL=http://127.0.0.1:9", "`wandb login`"),
        ("wandb", "WANDB_MODE=Offline", "unknown W&B mode Offline"),
        ("clearml", "CLEARML_API_HOST=http://127.0.0.1:9", "`clearml-init`"),
    ],
)
def test_invalid_destination_is_rejected_before_training(
    mmfw: MmfwRunner, tracker: str, environ: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(tracker)
    monkeypatch.setenv(*environ.split("="))
    mmfw("train", "mmbt_grid", "--track", tracker, code=2)
    assert message in mmfw.err and "later" not in mmfw.err and "dataset" not in mmfw.err


@requires_mlflow
@pytest.mark.parametrize("package", ["alembic", "sqlalchemy", "psycopg2"])
def test_error_for_a_missing_database_package_names_it(
    package: str, mmfw: MmfwRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://me:hunter2@host/db")
    mmfw("train", "mmbt_grid", "--track", "mlflow", code=6)
    assert f"needs the package {package}" in mmfw.err and "hunter2" not in mmfw.err
    assert "`pip install sqlalchemy alembic`" in mmfw.err


@requires_mlflow
def test_folder_allowed_by_mlflow_is_used(world: ReportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_run()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:./runs")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    [pushed], _ = push(world, "--to", "mlflow")
    assert pushed["upload"] == "local" and pushed["new"]


@pytest.mark.parametrize("source", ["variable", "netrc", "settings"])
def test_wandb_key_is_found_wherever_wandb_login_writes_it(
    mmfw_home: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmf_win.tracking import wandb_tracker

    if source == "variable":
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    elif source == "netrc":
        (mmfw_home / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password k\n", encoding="utf-8")
    else:
        (mmfw_home / "settings").write_text("[default]\napi_key = k\n", encoding="utf-8")
    assert wandb_tracker.WandbTracker().require_settings()


@pytest.mark.parametrize("source", ["variable", "token", "file"])
def test_clearml_key_is_found_wherever_clearml_looks(
    mmfw_home: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmf_win.tracking import clearml_tracker

    if source == "file":
        text = 'api {\n  credentials {"access_key" = "A", "secret_key" = "S"}\n}\n'
        (mmfw_home / "clearml.conf").write_text(text, encoding="utf-8")
    else:
        monkeypatch.setenv("CLEARML_AUTH_TOKEN" if source == "token" else "CLEARML_API_ACCESS_KEY", "k")
    assert clearml_tracker.ClearMLTracker().require_settings()


@requires_mlflow
def test_databricks_key_is_sufficient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "databricks")
    monkeypatch.setenv("DATABRICKS_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("DATABRICKS_TOKEN", "k")
    assert not MLflowTracker().require_settings(), "the server must not be contacted"


@pytest.mark.parametrize(
    ("reason", "is_temporary"),
    [
        ("server does not answer", True),
        ("API request failed with error code 503 != 200", True),
        ("502 Bad Gateway", True),
        ("error code 403: Permission denied", False),
        ("Run with id=x not found", False),
        ("Invalid API key", False),
    ],
)
def test_only_temporary_errors_are_retried_later(reason: str, is_temporary: bool) -> None:
    assert (retry_advice(reason) == "later") == is_temporary

"""Runs sent to W&B offline, whose own files are read back; no W&B server is used."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmf_win.files import write_json
from mmf_win.paths import module_command
from mmf_win.protocol import AttemptOutcome, read_events
from mmf_win.results import metrics_file
from mmf_win.runs.folder import Run
from mmf_win.tracking.upload import load_upload_states
from tests.tracking.conftest import append_events, run_follower
from tests.worlds.report_world import SPLIT, START_TIME, ReportWorld, attempt_events
from tests.worlds.tools import requires_package

pytestmark = [pytest.mark.wide, requires_package("wandb")]
_BLOCK, _HEADER = 32 * 1024, 7  # bytes


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb"))


def push(run: Run, *arguments: str) -> dict[str, Any]:
    """Run ``mmfw track push`` of a run in a separate process and return its result."""
    command = [sys.executable, "-m", "mmf_win", "track", "push", str(run.path), "--to", "wandb", "--json"]
    environ = {**os.environ, "PYTHONUTF8": "1"}
    process = subprocess.run([*command, *arguments], capture_output=True, encoding="utf-8", env=environ)
    assert process.returncode == 0, process.stderr
    pushed: list[dict[str, Any]] = json.loads(process.stdout)
    return pushed[0]


def list_folders(run: Run) -> list[Path]:
    """Return W&B's folders of a run, one per upload."""
    return sorted(run.tracking.glob("wandb/offline-run-*"), key=lambda folder: folder.stat().st_mtime_ns)


def read_records(folder: Path) -> Iterator[Any]:
    """Yield the records of a folder; the file has the format of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = folder.glob("*.wandb")
    data, offset, record = file.read_bytes(), _HEADER, b""
    assert data.startswith(b":W&B")
    while offset + _HEADER <= len(data):
        if 0 < (block_rest := -offset % _BLOCK) < _HEADER:
            offset += block_rest
            continue
        _, length, part_kind = struct.unpack_from("<IHB", data, offset)
        record += data[offset + _HEADER : offset + _HEADER + length]
        offset += _HEADER + length
        if part_kind in (1, 4):  # a complete record, or its last part
            yield Record.FromString(record)
            record = b""


def read_records_of_kind(folder: Path, kind: str) -> list[Any]:
    """Return the contents of a folder's records of one kind."""
    matching = (record for record in read_records(folder) if record.WhichOneof("record_type") == kind)
    return [getattr(record, kind) for record in matching]


def read_values(items: Any) -> dict[str, Any]:
    """Return names and values of one record."""
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def read_series(folder: Path, name: str) -> list[tuple[int, float, float]]:
    """Return the points of a series: update, time and value."""
    rows = [read_values(row.item) for row in read_records_of_kind(folder, "history")]
    return [(row["update"], row["_timestamp"], row[name]) for row in rows if name in row]


def training_points(run: Run, name: str, first: int = 0) -> list[tuple[int, float, float]]:
    """Return the expected points of a training series."""
    events = [event for event in read_events(run.events)[first:] if event["kind"] == "train"]
    return [(event["update"], event["t"], event[name]) for event in events]


def test_data_of_a_run_is_sent_once_without_machine_details(world: ReportWorld) -> None:
    run = world.add_run(overrides=["optimizer.params.lr=5e-5", "env.api_key=hunter2-hunter2"])
    append_events(run, attempt_events("2", 120, 130))
    events = read_events(run.events)
    run.events.write_bytes(b"")
    append_events(run, [{**event, "t": event["t"] + 1_700_000_000.125} for event in events])  # present-day times
    scores = {"auroc": 0.71, "created": START_TIME, "split": SPLIT, "members": [{"checkpoint_sha256": "none"}]}
    csv = world.add_predictions(run)
    write_json(metrics_file.metrics_path(csv), scores)
    sent = push(run)
    [folder] = list_folders(run)
    assert sent["new"] and sent["link"] == str(run.tracking)
    [run_record] = read_records_of_kind(folder, "run")
    assert (run_record.run_id, run_record.project, run_record.display_name) == (sent["id"], "hateful-memes", run.id)
    assert not (run_record.host or run_record.HasField("git"))
    assert read_series(folder, "train/loss") == training_points(run, "loss")
    assert [update for update, _, _ in read_series(folder, "val/auroc")] == [30, 60, 90, 120]
    assert read_series(folder, f"{SPLIT}/auroc") == [(0, START_TIME, 0.71)]
    settings = read_values(read_records_of_kind(folder, "config")[0].update)
    assert (settings["optimizer.params.lr"], settings["env.api_key"]) == ("5e-05", "<secret>")
    assert read_values(read_records_of_kind(folder, "summary")[0].update) == {"mmfw.outcome": "done"}
    assert {metric.glob_name: metric.step_metric for metric in read_records_of_kind(folder, "metric")}["*"] == "update"
    names = {file.name for file in (folder / "files").iterdir()}
    assert names == {"request.json", csv.name, metrics_file.metrics_path(csv).name}
    suffixes = {".wandb", ".json", ".csv"}
    content = b"".join(file.read_bytes() for file in folder.rglob("*") if file.suffix in suffixes)
    assert b"hunter2" not in content and b"track" not in content, "the command line must not be sent either"
    assert read_records_of_kind(folder, "exit")[0].exit_code == 0
    assert not push(run)["new"] and list_folders(run) == [folder]


def test_each_upload_creates_a_folder_with_the_new_data(world: ReportWorld) -> None:
    run = world.add_run()
    push(run)
    event_count = len(read_events(run.events))
    append_events(run, attempt_events("2", 60, 100))  # resumed from an earlier checkpoint
    AttemptOutcome("interrupted").save(run.outcome_file)
    assert push(run)["state"] == "interrupted"
    first, second = list_folders(run)
    assert {file.name for file in run.tracking.rglob("*.wandb")} == {f"run-{load_upload_states(run)[0].id}.wandb"}
    assert len(read_series(first, "train/loss")) == 12 and read_series(second, "train/loss") == []
    assert read_series(second, "train/loss/2") == training_points(run, "loss", event_count), (
        "repeated updates must be kept"
    )
    summary = read_values(read_records_of_kind(second, "summary")[0].update)
    assert summary == {"mmfw.outcome": "interrupted", "resumed_at": "60"}
    assert read_records_of_kind(second, "exit")[0].exit_code == 1


def test_run_of_a_sweep_is_in_its_group_and_its_checkpoint_in_the_folder(world: ReportWorld) -> None:
    run = world.add_run()
    run.checkpoints.mkdir()
    (run.checkpoints / "best.ckpt").write_bytes(b"weights")
    sweep = ["0" * 32, "sweeps/lr", str(run.path / "a lock")]
    assert run_follower("wandb", run, json.dumps({"models": "best", "sweep": sweep})).returncode == 0
    (run.checkpoints / "best.ckpt").unlink()
    [folder] = list_folders(run)
    assert read_records_of_kind(folder, "run")[0].run_group == "sweeps/lr"
    assert (folder / "files" / "best.ckpt").read_bytes() == b"weights"


def test_data_not_saved_by_a_killed_follower_is_sent_later(world: ReportWorld) -> None:
    run = world.add_run()
    command = module_command("mmf_win.tracking.follower", "wandb", str(run.path), "{}")
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        while not [*run.tracking.glob("wandb/*/files/request.json")]:  # the file is written after the points
            time.sleep(0.02)
            assert process.poll() is None and not any(sent.error for sent in load_upload_states(run))
        process.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    assert [sent.events for sent in load_upload_states(run)] in ([], [{}])
    push(run)
    assert read_series(list_folders(run)[-1], "train/loss") == training_points(run, "loss")

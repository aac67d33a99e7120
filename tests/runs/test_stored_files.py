"""Files of earlier versions are read as before; see tests/worlds/stored_files.py.

``tests/worlds/stored/expected.json`` contains the output of each command. To record it again after an
intended change::

    MMFW_RECORD_RESULTS=1 python -m pytest tests/runs/test_stored_files.py
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import stored_files
from tests.worlds.stored_files import STORED_DIR, StoredFiles
from tests.worlds.tools import MmfwRunner

ROOT = Path(__file__).parents[2]
EXPECTED = STORED_DIR / "expected.json"
RECORD = bool(os.environ.get("MMFW_RECORD_RESULTS"))
# Saved classes, each with the fields that have no value in any file.
SAVED: dict[str, set[str]] = {
    "AttemptOutcome": {"hint"},
    "MmfInstall": {"commit"},  # only for a checkout with git
    "MmfwSettings": set(),
    "CheckResult": set(),
    "RunRequest": {"published_weights", "published_sha256"},  # require a download from MMF's zoo
    "UploadState": {"error"},
    "ManifestSource": set(),
    "SplitSummary": set(),
    "Task": {"slot"},  # only for running tasks
    "DataWaitStats": {"workers"},
}
FIELDS_STORED_ELSEWHERE = {"Task": {"name", "values"}}  # read from the folder's name and ``param``
_LATIN_1_NAME = "r\udce9sum\udce9"  # résumé in Latin-1
_DISK_FIELDS = {"size", "bytes", "verified", "written"}


@pytest.fixture
def stored(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> StoredFiles:
    """Return the files in a user's folder, with their environment."""
    monkeypatch.setenv("MMFW_HOME", str(user_dir / "home"))
    monkeypatch.setenv("MMF_CACHE_DIR", str(user_dir / "world" / "cache"))
    return stored_files.build(user_dir)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> StoredFiles:
    """Return the files for tests that only read them."""
    return stored_files.build(tmp_path_factory.mktemp("stored"))


def iter_commands(stored: StoredFiles) -> Iterator[list[str]]:
    """Yield commands that read all of the files."""
    save = ["--save-dir", str(stored.save)]
    requests = (path for path in stored.save.rglob("request.json") if "attempts" not in path.parts)
    yield ["runs", *save]
    for request in sorted(requests):
        yield ["runs", "show", str(request.parent), *save]
    mmbt, text = str(stored.run_folder("mmbt")), str(stored.run_folder("text"))
    yield ["runs", "show", mmbt, "--verify", *save]
    yield ["runs", "show", mmbt, "--config", *save]
    yield ["runs", "compare", mmbt, text, *save]
    yield ["runs", "--sweep", "grid", *save]
    for sweep in ("grid", "search", "failed"):
        yield ["sweep", "status", sweep, *save]
        yield ["sweep", "table", sweep, *save]
    yield ["track", "status", *save]
    for data in sorted(stored.root.glob("data*")):
        yield ["verify", "dataset", "runs", "--data-dir", str(data), *save]
    for csv in sorted(stored.save.rglob("*_test_*.csv")):
        split = re.search(r"_(test_\w+?)_\d", csv.name)
        assert split is not None
        yield ["check-submission", str(csv), "--split", split[1], "--data-dir", str(stored.data)]


def run_commands(stored: StoredFiles, mmfw: MmfwRunner) -> dict[str, Any]:
    """Return the JSON output of the commands, without values that depend on this disk."""
    results = {}
    for arguments in iter_commands(stored):
        mmfw(*arguments, "--json")
        name = json.loads(stored.normalize_text(json.dumps(" ".join(arguments))))
        results[name] = mask_disk_values(json.loads(stored.normalize_text(mmfw.out)))
    return results


def mask_disk_values(value: Any) -> Any:
    """Return a JSON value without sizes and times of files."""
    if isinstance(value, dict):
        return {key: "…" if key in _DISK_FIELDS else mask_disk_values(inner) for key, inner in value.items()}
    return [mask_disk_values(inner) for inner in value] if isinstance(value, list) else value


def compare_with_recorded(name: str, value: Any) -> None:
    """Compare a value with the recorded one, or record it if requested."""
    recorded = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    if RECORD:
        recorded[name] = value
        text = json.dumps(recorded, indent=1, sort_keys=True) + "\n"
        EXPECTED.write_text(text, encoding="utf-8", newline="\n")
    assert value == recorded[name]


def test_commands_print_recorded_output(stored: StoredFiles, mmfw: MmfwRunner) -> None:
    compare_with_recorded("intact", run_commands(stored, mmfw))


def test_unknown_fields_and_truncated_last_lines_are_ignored(stored: StoredFiles, mmfw: MmfwRunner) -> None:
    stored.add_unknown_fields()
    stored.tear_last_lines()
    compare_with_recorded("intact", run_commands(stored, mmfw))


def test_non_finite_values_of_events_are_dropped(stored: StoredFiles, mmfw: MmfwRunner) -> None:
    """MMF before 1.0.0rc12 and early versions of mmfw wrote such values."""
    stored.insert_event("text", '{"t": 1795897748.1, "kind": "train", "attempt": "1", "update": 2, "loss": NaN}')
    metrics = '{"hateful_memes/roc_auc": NaN, "total_loss": Infinity}'
    stored.insert_event(
        "text", f'{{"t": 1795897748.1, "kind": "val", "update": 2, "metrics": {metrics}, "final": false}}'
    )
    description = mmfw.json("runs", "show", stored.run_folder("text"), "--save-dir", stored.save)
    compare_with_recorded("not a number", mask_disk_values(json.loads(stored.normalize_text(json.dumps(description)))))


def test_file_names_that_are_not_utf_8_are_kept(stored: StoredFiles, mmfw: MmfwRunner) -> None:
    run = stored.run_folder("begun")
    stored.update_record(
        run / "request.json", init=f"/weights/{_LATIN_1_NAME}.ckpt", preset_file=f"/presets/{_LATIN_1_NAME}.yaml"
    )
    upload_state = next(iter((stored.run_folder("mmbt") / "tracking").glob("*.json")))
    stored.update_record(upload_state, error=f"{_LATIN_1_NAME}: no such file")
    results = {}
    for arguments in (["runs"], ["runs", "show", str(run)], ["track", "status"]):
        mmfw(*arguments, "--save-dir", stored.save, "--json")
        results[arguments[0]] = mask_disk_values(json.loads(stored.normalize_text(mmfw.out)))
    compare_with_recorded("names", results)


def read_protocol_docstring() -> str:
    """Return the docstring that lists the kinds of events, from whichever module has it."""
    texts = [ast.get_docstring(tree) or "" for tree in parse_modules()]
    [text] = (text for text in texts if "run_started" in text and "attempt_failed" in text)
    return text


@cache
def parse_modules() -> list[ast.Module]:
    """Return the syntax trees of the package's modules."""
    paths = sorted((ROOT / "mmf_win").rglob("*.py"))
    return [ast.parse(path.read_text(encoding="utf-8")) for path in paths]


def list_stored_fields(name: str) -> set[str]:
    """Return the stored keys of the fields of a dataclass and of its bases, wherever they are defined."""
    classes = {node.name: node for tree in parse_modules() for node in tree.body if isinstance(node, ast.ClassDef)}
    nodes = [node for node in classes[name].body if isinstance(node, ast.AnnAssign)]
    keys = {_stored_key(node) for node in nodes}
    bases = [ast.unparse(base) for base in classes[name].bases]
    return keys.union(*(list_stored_fields(base) for base in bases if base in classes))


def _stored_key(node: ast.AnnAssign) -> str:
    match = re.search(r"stored_as\('(\w+)'\)", ast.unparse(node))
    return match[1] if match else ast.unparse(node.target)


def read_all_events(stored: StoredFiles) -> list[dict[str, Any]]:
    """Return all events that are stored."""
    files = [path for path in stored.find_files(".jsonl") if path.name == "events.jsonl"]
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def test_stored_files_contain_every_kind_of_event(untouched: StoredFiles) -> None:
    text = read_protocol_docstring()
    table = text[text.index("    run_started") : text.index("attempt_failed")] + "attempt_failed  "
    kinds = set(re.findall(r"^ {4}(\w+)(?=  )", table, re.MULTILINE)) | {"attempt_failed", "predict_started"}
    assert {event["kind"] for event in read_all_events(untouched)} == kinds


def read_records(stored: StoredFiles) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each dataclass that is saved."""

    def read(pattern: str) -> list[dict[str, Any]]:
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(stored.root.glob(pattern))]

    stored_events = read_all_events(stored)
    requests = [request for request in read("save/**/request.json") if "preset" in request]
    manifests = read("data*/**/SHA256SUMS.json")
    profiled = [event for event in stored_events if event["kind"] == "profiled"]
    return {
        "RunRequest": requests,
        "MmfwSettings": [request["settings"].get("mmfw", {}) for request in requests],
        "AttemptOutcome": read("save/**/exit.json"),
        "Task": read("save/sweeps/*/*/task.json"),
        "UploadState": read("save/**/tracking/*.json"),
        "ManifestSource": [manifest["source"] for manifest in manifests],
        "SplitSummary": [split for manifest in manifests for split in manifest["result"]["splits"].values()],
        "MmfInstall": read("home/mmf/*.json"),
        "DataWaitStats": [event["waiting"] for event in profiled],
        "CheckResult": [
            remove_fields(event, "t", "kind", "attempt") for event in stored_events if event["kind"] == "checked"
        ],
    }


def remove_fields(record: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a record without some fields."""
    return {name: value for name, value in record.items() if name not in names}


@pytest.mark.parametrize("name", sorted(SAVED))
def test_stored_files_contain_every_field_of_saved_class(untouched: StoredFiles, name: str) -> None:
    saved, fields = read_records(untouched)[name], list_stored_fields(name) - FIELDS_STORED_ELSEWHERE.get(name, set())
    assert set().union(*saved) == fields
    keys_with_value = {key for record in saved for key, value in record.items() if value}
    assert fields - keys_with_value == SAVED[name], "each other field must have a value in some file"

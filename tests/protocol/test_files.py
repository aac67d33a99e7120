"""Event logs, requests and outcomes on disk."""

import json
import re
import sys
from pathlib import Path

import pytest

import mmf_win
from mmf_win import protocol
from mmf_win.protocol import AttemptOutcome, AttemptRequest, EventReader, read_events
from mmf_win.protocol.attempt import TrainTask
from tests.worlds.event_log import EventLog
from tests.worlds.flush_recorder import FlushRecorder


def test_reader_yields_each_event_once_and_waits_for_incomplete_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert list(reader.poll()) == []
    EventLog(path, "1").write("note", text="Память 中文")
    with path.open("ab") as file:
        file.write(b'{"kind": "tra')
    assert [event["text"] for event in reader.poll()] == ["Память 中文"]
    with path.open("ab") as file:
        file.write(b'in", "update": 1}\n')
    assert [event["update"] for event in reader.poll()] == [1]


def test_invalid_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'rubbish\n[1]\n{"no": "kind"}\n{"kind": "note"}\n')
    assert [event["kind"] for event in read_events(path)] == ["note"]


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**40])
@pytest.mark.parametrize("name", ["update", "done"])
def test_event_with_a_step_beyond_64_bits_is_skipped(tmp_path: Path, name: str, number: int) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path, "1").write("train", **{name: number})
    EventLog(path, "1").write("train", **{name: 2**63 - 1})
    assert [event[name] for event in read_events(path)] == [2**63 - 1]


def test_event_after_an_incomplete_line_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path, "1").write("train", update=1)
    with path.open("ab") as file:
        file.write(b'{"kind": "tra')
    EventLog(path, "2").write("run_started")
    EventLog(path, "2").write("train", update=2)
    assert [event["kind"] for event in read_events(path)] == ["train", "run_started", "train"]
    assert len(path.read_bytes().splitlines()) == 4


def test_reader_from_the_end_yields_only_new_events(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path, "1").write("old")
    reader = EventReader(path, from_end=True)
    EventLog(path, "1").write("new")
    assert [event["kind"] for event in reader.poll()] == ["new"]


def test_saving_event_is_flushed_to_the_disk(tmp_path: Path, flush_recorder: FlushRecorder) -> None:
    log = EventLog(tmp_path / "events.jsonl", "1")
    log.write("train", update=2)
    log.write("saving", update=2)
    assert flush_recorder.is_flushed(tmp_path / "events.jsonl")


def test_requests_and_outcomes_are_loaded_without_unknown_fields(tmp_path: Path) -> None:
    request = AttemptRequest(TrainTask(), "mmbt", "mmf", str(tmp_path), {"a": [1]})
    request.save()
    path = request.folder.request_file
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, "from a later version": 1}), encoding="utf-8")
    assert AttemptRequest.load(path) == request
    AttemptOutcome("nan", "loss").save(path)
    assert AttemptOutcome.load(path) == AttemptOutcome("nan", "loss")
    assert not list(tmp_path.glob("*.part"))


def test_every_event_kind_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(mmf_win.__file__).parent.rglob("*.py")]
    written_kinds = {
        kind for text in sources for kind in re.findall(r'\b(?:event|write_event|begin)\(\s*"(\w+)"', text)
    }
    documented_kinds = set(re.findall(r"^    (\w+)  ", protocol.__doc__ or "", re.MULTILINE))
    assert "train_started" in written_kinds
    assert written_kinds == documented_kinds


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file size limit")
def test_partially_written_event_is_an_error(tmp_path: Path) -> None:
    import resource

    log = EventLog(tmp_path / "events.jsonl", "1")
    log.write("note", text="first")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "events.jsonl").stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            log.write("note", text="second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == str(tmp_path / "events.jsonl")
    log.write("note", text="third")
    assert [event["text"] for event in read_events(tmp_path / "events.jsonl")] == ["first", "third"]

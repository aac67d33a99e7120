"""A model of MMF that stays warm predicts as ``mmfw predict`` does; tests/test_predictor.py has the rest."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmf_win import Predictor
from mmf_win.dataset.annotations import read_annotations
from mmf_win.errors import (
    CheckpointError,
    ResourceError,
    RunNotFoundError,
    TrainingError,
    UnreadableImageError,
    UsageError,
)
from mmf_win.files import write_bytes
from mmf_win.protocol import read_events
from mmf_win.runs.folder import Run
from tests.endtoend.conftest import SetFaults, Tool, probabilities
from tests.worlds.liveness import liveness_monitor

SPLIT = "test_unseen"
# Begins a process that stays warm, says so, and waits for the end of its input, or to be killed.
PARENT = """
import sys
from mmf_win import Predictor
predictor = Predictor(sys.argv[1], save_dir=sys.argv[2], data_dir=sys.argv[3])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of temporary files, which must be empty at the end; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="мем ") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        gc.collect()
        assert list(Path(folder).glob("mmfw*")) == []


def memes(tool: Tool) -> list[tuple[Path, str]]:
    """Image and text of each row of a split."""
    rows = read_annotations(tool.world.dataset / "annotations" / f"{SPLIT}.jsonl")
    return [(tool.world.dataset / "images" / row.img, row.text) for row in rows]


def predictor_of(tool: Tool, model: str | Path, **options: Any) -> Predictor:
    """A predictor in the tool's folders."""
    return Predictor(model, save_dir=tool.save_dir, data_dir=tool.world.data, **options)


def newest_worker(temporary: Path) -> int:
    """Return the id of the worker that was started last, from the events among the temporary files."""
    events = [event for file in temporary.rglob("events.jsonl") for event in read_events(file)]
    started = [event for event in events if event["kind"] == "run_started"]
    return int(max(started, key=lambda event: event["t"])["pid"])


def files_of(run: Run) -> dict[Path, int]:
    """The files of a run but the lock of its readers, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path != run.usage_lock_file}


def test_one_meme_gets_the_number_of_mmfw_predict_and_a_bad_one_is_named(tool: Tool, temporary: Path) -> None:
    import PIL.Image

    run, (path, text) = tool.get_trained_run("mmbt"), memes(tool)[0]
    expected = pytest.approx(tool("predict", "--image", str(path), "--text", text)["proba"], abs=1e-6)
    before = files_of(run)
    cut = tool.folder / "cut 梗.png"
    cut.write_bytes(path.read_bytes()[:900])
    with predictor_of(tool, run.id) as predictor, PIL.Image.open(path) as image:
        worker = newest_worker(temporary)
        for given in (path, str(path), path.read_bytes(), image):
            assert predictor.predict(given, text) == expected
        assert predictor.predict(path, "") != expected
        for bad, shown in ((cut, str(cut)), (cut.read_bytes(), "the image")):
            found = predictor.predict_many([(path, text), (bad, text), (path, text)])
            assert next(found) == expected
            with pytest.raises(UnreadableImageError) as raised:
                next(found)
            told = str(raised.value)
            assert told.startswith(f"{shown}: image cannot be read (")
            assert str(temporary) not in told and "row" not in told
        assert predictor.predict(path, text) == expected and newest_worker(temporary) == worker
    assert files_of(run) == before, "nothing is left in the run's folder"


def test_many_memes_get_the_numbers_of_a_split_by_the_file_of_a_checkpoint_and_anew_after_a_death(
    tool: Tool, set_faults: SetFaults, temporary: Path
) -> None:
    run, pairs = tool.get_trained_run("mmbt"), memes(tool)
    expected = pytest.approx(probabilities(tool("predict", "--split", SPLIT, "--no-report")), abs=1e-6)
    once = tool.folder / "once"
    set_faults({"at": "validation", "do": "kill", "above": 3, "once": str(once)})
    with predictor_of(tool, run.checkpoints / "best.ckpt", batch_size=4) as predictor:
        worker = newest_worker(temporary)
        write_bytes(run.checkpoints / "best.ckpt", b"what a training saved meanwhile")
        first, *rest = predictor.predict_many(pairs)
        assert [first, *rest] == expected
        assert once.exists() and newest_worker(temporary) != worker
        set_faults({"at": "validation", "do": "kill", "above": 3})
        once.unlink()
        with pytest.raises(TrainingError, match="the model process died twice on this request") as raised:
            next(predictor.predict_many(pairs))
        assert "the end of its output:" in str(raised.value.hint)
        assert predictor.predict(*pairs[0]) == pytest.approx(first, abs=1e-6)


@pytest.mark.wide
def test_no_worker_outlives_a_program_that_was_killed(tool: Tool, set_faults: SetFaults) -> None:
    run = tool.get_trained_run("mmbt")
    words = [sys.executable, "-c", PARENT, run.id, str(tool.save_dir), str(tool.world.data)]
    with liveness_monitor() as held, tempfile.TemporaryDirectory() as scratch:
        once = str(tool.folder / "once")
        set_faults({"at": "validation", "do": "connect", "port": held.port, "once": once})
        environ = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP"), scratch)}
        environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None and parent.stdout.read(5) == b"ready"
            held.wait_for_processes()
            parent.kill()
        assert held.has_only_dead_processes()


def test_what_cannot_be_loaded_is_refused_as_by_mmfw_predict(
    tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, run = tool.get_trained_run("visual_bert"), tool.get_trained_run("mmbt")
    with monkeypatch.context() as patched:
        patched.setattr("mmf_win.runs.prediction.ModelProcess", None)  # nothing is started
        with pytest.raises(UsageError, match="needs region features") as raised:
            predictor_of(tool, features.id)
        assert "mmfw predict --memes" in str(raised.value.hint)
        with pytest.raises(RunNotFoundError, match="nope"):
            predictor_of(tool, "nope")
        broken = run.checkpoints / "broken.ckpt"
        broken.write_bytes((run.checkpoints / "best.ckpt").read_bytes()[:-1000])
        with pytest.raises(CheckpointError, match=r"broken\.ckpt"):
            predictor_of(tool, broken)
    set_faults({"at": "validation", "do": "memory_error"})
    with pytest.raises(ResourceError, match="MemoryError") as failed:
        predictor_of(tool, run.id)
    assert "the end of its output:" in str(failed.value.hint)

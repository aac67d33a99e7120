"""``Predictor`` with a real model of MMF, compared with ``mmfw predict``; tests/test_predictor.py covers the rest."""

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
# Starts a model process, prints "ready", and waits until its input ends or it is killed.
PARENT_CODE = """
import sys
from mmf_win import Predictor
predictor = Predictor(sys.argv[1], save_dir=sys.argv[2], data_dir=sys.argv[3])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of temporary files, which must be empty at the end; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="мем ") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        gc.collect()
        assert list(Path(folder).glob("mmfw*")) == []


def list_memes(tool: Tool) -> list[tuple[Path, str]]:
    """Return the image and text of each row of a split."""
    rows = read_annotations(tool.world.dataset / "annotations" / f"{SPLIT}.jsonl")
    return [(tool.world.dataset / "images" / row.img, row.text) for row in rows]


def create_predictor(tool: Tool, model: str | Path, **options: Any) -> Predictor:
    """Return a predictor that uses the tool's folders."""
    return Predictor(model, save_dir=tool.save_dir, data_dir=tool.world.data, **options)


def find_newest_worker(temporary_dir: Path) -> int:
    """Return the id of the worker that was started last, from the events among the temporary files."""
    events = [event for file in temporary_dir.rglob("events.jsonl") for event in read_events(file)]
    started = [event for event in events if event["kind"] == "run_started"]
    return int(max(started, key=lambda event: event["t"])["pid"])


def list_file_times(run: Run) -> dict[Path, int]:
    """Return the modification times of the files of a run, without its usage lock."""
    return {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path != run.usage_lock_file}


def test_meme_gets_probability_of_mmfw_predict_and_bad_image_is_named(tool: Tool, temporary_dir: Path) -> None:
    import PIL.Image

    run, (path, text) = tool.get_trained_run("mmbt"), list_memes(tool)[0]
    expected = pytest.approx(tool("predict", "--image", str(path), "--text", text)["proba"], abs=1e-6)
    times_before = list_file_times(run)
    truncated = tool.folder / "cut 梗.png"
    truncated.write_bytes(path.read_bytes()[:900])
    with create_predictor(tool, run.id) as predictor, PIL.Image.open(path) as image:
        worker = find_newest_worker(temporary_dir)
        for source in (path, str(path), path.read_bytes(), image):
            assert predictor.predict(source, text) == expected
        assert predictor.predict(path, "") != expected
        for bad_image, shown_name in ((truncated, str(truncated)), (truncated.read_bytes(), "the image")):
            probas = predictor.predict_many([(path, text), (bad_image, text), (path, text)])
            assert next(probas) == expected
            with pytest.raises(UnreadableImageError) as error:
                next(probas)
            message = str(error.value)
            assert message.startswith(f"{shown_name}: image cannot be read (")
            assert str(temporary_dir) not in message and "row" not in message
        assert predictor.predict(path, text) == expected and find_newest_worker(temporary_dir) == worker
    assert list_file_times(run) == times_before, "the run's folder must not change"


def test_predict_many_matches_split_and_restarts_killed_model_process_once(
    tool: Tool, set_faults: SetFaults, temporary_dir: Path
) -> None:
    run, pairs = tool.get_trained_run("mmbt"), list_memes(tool)
    expected = pytest.approx(probabilities(tool("predict", "--split", SPLIT, "--no-report")), abs=1e-6)
    killed_marker = tool.folder / "once"
    set_faults({"at": "validation", "do": "kill", "above": 3, "once": str(killed_marker)})
    with create_predictor(tool, run.checkpoints / "best.ckpt", batch_size=4) as predictor:
        worker = find_newest_worker(temporary_dir)
        write_bytes(run.checkpoints / "best.ckpt", b"what a training saved meanwhile")
        first, *rest = predictor.predict_many(pairs)
        assert [first, *rest] == expected
        assert killed_marker.exists() and find_newest_worker(temporary_dir) != worker
        set_faults({"at": "validation", "do": "kill", "above": 3})
        killed_marker.unlink()
        with pytest.raises(TrainingError, match="the model process died twice on this request") as error:
            next(predictor.predict_many(pairs))
        assert "the end of its output:" in str(error.value.hint)
        assert predictor.predict(*pairs[0]) == pytest.approx(first, abs=1e-6)


@pytest.mark.wide
def test_no_model_process_outlives_killed_program(tool: Tool, set_faults: SetFaults) -> None:
    run = tool.get_trained_run("mmbt")
    command = [sys.executable, "-c", PARENT_CODE, run.id, str(tool.save_dir), str(tool.world.data)]
    with liveness_monitor() as monitor, tempfile.TemporaryDirectory() as scratch:
        marker = str(tool.folder / "once")
        set_faults({"at": "validation", "do": "connect", "port": monitor.port, "once": marker})
        environ = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP"), scratch)}
        environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None and parent.stdout.read(5) == b"ready"
            monitor.wait_for_processes()
            parent.kill()
        assert monitor.wait_until_all_exited()


def test_predictor_refuses_unloadable_model_like_mmfw_predict(
    tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    feature_run, run = tool.get_trained_run("visual_bert"), tool.get_trained_run("mmbt")
    with monkeypatch.context() as patched:
        patched.setattr("mmf_win.runs.prediction.ModelProcess", None)  # nothing is started
        with pytest.raises(UsageError, match="needs region features") as error:
            create_predictor(tool, feature_run.id)
        assert "mmfw predict --memes" in str(error.value.hint)
        with pytest.raises(RunNotFoundError, match="nope"):
            create_predictor(tool, "nope")
        broken = run.checkpoints / "broken.ckpt"
        broken.write_bytes((run.checkpoints / "best.ckpt").read_bytes()[:-1000])
        with pytest.raises(CheckpointError, match=r"broken\.ckpt"):
            create_predictor(tool, broken)
    set_faults({"at": "validation", "do": "memory_error"})
    with pytest.raises(ResourceError, match="MemoryError") as memory_error:
        create_predictor(tool, run.id)
    assert "the end of its output:" in str(memory_error.value.hint)

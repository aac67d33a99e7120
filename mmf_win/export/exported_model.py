"""Runs an exported model in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from inspect import getsource
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmf_win import images
from mmf_win.console import Progress
from mmf_win.dataset.annotations import AnnotationRow
from mmf_win.errors import MmfEnvironmentError, StoppedByUserError, TrainingError, UsageError
from mmf_win.files import read_json, write_bytes, write_json
from mmf_win.paths import MmfPaths, module_command
from mmf_win.protocol import AttemptOutcome, AttemptRequest, Event, EventReader
from mmf_win.protocol.attempt import PredictTask, ServeTask
from mmf_win.runs.folder import Run
from mmf_win.runs.model_process import ModelProcess
from mmf_win.runs.targets import PredictionTarget
from mmf_win.supervise import run_child
from mmf_win.upstream.install import require_packages

#: The program that runs a model; :func:`write_script` puts a copy into each folder.
RUN_SCRIPT = Path(__file__).with_name("run.py")

_IMAGES_IMPORT = "\n    from mmf_win.images import open_image\n"


def write_script(path: Path) -> None:
    """Write ``run.py`` for a Python without mmfw: with the functions that open pictures, not their import."""
    functions = "\n\n".join(map(getsource, (images.open_image, images.to_rgb)))
    script = RUN_SCRIPT.read_text(encoding="utf-8").replace(_IMAGES_IMPORT, "")
    write_bytes(path, script.replace("class Model:", f"{functions}\n\nclass Model:", 1).encode())


def run_model(
    folder: Path,
    rows: Sequence[AnnotationRow],
    images: Path,
    *,
    batch_size: int = 8,
    features: Path | None = None,
) -> tuple[list[float], dict[str, float]]:
    """Return the probabilities of rows, in batches of that size, and ``p50_ms`` and ``p99_ms`` of a batch.

    The model of mmfw's own ``run.py`` predicts, whatever lies in the folder.

    Args:
        images: where the rows' images lie.
        features: where their region features lie, ``ID.npz``.

    Raises MmfError with the error that it told, TrainingError where it told none, and Interrupted.
    """
    bar = Progress(f"running {folder.name}, batch {batch_size}", len(rows), "image")
    with TemporaryDirectory(prefix="mmfw-run-", ignore_cleanup_errors=True) as scratch, bar:
        table, report = Path(scratch, "rows.json"), Path(scratch, "report.json")
        written = [
            {"id": str(row.id), "img": str(images / row.img), "text": row.text}
            | ({"features": str(features / f"{row.id}.npz")} if features else {})
            for row in rows
        ]
        write_json(table, written)
        wanted = AttemptRequest(PredictTask(str(table), str(report)), "", "", eval_batch=batch_size)
        asked, command, environment = _prepare_process(folder, Path(scratch), wanted)
        events = EventReader(asked.events)

        def poll_progress() -> bool:
            for event in events.poll():
                bar.advance(event["done"] - bar.done)
            return False

        ended = run_child(
            command,
            log=asked.log,
            environment=environment,
            stop_file=asked.folder.stop_file,
            poll_progress=poll_progress,
            stop_timeout=1.0,
            terminate_after=0.0,
        )
        if ended.stop_requested:
            raise StoppedByUserError("interrupted")
        if end := AttemptOutcome.load(asked.folder.outcome_file):
            raise MmfEnvironmentError(end.message)
        if ended.exit_code:
            raise TrainingError(f"{RUN_SCRIPT} ended unexpectedly (code {ended.exit_code})")
        found = read_json(report)
        return found["probas"], found["timings"]


def _prepare_process(
    folder: Path, scratch: Path, request: AttemptRequest
) -> tuple[AttemptRequest, list[str], dict[str, str]]:
    """Save what a process with a model is asked for, and return that, its command and its environment."""
    request = replace(request, attempt_dir=str(Run(scratch).create_attempt().path))
    request.save()
    command = module_command("mmf_win.export.serve_onnx", str(folder), str(request.folder.request_file))
    return request, command, {**os.environ, "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class ExportedModel:
    """A folder that ``mmfw export`` has made, and its ``model.json``."""

    folder: Path
    metadata: dict[str, Any]

    @classmethod
    def from_folder(cls, folder: Path) -> ExportedModel:
        """The model in a folder.

        Raises UsageError where there is none, or one that reads region features, and MmfError where a package
        is missing.
        """
        require_packages("onnxruntime", "tokenizers", "pillow", "numpy", extra="[export]")
        try:
            about = read_json(folder / "model.json")
            reads_features = about["features"]
            if not (isinstance(about["run"], str) and isinstance(about["versions"], dict)):
                raise TypeError(about)
        except (OSError, ValueError, TypeError, KeyError):
            hint = "`mmfw export RUN --output DIR` makes one"
            raise UsageError(f"{folder}: there is no exported model", hint=hint) from None
        if reads_features:
            message = f"{folder}: this model reads region features, which the dataset has in another form"
            raise UsageError(message, hint="run.py takes them as .npz")
        return cls(folder.absolute(), about)

    def predict(
        self,
        _run: Run,
        places: MmfPaths,
        _command_options: object,
        *,
        target: PredictionTarget,
        begin: Callable[[], object],
        **_: object,
    ) -> tuple[list[float], Event]:
        """As :func:`mmf_win.runs.prediction.predict_target`; of what a worker says, only precision and
        versions.
        """
        begin()
        probas, _timings = run_model(self.folder, target.rows, places.dataset.images)
        precision = "int8" if self.metadata.get("int8") else "fp32"
        versions = self.metadata["versions"] | {"onnxruntime": version("onnxruntime")}
        return probas, {"precision": precision, **versions}

    def start_model_process(self, scratch: Path) -> ModelProcess:
        """A child that has loaded the model, and answers; its files lie in ``scratch``."""
        return ModelProcess(*_prepare_process(self.folder, scratch, AttemptRequest(ServeTask(""), "", "")))

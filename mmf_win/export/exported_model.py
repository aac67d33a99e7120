"""Run an exported model in a child process."""

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
from mmf_win.supervise import StopPolicy, run_child
from mmf_win.upstream.install import require_packages

#: Script that runs an exported model; :func:`write_script` puts a copy into each exported folder.
RUN_SCRIPT = Path(__file__).with_name("run.py")

_IMAGES_IMPORT = "\n    from mmf_win.images import open_image\n"


def write_script(path: Path) -> None:
    """Write ``run.py`` for a Python without mmfw: the functions that open images replace their import."""
    functions = "\n\n".join(map(getsource, (images.open_image, images.to_rgb)))
    script = RUN_SCRIPT.read_text(encoding="utf-8").replace(_IMAGES_IMPORT, "")
    write_bytes(path, script.replace("class Model:", f"{functions}\n\nclass Model:", 1).encode())


def run_model(
    folder: Path, rows: Sequence[AnnotationRow], images: Path, *, batch_size: int = 8, features: Path | None = None
) -> tuple[list[float], dict[str, float]]:
    """Predict rows with an exported model in a child process.

    The code is always mmfw's own ``run.py``, not the copy in the folder.

    Args:
        folder: Folder of the exported model.
        rows: Memes to predict.
        images: Folder of their images.
        batch_size: Rows per batch.
        features: Folder of their region features, ``ID.npz``.

    Returns:
        The probability of each row, and the time per batch in ms as ``p50_ms`` and ``p99_ms``.

    Raises:
        MmfEnvironmentError: The process reported an error.
        TrainingError: The process died without reporting an error.
        StoppedByUserError: The user interrupted it.
    """
    bar = Progress(f"running {folder.name}, batch {batch_size}", len(rows), "image")
    with TemporaryDirectory(prefix="mmfw-run-", ignore_cleanup_errors=True) as scratch, bar:
        table, report = Path(scratch, "rows.json"), Path(scratch, "report.json")
        row_data = [
            {"id": str(row.id), "img": str(images / row.img), "text": row.text}
            | ({"features": str(features / f"{row.id}.npz")} if features else {})
            for row in rows
        ]
        write_json(table, row_data)
        request = AttemptRequest(PredictTask(str(table), str(report)), "", "", eval_batch=batch_size)
        saved_request, command, environment = _prepare_process(folder, Path(scratch), request)
        events = EventReader(saved_request.events)

        def poll_progress() -> bool:
            for event in events.poll():
                bar.advance(event["done"] - bar.done)
            return False

        process = run_child(
            command,
            log=saved_request.log,
            environment=environment,
            stop_file=saved_request.folder.stop_file,
            poll_progress=poll_progress,
            stop_policy=StopPolicy(1.0, terminate_after=0.0),
        )
        if process.stop_requested:
            raise StoppedByUserError("interrupted")
        if outcome := AttemptOutcome.load(saved_request.folder.outcome_file):
            raise MmfEnvironmentError(outcome.message)
        if process.exit_code:
            raise TrainingError(f"{RUN_SCRIPT} exited unexpectedly (code {process.exit_code})")
        results = read_json(report)
        return results["probas"], results["timings"]


def _prepare_process(
    folder: Path, scratch: Path, request: AttemptRequest
) -> tuple[AttemptRequest, list[str], dict[str, str]]:
    """Save the request of a model process, and return it with the command and the environment."""
    request = replace(request, attempt_dir=str(Run(scratch).create_attempt().path))
    request.save()
    command = module_command("mmf_win.export.serve_onnx", str(folder), str(request.folder.request_file))
    return request, command, {**os.environ, "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class ExportedModel:
    """A folder created by ``mmfw export``, with the content of its ``model.json``."""

    folder: Path
    metadata: dict[str, Any]

    @classmethod
    def from_folder(cls, folder: Path) -> ExportedModel:
        """Return the exported model in a folder, or raise ``UsageError`` if it cannot be used."""
        require_packages("onnxruntime", "tokenizers", "pillow", "numpy", extra="[export]")
        try:
            metadata = read_json(folder / "model.json")
            needs_features = metadata["features"]
            if not (isinstance(metadata["run"], str) and isinstance(metadata["versions"], dict)):
                raise TypeError(metadata)
        except (OSError, ValueError, TypeError, KeyError):
            hint = "run `mmfw export RUN --output DIR`"
            raise UsageError(f"{folder}: not an exported model", hint=hint) from None
        if needs_features:
            message = f"{folder}: the model needs region features in .npz files, which the dataset does not have"
            raise UsageError(message, hint="use the model's run.py with .npz files")
        return cls(folder.absolute(), metadata)

    def predict(
        self,
        _run: Run,
        mmf_paths: MmfPaths,
        _command_options: object,
        *,
        target: PredictionTarget,
        begin: Callable[[], object],
        **_: object,
    ) -> tuple[list[float], Event]:
        """Predict a target, with the interface of :func:`mmf_win.runs.prediction.predict_target`.

        Returns:
            The probability of each row, and an event that contains only precision and versions.
        """
        begin()
        probas, _timings = run_model(self.folder, target.rows, mmf_paths.dataset.images)
        precision = "int8" if self.metadata.get("int8") else "fp32"
        versions = self.metadata["versions"] | {"onnxruntime": version("onnxruntime")}
        return probas, {"precision": precision, **versions}

    def start_model_process(self, scratch: Path) -> ModelProcess:
        """Start a child process that loads the model and answers requests; its files are in ``scratch``."""
        return ModelProcess(*_prepare_process(self.folder, scratch, AttemptRequest(ServeTask(""), "", "")))

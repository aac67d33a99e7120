"""Runs an exported model in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from inspect import getsource
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmf_win import images
from mmf_win.console import Progress
from mmf_win.dataset.annotations import Row
from mmf_win.dataset.own_memes import annotations_beside
from mmf_win.dataset.predictions import Prediction, in_order, read_predictions, write_predictions
from mmf_win.errors import Interrupted, MmfError, TrainingError, UsageError
from mmf_win.files import json_bytes, read_json, write_bytes
from mmf_win.paths import Places, module_command
from mmf_win.protocol import Attempt, Event
from mmf_win.runs.folder import Run
from mmf_win.runs.serving import Server
from mmf_win.runs.targets import Target
from mmf_win.supervise import run_child
from mmf_win.upstream.install import require_packages

SCRIPT = Path(__file__).with_name("run.py")
"""The program that runs a model; :func:`write_script` puts a copy into each folder."""

_IMPORT = "\n    from mmf_win.images import open_image\n"


def write_script(path: Path) -> None:
    """Write ``run.py`` for a Python without mmfw: with the functions that open pictures, not their import."""
    functions = "\n\n".join(map(getsource, (images.open_image, images.to_rgb)))
    script = SCRIPT.read_text(encoding="utf-8").replace(_IMPORT, "")
    write_bytes(path, script.replace("class Model:", f"{functions}\n\nclass Model:", 1).encode())


def run_model(
    folder: Path, rows: Sequence[Row], images: Path, *, batch: int = 8, features: Path | None = None
) -> tuple[list[float], dict[str, float]]:
    """The probabilities of rows, in batches of that size, and ``p50_ms`` and ``p99_ms`` of a batch.

    mmfw's own ``run.py`` is run, whatever lies in the folder.

    Args:
        images: where the rows' images lie.
        features: where their region features lie, ``ID.npz``.

    Raises MmfError with the error that it told, TrainingError where it told none, and Interrupted.
    """
    bar = Progress(f"running {folder.name}, batch {batch}", len(rows), "image")
    with TemporaryDirectory(prefix="mmfw-run-", ignore_cleanup_errors=True) as scratch, bar:
        table, csv, log = (Path(scratch, name) for name in ("rows.jsonl", "out.csv", "log.txt"))
        lines = [
            {"id": str(row.id), "img": str(images / row.img), "text": row.text}
            | ({"features": str(features / f"{row.id}.npz")} if features else {})
            for row in rows
        ]
        write_bytes(table, b"".join(map(json_bytes, lines)))

        def watch() -> bool:
            told = re.findall(r"^(\d+) of ", log.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            done = int(told[-1]) if told else 0
            bar.advance(done - bar.done)
            return False

        command = [sys.executable, str(SCRIPT), str(table), "-o", str(csv), "--timings"]
        ended = run_child(
            [*command, "--model", str(folder), "--batch-size", str(batch)],
            log=log,
            environment={**os.environ, "PYTHONUTF8": "1"},
            stop_file=Path(scratch, "stop"),
            watch=watch,
            patience=1.0,
            terminate=0.0,
        )
        if ended.stop_requested:
            raise Interrupted("interrupted")
        said = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if ended.code:
            if not said or not said[-1].startswith("error: "):
                raise TrainingError(f"{SCRIPT} ended unexpectedly (code {ended.code})")
            raise MmfError(said[-1].removeprefix("error: "))
        probas = [row.proba for row in in_order(read_predictions(csv), [str(row.id) for row in rows])]
        return probas, json.loads(said[-1])


@dataclass(frozen=True)
class ExportedModel:
    """A folder that ``mmfw export`` has made, and its ``model.json``."""

    folder: Path
    about: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> ExportedModel:
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
        self, run: Run, places: Places, _once: object, *, target: Target, folder: Path | None, **_: object
    ) -> tuple[Path, list[Event]]:
        """As :func:`mmf_win.runs.predicting.predict`; of what a worker says, only precision and versions."""
        rows = target.rows
        probas, _timings = run_model(self.folder, rows, places.dataset.images)
        with run.new_report(target.name, folder) as csv:
            if target.is_own:
                shutil.copyfile(target.annotations, annotations_beside(csv))
            write_predictions(
                csv, [Prediction(row.shown_id, p, int(p > 0.5)) for p, row in zip(probas, rows, strict=True)]
            )
        precision = "int8" if self.about.get("int8") else "fp32"
        versions = self.about["versions"] | {"onnxruntime": version("onnxruntime")}
        return csv, [{"kind": "predict_started", "precision": precision, **versions}]

    def serve(self, scratch: Path) -> Server:
        """A child that has loaded the model, and answers; its files lie in ``scratch``."""
        asked = Attempt("predict", "", "", attempt_dir=str(Run(scratch).new_attempt().path))
        asked.save()
        command = module_command("mmf_win.export.serving", str(self.folder), str(asked.attempt.request))
        return Server(asked, command, {**os.environ, "PYTHONUTF8": "1"})

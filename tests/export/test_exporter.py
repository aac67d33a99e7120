"""The comparison of an exported model with its run; both are stubs with predictions chosen by the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import AnnotationRow
from mmf_win.errors import CheckFailedError, UsageError
from mmf_win.export import exporter
from mmf_win.files import read_json, write_json
from mmf_win.paths import MmfPaths
from mmf_win.runs import prediction
from mmf_win.runs.folder import Run
from mmf_win.runs.request import CommandOptions
from mmf_win.runs.targets import PredictionTarget
from tests.worlds import report_world
from tests.worlds.report_world import SPLIT

pytest.importorskip("numpy", reason="could not import numpy")  # used for the AUROC


@dataclass
class StubModels:
    """Replaces the worker that exports a run, and run.py; 8-bit weights invert every label.

    Attributes:
        rows: Memes of the split, all predicted correctly by the run.
        differences: Difference of the exported model's probability, by batch size and row ID; batch 0 means all.
        batches: Batch size and number of rows of each prediction.
    """

    rows: list[AnnotationRow]
    differences: dict[tuple[int, int], float] = field(default_factory=dict)
    batches: list[tuple[int, int]] = field(default_factory=list)

    def predict(self, *_: Any, export: Path, int8: bool, **__: Any) -> tuple[list[float], list[Any]]:
        """Return the predictions of the run, and write the files of its exported model."""
        write_json(export / "model.json", {"features": False})
        (export / "model.onnx").write_bytes(b"32 bits each")
        if int8:
            (export / "int8.onnx").write_bytes(b"8 bits")
        return [self._probability(row) for row in self.rows], []

    def run_model(
        self, folder: Path, rows: Sequence[AnnotationRow], _images: Path, *, batch_size: int, features: Path | None
    ) -> tuple[list[float], dict[str, float]]:
        """Predict rows as the exported model does."""
        assert features is None
        self.batches.append((batch_size, len(rows)))
        quantized = (folder / "model.onnx").read_bytes() == b"8 bits"
        probabilities = [1 - self._probability(row) if quantized else self._probability(row) for row in rows]
        differences = [
            self.differences.get((batch_size, row.id), self.differences.get((0, row.id), 0.0)) for row in rows
        ]
        return [a + b for a, b in zip(probabilities, differences, strict=True)], {"p50_ms": 1.0, "p99_ms": 2.0}

    def _probability(self, row: AnnotationRow) -> float:
        return 0.75 if row.label else 0.25


@dataclass(frozen=True)
class Exporter:
    """Exports a run whose model is a stub."""

    run: Run
    mmf_paths: MmfPaths
    models: StubModels
    output: Path

    def __call__(self, *, tolerance: float = 1e-4, int8: bool = False, max_loss: float = 0.005) -> Any:
        """Export the run to :attr:`output`, and return the content of ``model.json``."""
        display: Any = None  # the stub shows no progress
        self.run.checkpoints.mkdir(exist_ok=True)
        (self.run.checkpoints / "best.ckpt").touch()
        return exporter.export_checkpoint(
            self.run,
            self.run.checkpoints / "best.ckpt",
            self.mmf_paths,
            CommandOptions(),
            display,
            exporter.ExportOptions(self.output, SPLIT, tolerance, int8, max_loss),
        )

    def is_gone(self) -> bool:
        """Return whether the output, its parent and all temporary folders are gone."""
        disk = self.output.parents[1]
        return not self.output.parent.exists() and not list(disk.glob(".mmfw-export-*"))


@pytest.fixture
def export(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Exporter:
    """Return an export of a run to a folder whose parent does not exist."""
    world = report_world.make(user_dir, draw_images=False)
    mmf_paths = MmfPaths.resolve(world.data, world.save)
    models = StubModels(PredictionTarget.from_split(mmf_paths, SPLIT).rows)
    monkeypatch.setattr(prediction, "predict_target", models.predict)
    monkeypatch.setattr(exporter, "run_model", models.run_model)
    return Exporter(world.add_run(), mmf_paths, models, user_dir / "new" / "model")


def test_matching_model_is_kept_with_its_comparison(export: Exporter) -> None:
    rows = export.models.rows
    export.models.differences = {(0, rows[2].id): 5e-5, (3, rows[5].id): -8e-5}
    description = export()
    assert description["parity"]["largest_difference"] == pytest.approx(8e-5)
    assert (description["parity"]["split"], description["parity"]["rows"]) == (SPLIT, len(rows))
    assert sorted(export.models.batches) == [(1, 32), (3, 32), (8, 32)]
    assert sorted(path.name for path in export.output.iterdir()) == ["model.json", "model.onnx", "run.py"]
    assert read_json(export.output / "model.json") == description
    assert description["auroc"]["difference"] == 0


@pytest.mark.parametrize("batch", [8, 1, 3])
@pytest.mark.parametrize("difference", [0.01, -0.01])
def test_row_with_a_different_probability_is_named_and_nothing_is_written(
    export: Exporter, batch: int, difference: float
) -> None:
    row = export.models.rows[3]
    export.models.differences = {(batch, row.id): difference, (batch, export.models.rows[7].id): difference / 2}
    with pytest.raises(CheckFailedError, match=f"row {row.display_id} of {SPLIT}: in batches of {batch}") as raised:
        export()
    assert "0.01" in str(raised.value) and export.is_gone()
    tolerance = float((raised.value.hint or "").partition("--tolerance ")[2].split()[0].rstrip("`"))
    assert export(tolerance=tolerance)["parity"]["largest_difference"] == pytest.approx(0.01)


def test_int8_weights_with_too_large_auroc_drop_are_not_written(export: Exporter) -> None:
    with pytest.raises(CheckFailedError, match=f"the AUROC on {SPLIT} drops from 1.0000 to 0.0000"):
        export(int8=True)
    assert export.is_gone()
    description = export(int8=True, max_loss=1.0)
    assert (description["int8"]["before"]["bytes"], description["int8"]["after"]["bytes"]) == (12, 6)
    assert description["int8"]["largest_difference"] == 0.5 and description["int8"]["auroc"]["difference"] == -1
    assert (export.output / "model.onnx").read_bytes() == b"8 bits"


def test_existing_folder_is_not_changed(export: Exporter) -> None:
    export.output.mkdir(parents=True)
    with pytest.raises(UsageError, match="already exists"):
        export()
    assert export.models.batches == [] and list(export.output.iterdir()) == []

"""Create the folder of an exported model, which is verified against its run before it appears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmf_win.dataset.annotations import collect_labels
from mmf_win.errors import CheckFailedError, UsageError
from mmf_win.export.exported_model import RUN_SCRIPT, run_model, write_script
from mmf_win.files import read_json, rename, write_json
from mmf_win.paths import MmfPaths
from mmf_win.runs import prediction
from mmf_win.runs.attempts import DisplayFactory
from mmf_win.runs.checkpoints import pin_checkpoint
from mmf_win.runs.folder import Run
from mmf_win.runs.request import CommandOptions
from mmf_win.runs.targets import PredictionTarget

_BATCH_SIZE, _SMALL_BATCH_SIZES = 8, (1, 3)
_SAMPLE_ROWS = 64  # rows that are also compared in small batches


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        output: Folder to create.
        split: Split used for the comparison; ``None`` for the validation split of the run.
        tolerance: Largest allowed difference of a probability from that of ``mmfw predict``.
        int8: Quantize the weights to 8 bits.
        max_auroc_drop: Largest allowed drop of the AUROC by the quantization; ``None`` for 0.005.
    """

    output: Path
    split: str | None
    tolerance: float
    int8: bool
    max_auroc_drop: float | None


def export_checkpoint(
    run: Run,
    checkpoint: Path,
    mmf_paths: MmfPaths,
    command_options: CommandOptions,
    display: DisplayFactory,
    export_options: ExportOptions,
) -> dict[str, Any]:
    """Export a checkpoint and verify it on a split.

    Args:
        run: Run of the checkpoint.
        checkpoint: Checkpoint file.
        mmf_paths: MMF's folders.
        command_options: Batch size, overrides and the like.
        display: Creates the progress display.
        export_options: Output, tolerance and quantization.

    Returns:
        The content of ``model.json``.

    Raises:
        UsageError: The folder exists, the model cannot be exported, or the split has too few labels for
            ``int8``.
        CheckFailedError: The exported model predicts something else, or its 8-bit weights lower the AUROC too
            much.
    """
    output = export_options.output.absolute()
    if output.exists():
        raise UsageError(f"{output}: already exists", hint="choose another folder")
    target = PredictionTarget.from_split(mmf_paths, export_options.split or run.request().splits["val"])
    labels = collect_labels(target.rows)
    if export_options.int8 and len(set(labels or ())) < 2:
        message = f"{target.annotation_file.path}: --int8 requires labels of both classes"
        raise UsageError(message, hint="choose another split with --split")
    nearest_parent = next(parent for parent in output.parents if parent.exists())
    staging = TemporaryDirectory(prefix=".mmfw-export-", dir=nearest_parent, ignore_cleanup_errors=True)
    with pin_checkpoint(run, checkpoint) as pin, staging as scratch:
        folder, features = Path(scratch, output.name), Path(scratch, "features")
        folder.mkdir()
        expected, _ = prediction.predict_target(
            run,
            mmf_paths,
            command_options,
            checkpoint=pin.path,
            target=target,
            features=None,
            display=display,
            export=folder,
            int8=export_options.int8,
        )
        pin.require_unchanged()
        metadata = {"run": run.id, "checkpoint": checkpoint.name, **read_json(folder / "model.json")}
        if metadata["features"]:
            rename(folder / features.name, features)
        write_script(folder / RUN_SCRIPT.name)
        model = _ComparedModel(folder, target, mmf_paths.dataset.images, features if metadata["features"] else None)
        probas, timings, metadata["parity"] = _compare_with_run(model, expected, export_options.tolerance)
        if export_options.int8:
            max_auroc_drop = 0.005 if export_options.max_auroc_drop is None else export_options.max_auroc_drop
            probas, metadata["int8"] = _switch_to_int8(model, labels or (), probas, timings, max_auroc_drop)
        metadata["auroc"] = _compare_aurocs(labels, expected, probas) if labels else None
        write_json(folder / "model.json", metadata)
        output.parent.mkdir(parents=True, exist_ok=True)
        rename(folder, output)
    return metadata


@dataclass(frozen=True)
class _ComparedModel:
    """An exported model, and the split on which it is compared with its run."""

    folder: Path
    target: PredictionTarget
    images: Path
    features: Path | None

    @property
    def sample_numbers(self) -> list[int]:
        """Indices of a few rows, spread evenly over the split."""
        return sorted({number * len(self.target.rows) // _SAMPLE_ROWS for number in range(_SAMPLE_ROWS)})

    def predict(self, numbers: Sequence[int], batch: int) -> tuple[list[float], dict[str, float]]:
        """Predict rows in batches; return their probabilities and the times per batch."""
        rows = [self.target.rows[number] for number in numbers]
        return run_model(self.folder, rows, self.images, batch_size=batch, features=self.features)


def _compare_with_run(
    model: _ComparedModel, expected: Sequence[float], tolerance: float
) -> tuple[list[float], dict[str, float], dict[str, Any]]:
    """Compare the model's probabilities with the expected ones.

    Returns:
        The probabilities of all rows, the times of batches of one row, and the parity record for
        ``model.json``.

    Raises:
        CheckFailedError: A probability differs by more than ``tolerance``.
    """
    rows, name = model.target.rows, model.target.name
    count, sample = len(expected), model.sample_numbers
    largest = 0.0
    probas, timings = {}, {}
    for batch, numbers in ((_BATCH_SIZE, range(count)), *((batch, sample) for batch in _SMALL_BATCH_SIZES)):
        probas[batch], timings[batch] = model.predict(numbers, batch)
        pairs = zip(probas[batch], numbers, strict=True)
        difference, worst_index = max((abs(proba - expected[index]), index) for proba, index in pairs)
        if difference > tolerance:
            raise CheckFailedError(
                f"row {rows[worst_index].display_id} of {name}: in batches of {batch}, the probabilities "
                f"from the exported model and `mmfw predict` differ by {difference:.2g}; nothing was written",
                hint=f"allow it with --tolerance {2 * difference:.1g}",
            )
        largest = max(largest, difference)
    parity = {"split": name, "rows": count, "rows_in_batches_of_1_and_3": len(sample)}
    return probas[_BATCH_SIZE], timings[1], {**parity, "precision": "fp32", "largest_difference": largest}


def _switch_to_int8(
    model: _ComparedModel,
    labels: Sequence[int],
    fp32_probas: Sequence[float],
    fp32_times: dict[str, float],
    max_auroc_drop: float,
) -> tuple[list[float], dict[str, Any]]:
    """Replace the model by the one with 8-bit weights and compare both.

    Returns:
        The probabilities of the quantized model, and the record of the comparison for ``model.json``.

    Raises:
        CheckFailedError: The AUROC drops by more than ``max_auroc_drop``.
    """
    files = [model.folder / name for name in ("model.onnx", "int8.onnx")]
    sizes = [file.stat().st_size for file in files]
    rename(files[1], files[0])
    int8_probas, _ = model.predict(range(len(fp32_probas)), _BATCH_SIZE)
    _, int8_timings = model.predict(model.sample_numbers, 1)
    comparison = _compare_aurocs(labels, fp32_probas, int8_probas)
    if -comparison["difference"] > max_auroc_drop:
        raise CheckFailedError(
            "with 8-bit weights, the AUROC on {} drops from {before:.4f} to {after:.4f} "
            "(allowed drop: {:g}); nothing was written".format(model.target.name, max_auroc_drop, **comparison),
            hint="omit --int8, or allow a larger drop with --max-loss",
        )
    return int8_probas, {
        "before": {"bytes": sizes[0], **fp32_times},
        "after": {"bytes": sizes[1], **int8_timings},
        "largest_difference": max(abs(p - q) for p, q in zip(fp32_probas, int8_probas, strict=True)),
        "auroc": comparison,
    }


def _compare_aurocs(labels: Sequence[int], before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """Return both AUROCs and their difference with its interval by DeLong's paired method."""
    from mmf_win.results.metrics import auroc_difference, compute_metrics

    aurocs = [compute_metrics(labels, probas)["auroc"].value for probas in (before, after)]
    difference = auroc_difference(labels, after, before)
    interval = None if difference.low is None else [difference.low, difference.high]
    return {"before": aurocs[0], "after": aurocs[1], "difference": difference.value, "interval": interval}

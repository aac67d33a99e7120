"""Makes the folder of an exported model, which is complete and compared with its run, or not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmf_win.dataset.annotations import labels_of
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
_SAMPLE_ROWS = 64  # rows that are compared in small batches


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        output: the folder to make.
        split: on which the model is compared; None for the run's validation split.
        tolerance: the largest difference of a probability from that of ``mmfw predict``.
        int8: quantize the weights to 8 bits.
        max_loss: by how much the AUROC may fall then; None for 0.005.
    """

    output: Path
    split: str | None
    tolerance: float
    int8: bool
    max_auroc_drop: float | None


def export_checkpoint(
    run: Run,
    checkpoint: Path,
    places: MmfPaths,
    command_options: CommandOptions,
    display: DisplayFactory,
    export_options: ExportOptions,
) -> dict[str, Any]:
    """Export a checkpoint of a run, compare it on a split, and return what ``model.json`` then holds.

    Raises:
        UsageError: the folder is there, the model cannot be exported, or the split cannot judge ``int8``.
        CheckFailed: the exported model predicts something else, or its weights of 8 bits cost too much.
    """
    output = export_options.output.absolute()
    if output.exists():
        raise UsageError(f"{output} is there already", hint="name a new folder")
    target = PredictionTarget.from_split(places, export_options.split or run.request().splits["val"])
    labels = labels_of(target.rows)
    if export_options.int8 and len(set(labels or ())) < 2:
        message = f"--int8 compares AUROCs, and {target.annotation_file.path} has no labels of both classes"
        raise UsageError(message, hint="name another by --split")
    disk = next(each for each in output.parents if each.exists())
    staged = TemporaryDirectory(prefix=".mmfw-export-", dir=disk, ignore_cleanup_errors=True)
    with pin_checkpoint(run, checkpoint) as pin, staged as scratch:
        made, features = Path(scratch, output.name), Path(scratch, "features")
        made.mkdir()
        expected, _ = prediction.predict_target(
            run,
            places,
            command_options,
            checkpoint=pin.path,
            target=target,
            features=None,
            display=display,
            export=made,
            int8=export_options.int8,
        )
        pin.require_unchanged()
        about = {"run": run.id, "checkpoint": checkpoint.name, **read_json(made / "model.json")}
        if about["features"]:
            rename(made / features.name, features)
        write_script(made / RUN_SCRIPT.name)
        model = _ComparedModel(made, target, places.dataset.images, features if about["features"] else None)
        probas, times, about["parity"] = _compare_with_run(model, expected, export_options.tolerance)
        if export_options.int8:
            max_loss = 0.005 if export_options.max_auroc_drop is None else export_options.max_auroc_drop
            probas, about["int8"] = _switch_to_int8(model, labels or (), probas, times, max_loss)
        about["auroc"] = _compare_aurocs(labels, expected, probas) if labels else None
        write_json(made / "model.json", about)
        output.parent.mkdir(parents=True, exist_ok=True)
        rename(made, output)
    return about


@dataclass(frozen=True)
class _ComparedModel:
    """An exported model, and the split on which it is compared."""

    folder: Path
    target: PredictionTarget
    images: Path
    features: Path | None

    @property
    def sample_numbers(self) -> list[int]:
        """Return the numbers of a few rows, from everywhere in the split."""
        return sorted({number * len(self.target.rows) // _SAMPLE_ROWS for number in range(_SAMPLE_ROWS)})

    def predict(self, numbers: Sequence[int], batch: int) -> tuple[list[float], dict[str, float]]:
        """Predict rows in batches; return their probabilities, and times."""
        rows = [self.target.rows[number] for number in numbers]
        return run_model(self.folder, rows, self.images, batch_size=batch, features=self.features)


def _compare_with_run(
    model: _ComparedModel, expected: Sequence[float], tolerance: float
) -> tuple[list[float], dict[str, float], dict[str, Any]]:
    """Return the probabilities of all rows, the times of single ones, and how far they differ."""
    rows, name, count, few, worst = (
        model.target.rows,
        model.target.name,
        len(expected),
        model.sample_numbers,
        0.0,
    )
    probas, times = {}, {}
    for batch, numbers in ((_BATCH_SIZE, range(count)), *((batch, few) for batch in _SMALL_BATCH_SIZES)):
        probas[batch], times[batch] = model.predict(numbers, batch)
        pairs = zip(probas[batch], numbers, strict=True)
        apart, number = max((abs(proba - expected[of]), of) for proba, of in pairs)
        if apart > tolerance:
            raise CheckFailedError(
                f"row {rows[number].display_id} of {name}: in batches of {batch}, its probabilities "
                f"by the exported model and `mmfw predict` differ by {apart:.2g}; nothing is written",
                hint=f"--tolerance {2 * apart:.1g} allows that",
            )
        worst = max(worst, apart)
    compared = {"split": name, "rows": count, "rows_in_batches_of_1_and_3": len(few)}
    return probas[_BATCH_SIZE], times[1], {**compared, "precision": "fp32", "largest_difference": worst}


def _switch_to_int8(
    model: _ComparedModel,
    labels: Sequence[int],
    fp32_probas: Sequence[float],
    fp32_times: dict[str, float],
    max_auroc_drop: float,
) -> tuple[list[float], dict[str, Any]]:
    """Put the weights of 8 bits in the others' place; return their probabilities, and how both compare."""
    files = [model.folder / name for name in ("model.onnx", "int8.onnx")]
    sizes = [file.stat().st_size for file in files]
    rename(files[1], files[0])
    after, (_, small_times) = (
        model.predict(range(len(fp32_probas)), _BATCH_SIZE)[0],
        model.predict(model.sample_numbers, 1),
    )
    judged = _compare_aurocs(labels, fp32_probas, after)
    if -judged["difference"] > max_auroc_drop:
        raise CheckFailedError(
            "with weights of 8 bits, the AUROC on {} goes from {before:.4f} to {after:.4f}, and may "
            "fall by {:g}; nothing is written".format(model.target.name, max_auroc_drop, **judged),
            hint="leave out --int8, or allow more by --max-loss",
        )
    return after, {
        "before": {"bytes": sizes[0], **fp32_times},
        "after": {"bytes": sizes[1], **small_times},
        "largest_difference": max(abs(p - q) for p, q in zip(fp32_probas, after, strict=True)),
        "auroc": judged,
    }


def _compare_aurocs(labels: Sequence[int], before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """Both AUROCs, and by how much the second is higher, with its interval by DeLong's paired method."""
    from mmf_win.results.metrics import auroc_difference, compute_metrics

    found = [compute_metrics(labels, probas)["auroc"].value for probas in (before, after)]
    change = auroc_difference(labels, after, before)
    interval = None if change.low is None else [change.low, change.high]
    return {"before": found[0], "after": found[1], "difference": change.value, "interval": interval}

"""Report pages of runs: their content and their files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from mmf_win.console import escape_controls, format_command, format_duration, format_local_time
from mmf_win.dataset.annotations import list_splits
from mmf_win.dataset.published_results import PAPER, find_published_score, missing_score_reason
from mmf_win.errors import DataError, UsageError
from mmf_win.files import atomic_replace
from mmf_win.paths import DatasetPaths, MmfPaths, data_dir_arguments, reserve_file
from mmf_win.results.metrics import MetricEstimate
from mmf_win.results.metrics_file import METRIC_TITLES
from mmf_win.results.report import comparison, plots
from mmf_win.results.report.curves import TrainingCurves, read_curves
from mmf_win.results.report.pictures import group_similar_pictures, make_thumbnail
from mmf_win.results.report.scored_split import (
    ConfounderPair,
    ScoredSplit,
    find_confounder_pairs,
    find_worst_errors,
    load_scored_split,
    rank_by_probability,
)
from mmf_win.runs import seeds
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord, RunSummary, describe_loaded_weights
from mmf_win.runs.request import RunRequest
from mmf_win.runs.scores import UNKNOWN, RunScores, common_split
from mmf_win.version import __version__

_MAX_MISTAKES = 12  # memes shown per kind of mistake
_MAX_GALLERY_MEMES = 24  # memes shown of user data and of splits without labels
_MAX_PAIRS = 8  # confounder pairs shown
_MAX_TEXT_CHARS = 500  # characters of a meme's text or of other text from a file

# Keys of the worker's events.
_PACKAGE_TITLES = {"mmfw": "mmfw", "mmf": "MMF", "python": "Python", "torch": "PyTorch", "transformers": "transformers"}


class Fact(NamedTuple):
    """An entry of the list at the end of the page.

    ``brief`` replaces the value below the page title: ``None`` for the value itself, ``""`` to omit it there.
    """

    name: str
    value: str
    brief: str | None = None


def write_run_page(
    run: Run,
    *,
    scored: ScoredSplit | None = None,
    split: str | None = None,
    data_dir: Path | None = None,
    output: Path | None = None,
    images: bool = True,
) -> Path:
    """Write the page of a run and return its path.

    Args:
        run: Run of the page.
        scored: Predictions to show; ``None`` for those of ``split``.
        split: Split whose newest predictions are shown; ``None`` for the newest of all splits, if any.
        data_dir: MMF's data folder; ``None`` for that of the run.
        output: Path of the page; ``None`` for ``<prediction file>.html`` or ``report.html``.
        images: Include small copies of the memes.

    Returns:
        The path of the page.

    Raises:
        UsageError: There are no predictions for ``split``.
        DataError: Predictions, annotations or the run's request cannot be read.
    """  # noqa: DOC501 - a function makes the error
    run_record = RunRecord.read(run)
    dataset = _resolve_dataset_paths(run_record, data_dir)
    if scored is None:
        prediction = next((each for each in run_record.scores.predictions if split in (None, each.split)), None)
        if prediction is not None:
            scored = load_scored_split(prediction.csv, prediction.split, dataset)
        elif split is not None:
            raise _not_predicted_error(run_record, split, dataset, data_dir)
    request, curves = run_record.request, read_curves(run_record.events, run_record.attempt_outcome)
    context = {
        "id": run_record.summary.id,
        "name": request.preset,
        "summary": run_record.summary,
        "curves": None if request.published_weights else curves,
        "training": plots.draw_training(curves),
        "resources": plots.draw_resources(curves),
        "facts": _list_run_facts(run_record, curves, scored),
        **_build_prediction_context(scored, request.published_scores, dataset, images),
    }
    default_output = scored.csv.with_suffix(".html") if scored else run.reports / "report.html"
    return write_page("run.html", output or default_output, context)


def _not_predicted_error(run_record: RunRecord, split: str, dataset: DatasetPaths, data_dir: Path | None) -> UsageError:
    available, message = list_splits(dataset), f"run {run_record.run.id} has no predictions for {split}"
    if split in available:
        return UsageError(message, hint=_predict_hint([run_record.run], split, data_dir))
    predicted = sorted({prediction.split for prediction in run_record.scores.predictions})
    hint = f"choose one of {', '.join(predicted or available)}"
    return UsageError(message, hint=hint)


def require_reportable(run: Run) -> Run:
    """Return the run if it has updates or predictions.

    Raises:
        DataError: The run has neither.
    """
    run_record = RunRecord.read(run)
    if run_record.scores.predictions or any(event["kind"] in ("train", "val") for event in run_record.events):
        return run
    raise DataError("has neither updates nor predictions", prefix=f"run {run.id}")


def write_ensemble_page(scored: ScoredSplit) -> Path:
    """Write the page of an ensemble next to its predictions and return its path."""
    csv, record = scored.csv, scored.saved_metrics
    members = record["members"]
    context = {
        "id": f"{csv.parent.parent.name}/{csv.parent.name}",
        "name": f"{record.get('ensemble', 'ensemble').capitalize()} of {len(members)}",
        "summary": None,
        "curves": None,
        "facts": [
            *(Fact("Member", member["run"]) for member in members),
            *_list_version_facts(record["versions"]),
            *_list_prediction_facts(scored),
            Fact("Folder", str(csv.parent), ""),
        ],
        # The image paths of user data are absolute.
        **_build_prediction_context(scored, {}, DatasetPaths(scored.annotations.parent.parent), images=True),
    }
    return write_page("run.html", csv.with_suffix(".html"), context)


def write_comparison_page(
    runs: Sequence[Run],
    save_dir: Path,
    *,
    split: str | None = None,
    data_dir: Path | None = None,
    output: Path | None = None,
    settings: Mapping[Run, Mapping[str, object]] | None = None,
) -> Path:
    """Write the page that compares runs.

    Args:
        runs: Two or more runs; duplicates are ignored.
        save_dir: Folder for ``comparison_<time>.html`` if ``output`` is ``None``.
        split: Split on which the runs are compared; ``None`` for the split that most of them have predicted.
        data_dir: MMF's data folder; ``None`` for that of each run.
        output: Path of the page.
        settings: Parameters in which the runs of a sweep differ, shown with their scores.

    Returns:
        The path of the page.

    Raises:
        UsageError: There are fewer than two different runs, or none has predictions for ``split``.
        DataError: Predictions, annotations or a run's request cannot be read.
    """
    runs = list(dict.fromkeys(runs))
    if len(runs) < 2:
        raise UsageError("a run cannot be compared with itself", hint="pass at least two different runs")
    records = [RunRecord.read(run) for run in runs]
    chosen_split = split or common_split(record.scores.newest_by_split for record in records)
    scored = [(record, load_best_scored_split(record, chosen_split, data_dir)) for record in records]
    if split is not None and not any(predictions for _, predictions in scored):
        message = f"no predictions for {split} by the best checkpoint of any of these runs"
        raise UsageError(message, hint=_predict_hint(runs, split, data_dir))
    context = comparison.build_comparison_context(scored, chosen_split, settings or {})
    with nullcontext(output) if output else reserve_file(save_dir, "comparison_", ".html") as page:
        return write_page("compare.html", page, context)


def _predict_hint(runs: Sequence[Run], split: str, data_dir: Path | None) -> str:
    """Return the hint with the command that creates the missing predictions."""
    arguments = data_dir_arguments(data_dir) if data_dir else []
    command = format_command("mmfw", "predict", *(run.path for run in runs), "--split", split, *arguments)
    return f"run `{command}`"


def _resolve_dataset_paths(run_record: RunRecord, data_dir: Path | None) -> DatasetPaths:
    return MmfPaths.resolve(data_dir or Path(run_record.request.data_dir)).dataset


def load_best_scored_split(run_record: RunRecord, split: str | None, data_dir: Path | None) -> ScoredSplit | None:
    """Return a run's predictions of a split by its best checkpoint, or ``None`` if there are none."""
    prediction = run_record.scores.newest_by_split.get(split) if split else None
    if prediction is None:
        return None
    return load_scored_split(prediction.csv, prediction.split, _resolve_dataset_paths(run_record, data_dir))


def _build_prediction_context(
    scored: ScoredSplit | None, published_scores: dict[str, Any], dataset: DatasetPaths, images: bool
) -> dict[str, Any]:
    """Return the template variables about predictions."""
    context: dict[str, Any] = {"scored": scored, "published": published_scores, "paper": PAPER, "images": images}
    context |= {"metrics": None, "decisions": [], "gallery": []}
    if scored is None:
        return context
    labels, probas, threshold, name = scored.labels, scored.probas, scored.threshold, scored.value_name
    memes = rank_by_probability(scored.memes, _MAX_GALLERY_MEMES) if labels is None or scored.is_user_data else []
    context |= {"gallery": memes}
    if labels is None:
        context |= {"decisions": plots.draw_histogram(probas, threshold, name)}
    else:
        metrics = scored.metrics
        pictures = {meme.row.id: dataset.images / meme.row.img for meme in scored.memes}
        pairs = find_confounder_pairs(scored.memes, group_similar_pictures(pictures) if images else {})
        worst_pairs = _select_distinct_pairs(pairs)
        counts = Counter((meme.row.label, meme.decision) for meme in scored.memes)
        false_alarms, misses = (find_worst_errors(scored.memes, label, _MAX_MISTAKES) for label in (0, 1))
        memes = [*memes, *false_alarms, *misses, *(meme for pair in worst_pairs for meme in pair[:2])]
        context |= {
            "metrics": metrics,
            "tiles": _build_metric_tiles(metrics, scored, published_scores),
            "missing_reason": missing_score_reason(scored.coverage.split),
            "true_negatives": counts[0, 0],
            "false_positives": counts[0, 1],
            "false_negatives": counts[1, 0],
            "true_positives": counts[1, 1],
            "decisions": plots.draw_decisions(labels, probas, metrics, threshold, name),
            "worst_false_positives": false_alarms,
            "worst_false_negatives": misses,
            "pairs": worst_pairs,
            "pair_count": len(pairs),
            "pairs_in_order": sum(pair.margin > 0 for pair in pairs),
        }
    files = {meme.row.id: dataset.images / meme.row.img for meme in memes if images}
    thumbnails = {id_: make_thumbnail(file) for id_, file in files.items()}  # one per meme
    return {**context, "pictures": thumbnails, "missing": sum(copy is None for copy in thumbnails.values())}


def _select_distinct_pairs(confounder_pairs: list[ConfounderPair]) -> list[ConfounderPair]:
    """Return the first pairs such that no meme occurs twice."""
    selected: list[ConfounderPair] = []
    seen_ids: set[int] = set()
    for pair in confounder_pairs:
        ids = {meme.row.id for meme in pair[:2]}
        if len(selected) < _MAX_PAIRS and not ids & seen_ids:
            selected.append(pair)
            seen_ids |= ids
    return selected


def _build_metric_tiles(
    metrics: Mapping[str, MetricEstimate], scored: ScoredSplit, published_scores: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the name, a short description, the score and the published score of each metric."""
    descriptions = {
        "auroc": "the ranking metric of the challenge",
        "accuracy": f"at the threshold {scored.threshold:.3g}",
        "average_precision": "of the hateful class",
        "f1": "of the hateful class",
    }
    return [
        {
            "name": name[0].upper() + name[1:],
            "about": descriptions.get(key, "lower is better"),
            "score": metrics[key],
            "published": find_published_score(published_scores, scored.split, key),
        }
        for key, name in METRIC_TITLES.items()
        if metrics[key].value is not None or key in descriptions
    ]


def _list_run_facts(run_record: RunRecord, curves: TrainingCurves, scored: ScoredSplit | None) -> list[Fact]:
    request, summary = run_record.request, run_record.summary
    facts = [Fact("Preset", request.preset, ""), Fact("Model", request.model)]
    if request.published_weights:
        facts += [
            Fact("Weights", f"published, {request.published_weights}"),
            *_list_version_facts({} if scored is None else scored.saved_metrics.get("versions", {})),
            Fact("State", summary.state, ""),
        ]
    else:
        facts += _list_training_facts(request, summary, curves)
        loaded = (describe_loaded_weights(event) for event in run_record.events if event["kind"] == "loaded")
        facts += [Fact("Weights", description, "") for description in dict.fromkeys(loaded)]
        texts = (event.get("text", "") for event in run_record.events if event["kind"] == "nonfinite")
        facts += [Fact("Non-finite values", text, "") for text in texts]
    if scored is not None:
        facts += _list_prediction_facts(scored, run_record.scores)
    return [*facts, Fact("Folder", summary.path, "")]


def _list_training_facts(request: RunRequest, summary: RunSummary, curves: TrainingCurves) -> list[Fact]:
    total = f" of {summary.max_updates:,}" if summary.max_updates else ""
    seed_note = ", random" if request.training_number("seed") is None else ""
    facts = [
        Fact("MMF", request.mmf_version or "unknown"),
        *_list_version_facts(curves.versions),
        *([Fact("Started from", request.start_checkpoint, "")] if request.start_checkpoint else []),
        Fact("Started", format_local_time(summary.started)),
        Fact("Training time", format_duration(summary.seconds)),
        Fact("Updates", f"{summary.updates or 0:,}{total}"),
        Fact("State", summary.state, ""),
        Fact("Seed", f"{'unknown' if summary.seed is None else summary.seed}{seed_note}"),
    ]
    if curves.attempts:
        last = curves.attempts[-1]
        facts += [Fact("Batch", last.batching), Fact("Device", last.device or "unknown")]
        if last.coverage is not None:
            facts.append(Fact("Trained on", str(last.coverage), None if last.coverage.is_partial else ""))
    data = summary.validated_on
    is_full = data is not None and not data.is_partial
    return [*facts, Fact("Validated on", data.split_label if data else "unknown", "" if is_full else None)]


def _list_version_facts(versions: Mapping[str, str]) -> list[Fact]:
    return [Fact(name, versions[key], "") for key, name in _PACKAGE_TITLES.items() if key in versions]


def _list_prediction_facts(scored: ScoredSplit, scores: RunScores | None = None) -> list[Fact]:
    sha256 = scored.sha256
    facts = [
        Fact("Split", f"{scored.coverage.split}, {scored.coverage.amount} memes", ""),
        Fact("Annotations", f"sha256 {sha256}", f"{sha256[:8]}…"),
    ]
    for member in scored.saved_metrics.get("members", []):
        name, weights = Path(member["checkpoint"]).name, member["checkpoint_sha256"]
        if scores is not None:  # the file with this name may have been replaced since
            name += f" ({scores.checkpoint_names.get(weights, UNKNOWN)})"
        facts.append(Fact("Checkpoint", f"{name}, sha256 {weights}", f"{name} {weights[:8]}…"))
    origin = scored.saved_metrics.get("threshold_from", "default")
    threshold = f"{scored.threshold:.4g}" + ("" if origin == "default" else f", {origin}")
    return [*facts, Fact("Threshold", threshold), Fact("Predictions", scored.csv.name, "")]


def write_page(template: str, output: Path, context: dict[str, Any]) -> Path:
    """Render a template, write it atomically and return its path."""
    # All text from runs and datasets is escaped, and a content security policy forbids the page to load
    # anything, so neither the text of a meme nor the name of a run can run code in the page.
    environment = Environment(
        loader=PackageLoader("mmf_win.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": _format_score, "cut": _truncate_text, "spread": seeds.mean_and_std}
    created = datetime.now().strftime("%Y-%m-%d %H:%M")
    page = environment.get_template(template).render(version=__version__, created=created, **context)
    page = escape_controls(page)  # bidirectional characters would reorder the text around them
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(output.resolve()) as temporary:  # keeps a link
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace", newline="\n")
    return output


def _truncate_text(text: str) -> str:
    """Return a text, shortened if it is very long, with its original length."""
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}… ({len(text):,} characters)"


def _format_score(value: float | None, digits: int = 4, sign: bool = False) -> str:
    """Return a metric as text, with a typographic minus sign, or ``undefined``."""
    if value is None:
        return "undefined"
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")

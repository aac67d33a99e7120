"""The pages of runs: what each is about, what it shows, and where it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from mmf_win.console import escape_controls, format_command, format_duration, format_local_time
from mmf_win.dataset.annotations import splits_on_disk
from mmf_win.dataset.published_results import PAPER, find_published_score, missing_score_reason
from mmf_win.errors import DataError, UsageError
from mmf_win.files import atomic_replace
from mmf_win.paths import DatasetPaths, MmfPaths, data_dir_arguments, reserve_file
from mmf_win.results.metrics import MetricEstimate
from mmf_win.results.metrics_file import METRIC_TITLES
from mmf_win.results.report import comparison, plots
from mmf_win.results.report.curves import TrainingCurves, read_curves
from mmf_win.results.report.pictures import group_similar_pictures, thumbnail
from mmf_win.results.report.scored_split import (
    ConfounderPair,
    ScoredSplit,
    find_confounder_pairs,
    load_scored_split,
    rank_by_probability,
    worst_errors,
)
from mmf_win.runs import seeds
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord, RunSummary, describe_loaded_weights
from mmf_win.runs.request import RunRequest
from mmf_win.runs.scores import UNKNOWN, RunScores, common_split
from mmf_win.version import __version__

_MAX_MISTAKES = 12  # memes shown of each kind of mistake
_MAX_GALLERY_MEMES = 24  # memes shown of own memes, and of a split without labels
_MAX_PAIRS = 8  # confounder pairs shown
_MAX_TEXT_CHARS = 500  # characters of a meme's text, or of what else a file says

# As the worker names them in its events.
_PACKAGE_TITLES = {
    "mmfw": "mmfw",
    "mmf": "MMF",
    "python": "Python",
    "torch": "PyTorch",
    "transformers": "transformers",
}


class Fact(NamedTuple):
    """Something to know, as it is listed at the end of the page.

    Below the title, ``brief`` stands for the value: None for the value itself, and "" for what is not there.
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
    """Write the page of a run and return it.

    Args:
        run: what it is about.
        scored: the predictions to show; None for those of ``split``.
        split: whose newest predictions to show; None for the newest of all. Without any, the page is about
            training alone.
        data_dir: MMF's data folder; None for the run's own.
        output: the page; None for one beside the predictions that has their name, or ``report.html``.
        images: whether the page holds small copies of the memes.

    Raises UsageError where ``split`` was not predicted, and DataError where predictions, annotations or the
    run's request cannot be read.
    """
    known = RunRecord.read(run)
    dataset = _dataset_paths(known, data_dir)
    if scored is None:
        found = next((each for each in known.scores.predictions if split in (None, each.split)), None)
        if found is not None:
            scored = load_scored_split(found.csv, found.split, dataset)
        elif split is not None:
            raise _not_predicted_error(known, split, dataset, data_dir)
    request, curves = known.request, read_curves(known.events, known.attempt_outcome)
    about = {
        "id": known.summary.id,
        "name": request.preset,
        "summary": known.summary,
        "curves": None if request.published_weights else curves,
        "training": plots.draw_training(curves),
        "resources": plots.draw_resources(curves),
        "facts": _run_facts(known, curves, scored),
        **_prediction_context(scored, request.published, dataset, images),
    }
    beside = scored.csv.with_suffix(".html") if scored else run.reports / "report.html"
    return write_page("run.html", output or beside, about)


def _not_predicted_error(
    run_record: RunRecord, split: str, dataset: DatasetPaths, data_dir: Path | None
) -> UsageError:
    there, message = splits_on_disk(dataset), f"run {run_record.run.id} has no predictions for {split}"
    if split in there:
        return UsageError(message, hint=_predict_hint([run_record.run], split, data_dir))
    others = sorted({each.split for each in run_record.scores.predictions})
    hint = f"it has those for {', '.join(others)}" if others else f"there are: {', '.join(there)}"
    return UsageError(message, hint=hint)


def require_reportable(run: Run) -> Run:
    """The run, if it came as far as an update or has predictions. Raises DataError for any other."""
    known = RunRecord.read(run)
    if known.scores.predictions or any(event["kind"] in ("train", "val") for event in known.events):
        return run
    raise DataError("has neither updates nor predictions to show", prefix=f"run {run.id}")


def write_ensemble_page(scored: ScoredSplit) -> Path:
    """Write the page of an ensemble beside its predictions and their record, and return it."""
    csv, record = scored.csv, scored.saved_metrics
    members = record["members"]
    about = {
        "id": f"{csv.parent.parent.name}/{csv.parent.name}",
        "name": f"{record.get('ensemble', 'ensemble').capitalize()} of {len(members)}",
        "summary": None,
        "curves": None,
        "facts": [
            *(Fact("Member", member["run"]) for member in members),
            *_version_facts(record["versions"]),
            *_prediction_facts(scored),
            Fact("Folder", str(csv.parent), ""),
        ],
        # Images of own memes have absolute paths.
        **_prediction_context(scored, {}, DatasetPaths(scored.annotations.parent.parent), images=True),
    }
    return write_page("run.html", csv.with_suffix(".html"), about)


def write_comparison_page(
    runs: Sequence[Run],
    save_dir: Path,
    *,
    split: str | None = None,
    data_dir: Path | None = None,
    output: Path | None = None,
    settings: Mapping[Run, Mapping[str, object]] | None = None,
) -> Path:
    """Write the page that compares runs and return it.

    Args:
        runs: two or more; the same one twice is one.
        save_dir: where the page goes as ``comparison_<time>.html``, when ``output`` is None.
        split: what to compare them on; None for the one that most of them have predicted.
        data_dir: MMF's data folder; None for each run's own.
        output: the page.
        settings: the parameters in which runs of a sweep differ, to be shown with what came of them.

    Raises UsageError where fewer than two different runs are named, or none of them has predicted ``split``,
    and DataError where predictions, annotations or a run's request cannot be read.
    """
    runs = list(dict.fromkeys(runs))
    if len(runs) < 2:
        raise UsageError("the same run was named twice", hint="name another one beside it")
    found = [RunRecord.read(run) for run in runs]
    chosen = split or common_split(known.scores.newest_by_split for known in found)
    scored = [(known, load_best_scored_split(known, chosen, data_dir)) for known in found]
    if split is not None and not any(predictions for _, predictions in scored):
        message = f"none of these runs has predictions for {split} by its best checkpoint"
        raise UsageError(message, hint=_predict_hint(runs, split, data_dir))
    about = comparison.comparison_context(scored, chosen, settings or {})
    with nullcontext(output) if output else reserve_file(save_dir, "comparison_", ".html") as made:
        return write_page("compare.html", made, about)


def _predict_hint(runs: Sequence[Run], split: str, data_dir: Path | None) -> str:
    """The command that makes the predictions which a page needs."""
    where = data_dir_arguments(data_dir) if data_dir else []
    command = format_command("mmfw", "predict", *(run.path for run in runs), "--split", split, *where)
    return f"`{command}` makes them"


def _dataset_paths(run_record: RunRecord, data_dir: Path | None) -> DatasetPaths:
    return MmfPaths.resolve(data_dir or Path(run_record.request.data_dir)).dataset


def load_best_scored_split(
    run_record: RunRecord, split: str | None, data_dir: Path | None
) -> ScoredSplit | None:
    """Return a run's predictions of the split by its best checkpoint, or None if there are none."""
    found = run_record.scores.newest_by_split.get(split) if split else None
    return (
        None
        if found is None
        else load_scored_split(found.csv, found.split, _dataset_paths(run_record, data_dir))
    )


def _prediction_context(
    scored: ScoredSplit | None, published_scores: dict[str, Any], dataset: DatasetPaths, images: bool
) -> dict[str, Any]:
    """What there is to show of predictions; ``numbers`` are those published of the preset."""
    shown: dict[str, Any] = {
        "scored": scored,
        "published": published_scores,
        "paper": PAPER,
        "images": images,
    }
    shown |= {"metrics": None, "decisions": [], "gallery": []}
    if scored is None:
        return shown
    labels, probas, threshold, name = scored.labels, scored.probas, scored.threshold, scored.value_name
    memes = (
        rank_by_probability(scored.memes, _MAX_GALLERY_MEMES) if labels is None or scored.is_user_data else []
    )
    shown |= {"gallery": memes}
    if labels is None:
        shown |= {"decisions": plots.draw_histogram(probas, threshold, name)}
    else:
        metrics = scored.metrics
        pictures = {meme.row.id: dataset.images / meme.row.img for meme in scored.memes}
        found = find_confounder_pairs(scored.memes, group_similar_pictures(pictures) if images else {})
        worst_pairs = _select_distinct_pairs(found)
        counts = Counter((meme.row.label, meme.decision) for meme in scored.memes)
        alarms, misses = (worst_errors(scored.memes, label, _MAX_MISTAKES) for label in (0, 1))
        memes = [*memes, *alarms, *misses, *(meme for pair in worst_pairs for meme in pair[:2])]
        shown |= {
            "metrics": metrics,
            "tiles": _metric_tiles(metrics, scored, published_scores),
            "why_none": missing_score_reason(scored.coverage.split),
            "kept": counts[0, 0],
            "false_alarms": counts[0, 1],
            "missed": counts[1, 0],
            "caught": counts[1, 1],
            "decisions": plots.draw_decisions(labels, probas, metrics, threshold, name),
            "alarms": alarms,
            "misses": misses,
            "pairs": worst_pairs,
            "pair_count": len(found),
            "pairs_in_order": sum(pair.margin > 0 for pair in found),
        }
    files = {meme.row.id: dataset.images / meme.row.img for meme in memes if images}
    copies = {id_: thumbnail(file) for id_, file in files.items()}  # each made once
    return {**shown, "pictures": copies, "missing": sum(copy is None for copy in copies.values())}


def _select_distinct_pairs(confounder_pairs: list[ConfounderPair]) -> list[ConfounderPair]:
    """The first pairs, in which no meme comes twice."""
    shown: list[ConfounderPair] = []
    seen: set[int] = set()
    for pair in confounder_pairs:
        ids = {meme.row.id for meme in pair[:2]}
        if len(shown) < _MAX_PAIRS and not ids & seen:
            shown.append(pair)
            seen |= ids
    return shown


def _metric_tiles(
    metrics: Mapping[str, MetricEstimate], scored: ScoredSplit, published_scores: dict[str, Any]
) -> list[dict[str, Any]]:
    """Of each metric its name, a word about it, its score, and the paper's."""
    about = {
        "auroc": "what the challenge ranked by",
        "accuracy": f"at the threshold {scored.threshold:.3g}",
        "average_precision": "of the hateful class",
        "f1": "of the hateful class",
    }
    return [
        {
            "name": name[0].upper() + name[1:],
            "about": about.get(key, "less is better"),
            "score": metrics[key],
            "published": find_published_score(published_scores, scored.split, key),
        }
        for key, name in METRIC_TITLES.items()
        if metrics[key].value is not None or key in about
    ]


def _run_facts(run_record: RunRecord, curves: TrainingCurves, scored: ScoredSplit | None) -> list[Fact]:
    request, summary = run_record.request, run_record.summary
    facts = [Fact("Preset", request.preset, ""), Fact("Model", request.model)]
    if request.published_weights:
        facts += [
            Fact("Weights", f"published, {request.published_weights}"),
            *_version_facts({} if scored is None else scored.saved_metrics.get("versions", {})),
            Fact("State", summary.state, ""),
        ]
    else:
        facts += _training_facts(request, summary, curves)
        loaded = (describe_loaded_weights(event) for event in run_record.events if event["kind"] == "loaded")
        facts += [Fact("Weights", told, "") for told in dict.fromkeys(loaded)]
        told_of = (event.get("text", "") for event in run_record.events if event["kind"] == "nonfinite")
        facts += [Fact("Not finite", text, "") for text in told_of]
    if scored is not None:
        facts += _prediction_facts(scored, run_record.scores)
    return [*facts, Fact("Folder", summary.path, "")]


def _training_facts(request: RunRequest, summary: RunSummary, curves: TrainingCurves) -> list[Fact]:
    total = f" of {summary.max_updates:,}" if summary.max_updates else ""
    drawn = ", drawn" if request.training_number("seed") is None else ""
    facts = [
        Fact("MMF", request.mmf or "unknown"),
        *_version_facts(curves.versions),
        *([Fact("Started from", request.start, "")] if request.start else []),
        Fact("Began", format_local_time(summary.started)),
        Fact("Training took", format_duration(summary.seconds)),
        Fact("Updates", f"{summary.updates or 0:,}{total}"),
        Fact("State", summary.state, ""),
        Fact("Seed", f"{'unknown' if summary.seed is None else summary.seed}{drawn}"),
    ]
    if curves.attempts:
        last = curves.attempts[-1]
        facts += [Fact("Batch", last.batching), Fact("Device", last.device or "unknown")]
        if last.coverage is not None:
            facts.append(Fact("Trained on", str(last.coverage), None if last.coverage.is_partial else ""))
    on = summary.validated_on
    is_all = on is not None and not on.is_partial
    return [*facts, Fact("Validated on", on.split_label if on else "unknown", "" if is_all else None)]


def _version_facts(versions: Mapping[str, str]) -> list[Fact]:
    return [Fact(name, versions[key], "") for key, name in _PACKAGE_TITLES.items() if key in versions]


def _prediction_facts(scored: ScoredSplit, scores: RunScores | None = None) -> list[Fact]:
    digest = scored.sha256
    facts = [
        Fact("Split", f"{scored.coverage.split}, {scored.coverage.amount} memes", ""),
        Fact("Annotations", f"sha256 {digest}", f"{digest[:8]}…"),
    ]
    for member in scored.saved_metrics.get("members", []):
        name, weights = Path(member["checkpoint"]).name, member["checkpoint_sha256"]
        if scores is not None:  # what had this name then may be another one now
            name += f" ({scores.checkpoint_names.get(weights, UNKNOWN)})"
        facts.append(Fact("Checkpoint", f"{name}, sha256 {weights}", f"{name} {weights[:8]}…"))
    origin = scored.saved_metrics.get("threshold_from", "default")
    chosen = f"{scored.threshold:.4g}" + ("" if origin == "default" else f", {origin}")
    return [*facts, Fact("Threshold", chosen), Fact("Predictions", scored.csv.name, "")]


def write_page(template: str, output: Path, context: dict[str, Any]) -> Path:
    """Write a page, complete or not at all.

    Everything that comes from runs and datasets is escaped, and a content security policy forbids the page to
    load anything, so that neither a meme's text nor a run's name can make it do something.
    """
    environment = Environment(
        loader=PackageLoader("mmf_win.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": _format_score, "cut": _truncate_text, "spread": seeds.mean_and_std}
    made = datetime.now().strftime("%Y-%m-%d %H:%M")
    page = environment.get_template(template).render(version=__version__, made=made, **context)
    page = escape_controls(page)  # whose names and texts might turn those beside them around
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(output.resolve()) as temporary:  # a link stays one
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace", newline="\n")
    return output


def _truncate_text(text: str) -> str:
    """A text that is short enough to be read, with its length where it was longer."""
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}… ({len(text):,} characters)"


def _format_score(value: float | None, digits: int = 4, sign: bool = False) -> str:
    """A metric, or that there is none; a real minus sign before negative ones."""
    if value is None:
        return "undefined"
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")

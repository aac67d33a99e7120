"""What the page of one run shows, and how every page is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from mmf_win.console import controls_escaped, duration, moment
from mmf_win.dataset.published_results import PAPER, published, why_none
from mmf_win.files import replacing
from mmf_win.integrity.digest import file_digest
from mmf_win.paths import DatasetPaths
from mmf_win.results.metrics import Score, measure
from mmf_win.results.report import plots
from mmf_win.results.report.curves import TrainingCurves, read_curves
from mmf_win.results.report.pictures import alike, thumbnail
from mmf_win.results.report.scored import Pair, Scored, pairs, ranked, worst
from mmf_win.results.saved_metrics import METRICS
from mmf_win.runs import seeds
from mmf_win.runs.history import Record, Summary, weights_loaded
from mmf_win.runs.request import Request
from mmf_win.runs.scores import UNKNOWN, Scores
from mmf_win.version import __version__

_MISTAKES = 12  # memes shown of each kind of mistake
_GALLERY = 24  # memes shown of own memes, and of a split without labels
_PAIRS = 8  # confounder pairs shown
_LONGEST = 500  # characters of a meme's text, or of what else a file says

# As the worker names them in its events.
_PACKAGES = {
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


def of_run(known: Record, scored: Scored | None, dataset: DatasetPaths, *, images: bool) -> dict[str, Any]:
    """What the page of a run shows; without predictions, it is about training alone.

    ``images`` is whether it holds small copies of the memes, which are in ``dataset``. Raises DataError where
    the record of the run's end cannot be read.
    """
    request, summary = known.request, known.summary
    curves = read_curves(known.events)
    return {
        "id": summary.id,
        "name": request.preset,
        "summary": summary,
        "curves": None if request.published_weights else curves,
        "training": plots.training(curves),
        "resources": plots.resources(curves),
        "facts": _facts(known, curves, scored),
        **_predictions(scored, request.published, dataset, images),
    }


def of_ensemble(scored: Scored, dataset: DatasetPaths) -> dict[str, Any]:
    """What the page of an ensemble shows: as that of a run, without its training."""
    members, folder = scored.saved_metrics.get("members", []), scored.csv.parent
    return {
        "id": f"{folder.parent.name}/{folder.name}",
        "name": f"{scored.saved_metrics.get('ensemble', 'ensemble').capitalize()} of {len(members)}",
        "summary": None,
        "curves": None,
        "facts": [
            *(Fact("Member", member["run"]) for member in members),
            *_versions(scored.saved_metrics.get("versions", {})),
            *_facts_of(scored),
            Fact("Folder", str(folder), ""),
        ],
        **_predictions(scored, {}, dataset, images=True),
    }


def _predictions(
    scored: Scored | None, numbers: dict[str, Any], dataset: DatasetPaths, images: bool
) -> dict[str, Any]:
    """What there is to show of predictions; ``numbers`` are those published of the preset."""
    shown: dict[str, Any] = {"scored": scored, "published": numbers, "paper": PAPER, "images": images}
    shown |= {"metrics": None, "decisions": [], "gallery": []}
    if scored is None:
        return shown
    labels, probas, threshold, name = scored.labels, scored.probas, scored.threshold, scored.value_name
    memes = ranked(scored.memes, _GALLERY) if labels is None or scored.are_own else []
    shown |= {"gallery": memes}
    if labels is None:
        shown |= {"decisions": plots.histogram(probas, threshold, name)}
    else:
        metrics = measure(labels, probas, threshold=threshold, calibrated=name == "probability")
        pictures = {meme.row.id: dataset.images / meme.row.img for meme in scored.memes}
        found = pairs(scored.memes, alike(pictures) if images else {})
        worst_pairs = _without_repeats(found)
        counts = Counter((meme.row.label, meme.decision) for meme in scored.memes)
        alarms, misses = (worst(scored.memes, label, _MISTAKES) for label in (0, 1))
        memes = [*memes, *alarms, *misses, *(meme for pair in worst_pairs for meme in pair[:2])]
        shown |= {
            "metrics": metrics,
            "tiles": _tiles(metrics, scored, numbers),
            "why_none": why_none(scored.coverage.split),
            "kept": counts[0, 0],
            "false_alarms": counts[0, 1],
            "missed": counts[1, 0],
            "caught": counts[1, 1],
            "decisions": plots.decisions(labels, probas, metrics, threshold, name),
            "alarms": alarms,
            "misses": misses,
            "pairs": worst_pairs,
            "pair_count": len(found),
            "pairs_in_order": sum(pair.margin > 0 for pair in found),
        }
    files = {meme.row.id: dataset.images / meme.row.img for meme in memes if images}
    copies = {id_: thumbnail(file) for id_, file in files.items()}  # each made once
    return {**shown, "pictures": copies, "missing": sum(copy is None for copy in copies.values())}


def _without_repeats(found: list[Pair]) -> list[Pair]:
    """The first pairs, in which no meme comes twice."""
    shown: list[Pair] = []
    seen: set[int] = set()
    for pair in found:
        ids = {meme.row.id for meme in pair[:2]}
        if len(shown) < _PAIRS and not ids & seen:
            shown.append(pair)
            seen |= ids
    return shown


def _tiles(metrics: Mapping[str, Score], scored: Scored, numbers: dict[str, Any]) -> list[dict[str, Any]]:
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
            "published": published(numbers, scored.split, key),
        }
        for key, name in METRICS.items()
        if metrics[key].value is not None or key in about
    ]


def _facts(known: Record, curves: TrainingCurves, scored: Scored | None) -> list[Fact]:
    request, summary = known.request, known.summary
    facts = [Fact("Preset", request.preset, ""), Fact("Model", request.model)]
    if request.published_weights:
        facts += [
            Fact("Weights", f"published, {request.published_weights}"),
            *_versions({} if scored is None else scored.saved_metrics.get("versions", {})),
            Fact("State", summary.state, ""),
        ]
    else:
        facts += _facts_of_training(request, summary, curves)
        loaded = (weights_loaded(event) for event in known.events if event["kind"] == "loaded")
        facts += [Fact("Weights", told, "") for told in dict.fromkeys(loaded)]
        told_of = (event.get("text", "") for event in known.events if event["kind"] == "nonfinite")
        facts += [Fact("Not finite", text, "") for text in told_of]
    if scored is not None:
        facts += _facts_of(scored, known.scores)
    return [*facts, Fact("Folder", summary.path, "")]


def _facts_of_training(request: Request, summary: Summary, curves: TrainingCurves) -> list[Fact]:
    total = f" of {summary.max_updates:,}" if summary.max_updates else ""
    drawn = ", drawn" if request.number("seed") is None else ""
    facts = [
        Fact("MMF", request.mmf or "unknown"),
        *_versions(curves.versions),
        *([Fact("Started from", request.start, "")] if request.start else []),
        Fact("Began", moment(summary.started)),
        Fact("Training took", duration(summary.seconds)),
        Fact("Updates", f"{summary.updates or 0:,}{total}"),
        Fact("State", summary.state, ""),
        Fact("Seed", f"{'unknown' if summary.seed is None else summary.seed}{drawn}"),
    ]
    if curves.attempts:
        last = curves.attempts[-1]
        facts += [Fact("Batch", last.batching), Fact("Device", last.device or "unknown")]
        if last.data is not None:
            facts.append(Fact("Trained on", str(last.data), None if last.data.is_partial else ""))
    on = summary.validated_on or "unknown"
    return [*facts, Fact("Validated on", on, None if on != summary.val_split else "")]


def _versions(versions: Mapping[str, str]) -> list[Fact]:
    return [Fact(name, versions[key], "") for key, name in _PACKAGES.items() if key in versions]


def _facts_of(scored: Scored, scores: Scores | None = None) -> list[Fact]:
    digest = file_digest(scored.annotations).hex()
    facts = [
        Fact("Split", f"{scored.coverage.split}, {scored.coverage.amount} memes", ""),
        Fact("Annotations", f"sha256 {digest}", f"{digest[:8]}…"),
    ]
    for member in scored.saved_metrics.get("members", []):
        name, weights = Path(member["checkpoint"]).name, member["checkpoint_sha256"]
        if scores is not None:  # what had this name then may be another one now
            name += f" ({scores.names.get(weights, UNKNOWN)})"
        facts.append(Fact("Checkpoint", f"{name}, sha256 {weights}", f"{name} {weights[:8]}…"))
    origin = scored.saved_metrics.get("threshold_from", "default")
    chosen = f"{scored.threshold:.4g}" + ("" if origin == "default" else f", {origin}")
    return [*facts, Fact("Threshold", chosen), Fact("Predictions", scored.csv.name, "")]


def write(template: str, output: Path, about: dict[str, Any]) -> Path:
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
    environment.filters |= {"score": _score, "cut": _cut, "spread": seeds.spread}
    made = datetime.now().strftime("%Y-%m-%d %H:%M")
    page = environment.get_template(template).render(version=__version__, made=made, **about)
    page = controls_escaped(page)  # whose names and texts might turn those beside them around
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output.resolve()) as temporary:  # a link stays one
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace", newline="\n")
    return output


def _cut(text: str) -> str:
    """A text that is short enough to be read, with its length where it was longer."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _score(value: float | None, digits: int = 4, sign: bool = False) -> str:
    """A metric, or that there is none; a real minus sign before negative ones."""
    if value is None:
        return "undefined"
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")

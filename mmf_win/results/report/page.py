"""The page of one run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmf_win.console import Progress, duration, moment
from mmf_win.integrity.digest import file_digest
from mmf_win.paths import DatasetPaths
from mmf_win.protocol import read_events
from mmf_win.results.metrics import Metrics, measure
from mmf_win.results.report import plots
from mmf_win.results.report.confounders import Pair, pairs
from mmf_win.results.report.curves import TrainingCurves, named_versions, read_curves
from mmf_win.results.report.pictures import PictureMatcher, Thumbnail, thumbnail
from mmf_win.results.report.render import write_page
from mmf_win.results.report.scored import Meme, Scored, ranked, worst
from mmf_win.runs import history
from mmf_win.runs.folder import Run
from mmf_win.runs.published import PAPER, Published, published, why_none
from mmf_win.runs.request import RunRequest

MISTAKES = 12
"""Memes shown of each kind of mistake."""

GALLERY = 24
"""Memes shown of a split without labels."""

PAIRS = 8
"""Confounder pairs shown."""


@dataclass(frozen=True)
class Fact:
    """Something to know about the run.

    Attributes:
        name, value: as they are listed at the end of the page.
        brief: the value as it stands below the title; None for what does not stand there.
    """

    name: str
    value: str
    brief: str | None = None

    @classmethod
    def above(cls, name: str, value: str) -> Fact:
        """One that stands below the title as it is."""
        return cls(name, value, value)


@dataclass(frozen=True)
class Tile:
    """One metric: its name, a word about it, the value with its interval, and the paper's."""

    name: str
    about: str
    value: float | None
    low: float | None
    high: float | None
    published: Published | None = None

    @property
    def scale(self) -> tuple[float, float]:
        """A range in which the value, its interval and the paper's lie, in tenths."""
        paper = self.published
        spread = (paper.spread or 0.0) if paper else 0.0
        shown = [
            self.value,
            self.low,
            self.high,
            *((paper.value - spread, paper.value + spread) if paper else ()),
        ]
        known = [value for value in shown if value is not None] or [0.0, 1.0]
        return math.floor(min(known) * 10) / 10, math.ceil(max(known) * 10) / 10

    def position(self, value: float) -> float:
        """Where a value lies in that range, in percent."""
        low, high = self.scale
        return round(100 * (value - low) / (high - low or 1.0), 2)


@dataclass(frozen=True)
class Card:
    """One meme on the page."""

    meme: Meme
    picture: Thumbnail | None


@dataclass(frozen=True)
class Confusion:
    """How many memes of each class got which label."""

    kept: int
    false_alarms: int
    missed: int
    caught: int


def write(
    run: Run,
    scored: Scored | None,
    dataset: DatasetPaths,
    output: Path,
    matcher: PictureMatcher | None,
) -> Path:
    """Write the page of a run.

    Args:
        run: what it is about.
        scored: its predictions; None for a page about training alone.
        dataset: where the memes are.
        output: the page.
        matcher: of the memes' pictures; None for a page without small copies of them.

    Raises:
        DataError: the run's request cannot be read.
    """
    request, summary = run.request(), history.summarize(run)
    curves = read_curves(read_events(run.events))
    return write_page(
        "run.html",
        output,
        id=run.id,
        name=request.preset,
        summary=summary,
        curves=None if request.published_weights else curves,
        published=request.published,
        facts=_facts(run, request, summary, curves, scored),
        training=plots.training(curves),
        resources=plots.resources(curves),
        **_about(scored, request.published, dataset, matcher),
    )


def write_blended(
    scored: Scored, dataset: DatasetPaths, output: Path, matcher: PictureMatcher | None
) -> Path:
    """Write the page of an ensemble: all that is on a run's but its training.

    Args:
        scored: its predictions.
        dataset: where the memes are.
        output: the page.
        matcher: of the memes' pictures; None for a page without small copies of them.
    """
    told = scored.record
    members = told.get("members", [])
    return write_page(
        "run.html",
        output,
        id=f"{output.parent.parent.name}/{output.parent.name}",
        name=f"{told.get('ensemble', 'ensemble').capitalize()} of {len(members)}",
        summary=None,
        curves=None,
        published={},
        facts=[
            *(Fact.above("Member", member["run"]) for member in members),
            *(Fact(name, version) for name, version in named_versions(told.get("versions", {}))),
            *_facts_of(scored),
            Fact("Folder", str(scored.csv.parent)),
        ],
        training=[],
        resources=[],
        **_about(scored, {}, dataset, matcher),
    )


def _about(
    scored: Scored | None, numbers: dict[str, Any], dataset: DatasetPaths, matcher: PictureMatcher | None
) -> dict[str, Any]:
    """What there is to say of predictions; ``numbers`` are those published of the preset."""
    images = matcher is not None
    always = {"scored": scored, "paper": PAPER, "images": images, "metrics": None}
    if scored is None:
        return {**always, "decisions": []}
    labels = scored.labels
    cards = _Cards(dataset, images)
    if labels is None:
        return {
            **always,
            "decisions": [plots.histogram(scored.probas, scored.threshold)],
            "gallery": cards.of(ranked(scored.memes, GALLERY)),
            "missing": cards.missing,
            "pictures": cards.pictures,
        }
    metrics = measure(labels, scored.probas, threshold=scored.threshold, calibrated=scored.are_probabilities)
    decisions = plots.decisions(labels, scored.probas, metrics)
    found = pairs(scored.memes, {} if matcher is None else _alike(matcher))
    return {
        **always,
        "metrics": metrics,
        "tiles": _tiles(metrics, scored.split, numbers),
        "why_none": why_none(scored.title),
        "confusion": _confusion(scored.memes),
        "decisions": decisions,
        "alarms": cards.of(worst(scored.memes, 0, MISTAKES)),
        "misses": cards.of(worst(scored.memes, 1, MISTAKES)),
        "pairs": [(pair, *cards.of((pair.hateful, pair.benign))) for pair in _shown(found)],
        "pair_count": len(found),
        "pairs_in_order": sum(pair.margin > 0 for pair in found),
        "missing": cards.missing,
        "pictures": cards.pictures,
    }


class _Cards:
    """Makes the cards of memes, each picture once, and counts them and those that cannot be read."""

    def __init__(self, dataset: DatasetPaths, images: bool) -> None:
        self._dataset, self._images = dataset, images
        self._made: dict[int, Card] = {}

    @property
    def missing(self) -> int:
        return sum(card.picture is None for card in self._made.values()) if self._images else 0

    @property
    def pictures(self) -> int:
        return sum(card.picture is not None for card in self._made.values())

    def of(self, memes: Iterable[Meme]) -> list[Card]:
        return [self._card(meme) for meme in memes]

    def _card(self, meme: Meme) -> Card:
        if meme.row.id not in self._made:
            picture = thumbnail(self._dataset.images / meme.row.img) if self._images else None
            self._made[meme.row.id] = Card(meme, picture)
        return self._made[meme.row.id]


def _alike(matcher: PictureMatcher) -> dict[int, int]:
    with Progress("comparing pictures", matcher.work, "image") as progress:
        return matcher.alike(lambda: progress.advance(1))


def _shown(found: list[Pair]) -> list[Pair]:
    """The worst pairs, in which no meme comes twice."""
    shown: list[Pair] = []
    seen: set[int] = set()
    for pair in found:
        ids = {pair.hateful.row.id, pair.benign.row.id}
        if len(shown) < PAIRS and not ids & seen:
            shown.append(pair)
            seen |= ids
    return shown


def _tiles(metrics: Metrics, split: str, numbers: dict[str, Any]) -> list[Tile]:
    about = {
        "auroc": ("AUROC", "what the challenge ranked by"),
        "accuracy": ("Accuracy", f"at the threshold {metrics.threshold:.3g}"),
        "average_precision": ("Average precision", "of the hateful class"),
        "f1": ("F1", "of the hateful class"),
        "brier": ("Brier score", "less is better"),
        "calibration_error": ("Calibration error", "less is better"),
    }
    tiles = []
    for key, (name, word) in about.items():
        score = getattr(metrics, key)
        if score.value is None and key in ("brier", "calibration_error"):
            continue
        paper = published(numbers, split, key)
        tiles.append(Tile(name, word, score.value, score.low, score.high, paper))
    return tiles


def _confusion(memes: Iterable[Meme]) -> Confusion:
    counts = {(label, decision): 0 for label in (0, 1) for decision in (0, 1)}
    for meme in memes:
        if meme.row.label is not None:
            counts[meme.row.label, meme.decision] += 1
    return Confusion(counts[0, 0], counts[0, 1], counts[1, 0], counts[1, 1])


def _facts(
    run: Run, request: RunRequest, summary: history.Summary, curves: TrainingCurves, scored: Scored | None
) -> list[Fact]:
    if request.published_weights:
        return [
            Fact("Preset", request.preset),
            Fact.above("Model", request.model),
            Fact.above("Weights", f"published, {request.published_weights}"),
            *(Fact(name, version) for name, version in named_versions(_versions(scored))),
            Fact("State", summary.state),
            *([] if scored is None else _facts_of(scored)),
            Fact("Folder", str(run.path)),
        ]
    last = curves.attempts[-1] if curves.attempts else None
    seed = request.seed if request.seed is not None else "drawn"
    total = f" of {summary.max_updates:,}" if summary.max_updates else ""
    facts = [
        Fact("Preset", request.preset),
        Fact.above("Model", request.model),
        Fact.above("MMF", request.mmf or "unknown"),
        *(Fact(name, version) for name, version in curves.versions),
        Fact.above("Began", moment(summary.started)),
        Fact.above("Training took", duration(summary.seconds)),
        Fact.above("Updates", f"{summary.updates or 0:,}{total}"),
        Fact("State", summary.state),
        Fact.above("Seed", str(seed)),
    ]
    if last is not None:
        facts += [
            Fact.above("Batch", last.batching),
            Fact.above("Device", last.device or "unknown"),
        ]
        if last.data is not None:
            facts.append(Fact("Trained on", str(last.data), str(last.data) if last.data.is_partial else None))
    on = summary.validated_on or "unknown"
    facts.append(Fact("Validated on", on, on if on != summary.val_split else None))
    if scored is not None:
        facts += _facts_of(scored)
    return [*facts, Fact("Folder", str(run.path))]


def _versions(scored: Scored | None) -> dict[str, str]:
    return {} if scored is None else scored.record.get("versions", {})


def _facts_of(scored: Scored) -> list[Fact]:
    digest = file_digest(scored.annotations).hex()
    facts = [
        Fact("Split", f"{scored.title}, {scored.coverage.amount} memes"),
        Fact("Annotations", f"sha256 {digest}", f"{digest[:8]}…"),
    ]
    for member in scored.record.get("members", []):
        name, weights = Path(member["checkpoint"]).name, member["checkpoint_sha256"]
        facts.append(Fact("Checkpoint", f"{name}, sha256 {weights}", f"{name} {weights[:8]}…"))
    origin = scored.record.get("threshold_from", "default")
    chosen = f"{scored.threshold:.4g}" + ("" if origin == "default" else f", {origin}")
    return [*facts, Fact.above("Threshold", chosen), Fact("Predictions", scored.csv.name)]

"""The page that compares several runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from mmf_win.dataset.annotations import labels_of
from mmf_win.protocol import read_events
from mmf_win.results.metrics import SAMPLES, AurocDifference, auroc_difference, measure
from mmf_win.results.report import plots
from mmf_win.results.report.curves import TrainingCurves, read_curves
from mmf_win.results.report.scored import Scored
from mmf_win.results.report.svg import SERIES
from mmf_win.runs import history
from mmf_win.runs.folder import Run
from mmf_win.runs.paper import PAPER, Published, published, why_none
from mmf_win.runs.request import RunRequest


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs.

    Attributes:
        run, request, summary, curves: what its folder says.
        scored: its predictions of the split that is compared; None where there are none with labels.
        auroc, accuracy: of these predictions.
    """

    run: Run
    request: RunRequest
    summary: history.Summary
    curves: TrainingCurves
    scored: Scored | None
    auroc: float | None
    accuracy: float | None

    @property
    def best(self) -> float | None:
        """Its best validation AUROC."""
        return self.summary.best_auroc

    @property
    def best_on(self) -> str | None:
        """What that was measured on; None where there is none."""
        return None if self.best is None else self.summary.validated_on

    @property
    def rows(self) -> str | None:
        """How many rows of the split were predicted; None where there are no predictions."""
        return None if self.scored is None else self.scored.coverage.amount

    @property
    def group(self) -> str:
        """What it is averaged with: runs trained by the same preset, or published weights of it."""
        preset = self.request.preset
        return f"{preset}, published weights" if self.request.published_weights else preset


@dataclass(frozen=True)
class PresetGroup:
    """The runs of one preset."""

    preset: str
    entries: Sequence[ComparedRun]

    def spread(self, metric: str) -> tuple[float | None, float | None]:
        """Mean of ``best``, ``auroc`` or ``accuracy``, and standard deviation where two or more are known."""
        known = [value for entry in self.entries if (value := getattr(entry, metric)) is not None]
        return (
            statistics.mean(known) if known else None,
            statistics.stdev(known) if len(known) > 1 else None,
        )

    def same(self, attribute: str) -> str | None:
        """``best_on`` or ``rows``, where it is known and the same for all of the runs."""
        values = {getattr(entry, attribute) for entry in self.entries} - {None}
        if len(values) > 1:
            return "different rows"
        return next(iter(values), None)

    def is_comparable(self, paper: Published) -> bool:
        """Whether all of the runs predicted as many rows as the paper did."""
        return all(paper.rows == len(e.scored.memes) for e in self.entries if e.scored is not None)


@dataclass(frozen=True)
class Contrast:
    """Two runs on the memes that both predicted."""

    first: ComparedRun
    second: ComparedRun
    memes: int
    difference: AurocDifference | None


def of_runs(runs: Sequence[tuple[Run, Scored | None]], split: str | None) -> dict[str, Any]:
    """What the page shows.

    Args:
        runs: each with its predictions of ``split``.
        split: what the runs are compared on; None where none of them has predicted anything.

    Raises:
        DataError: a run's request cannot be read.
    """
    entries = [entry_of(run, scored) for run, scored in runs]
    groups = grouped(entries)
    colours = coloured(entries)
    published_of = {group.preset: group.entries[0].request.published for group in groups}
    papers = {name: split and published(of, split, "auroc") for name, of in published_of.items()}
    curves = (("validation", "Validation AUROC", "auroc"), ("loss", "Training loss", "loss"))
    return {
        "groups": groups,
        "entries": entries,
        "split": split,
        "papers": papers if any(papers.values()) else {},
        "paper": PAPER,
        "why_none": why_none(split) if split and any(entry.request.published for entry in entries) else None,
        "contrasts": contrasts(entries),
        "samples": SAMPLES,
        "plots": [
            plots.overlaid(name, title, [(e.curves.series(key), _colour(e, colours)) for e in entries])
            for name, title, key in curves
            if any(e.curves.series(key) for e in entries)
        ],
        "colours": colours,
    }


def coloured(entries: Sequence[ComparedRun]) -> dict[str, str]:
    """What colours tell apart, each with its role: the presets, or the runs where all are of one preset.

    There are eight colours, which then come again.
    """
    presets = dict.fromkeys(entry.group for entry in entries)
    apart = list(presets) if len(presets) > 1 else [entry.run.id for entry in entries]
    return {name: SERIES[n % len(SERIES)] for n, name in enumerate(apart)}


def _colour(entry: ComparedRun, colours: Mapping[str, str]) -> str:
    return colours.get(entry.run.id) or colours[entry.group]


def grouped(entries: Sequence[ComparedRun]) -> list[PresetGroup]:
    """The runs by preset, in the order in which the presets were first named."""
    names = dict.fromkeys(entry.group for entry in entries)
    return [PresetGroup(name, [entry for entry in entries if entry.group == name]) for name in names]


def contrasts(entries: Sequence[ComparedRun]) -> list[Contrast]:
    """Every two runs that predicted memes in common, the better one of each first."""
    scored = [entry for entry in entries if entry.scored is not None]
    ranked = sorted(scored, key=lambda entry: entry.auroc or 0.0, reverse=True)
    return [_contrast(first, second) for first, second in combinations(ranked, 2)]


def _contrast(first: ComparedRun, second: ComparedRun) -> Contrast:
    assert first.scored is not None and second.scored is not None
    others = {meme.row.id: meme for meme in second.scored.memes}
    both = [(ours, others[ours.row.id]) for ours in first.scored.memes if ours.row.id in others]
    labels = labels_of(ours.row for ours, _ in both)
    difference = None
    if labels is not None:
        difference = auroc_difference(labels, [a.proba for a, _ in both], [b.proba for _, b in both])
    return Contrast(first, second, len(both), difference)


def entry_of(run: Run, scored: Scored | None) -> ComparedRun:
    """A run, with its scores where its predictions have labels.

    Raises:
        DataError: its request cannot be read.
    """
    auroc = accuracy = None
    if scored is not None and scored.labels is not None:
        metrics = measure(scored.labels, scored.probas, threshold=scored.threshold, samples=0)
        auroc, accuracy = metrics["auroc"].value, metrics["accuracy"].value
    curves = read_curves(read_events(run.events))
    return ComparedRun(run, run.request(), history.summarize(run), curves, scored, auroc, accuracy)

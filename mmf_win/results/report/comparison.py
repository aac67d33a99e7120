"""The page that compares several runs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from mmf_win.dataset.annotations import labels_of
from mmf_win.protocol import read_events
from mmf_win.results.metrics import AurocDifference, auroc_difference, measure
from mmf_win.results.report import plots
from mmf_win.results.report.curves import TrainingCurves, read_curves
from mmf_win.results.report.parallel import parallel
from mmf_win.results.report.scored import Scored
from mmf_win.results.report.svg import SERIES, Plot
from mmf_win.runs import history
from mmf_win.runs.folder import Run
from mmf_win.runs.overrides import key_of
from mmf_win.runs.paper import PAPER, Published, published, why_none
from mmf_win.runs.request import RunRequest

BEST = len(SERIES)
"""Of how many runs of a sweep the curves and differences are shown."""

_WORDS = 4  # of a group's name
_LONGEST = 60  # characters of each

# The seed, and keys that change how fast or how often something is done, and not the result.
_NO_MATTER = (
    *(f"request.{key}" for key in ("seed", "keep", "auto_batch", "remembered", "offline", "detect_anomaly")),
    "request.settings.training.seed",
    *(f"mmf.{key}" for key in ("training.seed", "training.num_workers", "checkpoint")),
)


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs.

    Attributes:
        run, request, summary, curves: what its folder says.
        traits: what its result depends on beside the seed, by key; see :func:`_traits`.
        scored: its predictions of the split that is compared; None where there are none with labels.
        auroc, accuracy: of these predictions.
    """

    run: Run
    request: RunRequest
    summary: history.Summary
    curves: TrainingCurves
    traits: Mapping[str, Any]
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
    def preset(self) -> str:
        """What it was trained by, or what its published weights are of."""
        preset = self.request.preset
        return f"{preset}, published weights" if self.request.published_weights else preset


@dataclass(frozen=True)
class Group:
    """Runs that were trained to their end with configurations that differ in the seed alone, or one run.

    Attributes:
        name: their preset, and what tells them from other groups of it.
        entries: the runs.
    """

    name: str
    entries: Sequence[ComparedRun]

    def takes(self, entry: ComparedRun) -> bool:
        """Whether the run is one of these by all but its seed."""
        first, seeds = self.entries[0], [other.summary.seed for other in self.entries]
        return (
            first.summary.state == entry.summary.state == "done"
            and (entry.summary.seed is None or entry.summary.seed not in seeds)
            and not history.differing(first.traits, entry.traits)
        )

    def spread(self, metric: str) -> tuple[float | None, float | None, int]:
        """Mean of ``best``, ``auroc`` or ``accuracy``, standard deviation where two or more are known, and of
        how many that is.
        """
        known = [value for entry in self.entries if (value := getattr(entry, metric)) is not None]
        return (
            statistics.mean(known) if known else None,
            statistics.stdev(known) if len(known) > 1 else None,
            len(known),
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


def of_runs(
    runs: Sequence[tuple[Run, Scored | None]],
    split: str | None,
    settings: Mapping[Path, Mapping[str, object]] | None = None,
) -> dict[str, Any]:
    """What the page shows.

    Args:
        runs: each with its predictions of ``split``.
        split: what the runs are compared on; None where none of them has predicted anything.
        settings: the folder of a run → the parameters in which runs of a sweep differ. With them, curves and
            differences are those of the :data:`BEST` runs alone, since a sweep may have hundreds.

    Raises:
        DataError: a run's request cannot be read.
    """
    entries = [entry_of(run, scored) for run, scored in runs]
    groups = grouped(entries)
    predicted = [entry for entry in entries if entry.scored is not None]
    shown, contrasted = entries, predicted
    if settings is not None:
        shown, contrasted = best(entries), best(predicted)
    chosen = {entry.run for entry in shown}
    parts = [replace(group, entries=[e for e in group.entries if e.run in chosen]) for group in groups]
    parts = [group for group in parts if group.entries]
    colours = coloured(parts)
    published_of = {group.name: group.entries[0].request.published for group in groups}
    papers = {name: split and published(of, split, "auroc") for name, of in published_of.items()}
    curves = (("validation", "Validation AUROC", "auroc"), ("loss", "Training loss", "loss"))
    return {
        "groups": groups,
        "entries": entries,
        "split": split,
        "papers": papers if any(papers.values()) else {},
        "paper": PAPER,
        "why_none": why_none(split) if split and any(entry.request.published for entry in entries) else None,
        "contrasts": contrasts(contrasted),
        "best": BEST,
        "all_predicted": len(contrasted) == len(predicted),
        "all_shown": len(shown) == len(entries),
        "all_validated_alike": len({entry.best_on for entry in entries} - {None}) < 2,
        "settings": _settings(entries, settings or {}),
        "plots": [
            plots.overlaid(
                name,
                title,
                [
                    (entry.curves.series(key), colours.get(entry.run.id) or colours[group.name])
                    for group in parts
                    for entry in group.entries
                ],
            )
            for name, title, key in curves
            if any(e.curves.series(key) for e in shown)
        ],
        "colours": colours,
    }


def best(entries: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Those with the best validation AUROC, in their order; a test set is not for choosing."""
    ranked = sorted(entries, key=lambda entry: -1.0 if entry.best is None else entry.best, reverse=True)
    chosen = {entry.run for entry in ranked[:BEST]}
    return [entry for entry in entries if entry.run in chosen]


def _settings(entries: Sequence[ComparedRun], settings: Mapping[Path, Mapping[str, object]]) -> Plot | None:
    """Which settings gave which validation AUROC; None where nothing is known of either."""
    rows = [(settings.get(entry.run.path, {}), entry.best) for entry in entries]
    axes = list(dict.fromkeys(key for row, _ in rows for key in row))
    if not axes or all(score is None for _, score in rows):
        return None
    score = "validation AUROC"
    return parallel(
        "settings",
        "Settings and validation AUROC",
        axes,
        [{**row, score: reached} for row, reached in rows],
        score,
    )


def coloured(groups: Sequence[Group]) -> dict[str, str]:
    """What colours tell apart, each with its role: the groups, or the runs where all are of one group.

    There are eight colours, which then come again.
    """
    apart = [group.name for group in groups]
    if len(groups) == 1:
        apart = [entry.run.id for entry in groups[0].entries]
    return {name: SERIES[n % len(SERIES)] for n, name in enumerate(apart)}


def grouped(entries: Sequence[ComparedRun]) -> list[Group]:
    """The runs with those that they may be averaged with, in the order in which they were named."""
    groups: list[Group] = []
    for entry in _told_apart(entries):
        group = next((group for group in groups if group.takes(entry)), None)
        if group is None:
            groups.append(Group(entry.preset, [entry]))
        else:
            groups[groups.index(group)] = replace(group, entries=[*group.entries, entry])
    firsts = [group.entries[0] for group in groups]
    names = [_name(first, [other for other in firsts if other.preset == first.preset]) for first in firsts]
    return [
        replace(group, name=name if names.count(name) == 1 else f"{name} ({group.entries[0].run.id})")
        for group, name in zip(groups, names, strict=True)
    ]


def _told_apart(entries: Sequence[ComparedRun]) -> list[ComparedRun]:
    """The runs without the traits that all have in common: every two of many are compared.

    One of MMF's keys stays, so that :func:`history.differing` still knows which runs have its configuration.
    """
    resolved = [entry for entry in entries if any(key.startswith("mmf.") for key in entry.traits)]

    def differs(key: str) -> bool:
        having = resolved if key.startswith("mmf.") else entries
        return any(entry.traits.get(key) != having[0].traits.get(key) for entry in having)

    keys = {key for entry in entries for key in entry.traits}
    apart = {key for key in keys if differs(key)}
    apart.update(sorted(key for key in keys - apart if key.startswith("mmf."))[:1])
    return [replace(e, traits={key: e.traits[key] for key in e.traits if key in apart}) for e in entries]


def _name(first: ComparedRun, others: Sequence[ComparedRun]) -> str:
    """The preset of a group, and what it has that groups of ``others`` have not."""
    apart = {key for other in others for key in history.differing(first.traits, other.traits)}
    # What was asked for says enough; MMF's configuration follows from it.
    shown = sorted(key for key in apart if not key.startswith("mmf.")) or sorted(apart)
    told = {key: first.traits.get(key) for key in shown}
    if "request.overrides" in told:
        common = set.intersection(*(set(other.traits["request.overrides"]) for other in others))
        told["request.overrides"] = [text for text in first.traits["request.overrides"] if text not in common]
    words = [f"{_brief(key)} {_said(value)}" for key, value in told.items() if value not in (None, [])]
    more = [f"and {len(words) - _WORDS} more"] if len(words) > _WORDS else []
    return ", ".join([first.preset, *words[:_WORDS], *more])


def _brief(key: str) -> str:
    return re.sub(r"^(request\.settings|request|mmf)\.", "", key).replace("_", " ")


def _said(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _traits(run: Run, summary: history.Summary, curves: TrainingCurves) -> dict[str, Any]:
    """What the result of a run depends on beside its seed.

    That is its configuration, and what this does not tell: what it was trained on, which totals it was to
    reach when, since rates of learning depend on that, and how it ended.
    """
    traits = {
        key: value
        for key, value in history.configuration(run).items()
        if not any(key == same or key.startswith(f"{same}.") for same in _NO_MATTER)
    }
    overrides = [text for text in run.request().overrides if f"mmf.{key_of(text)}" not in _NO_MATTER]
    totals = list(dict.fromkeys(attempt.total for attempt in curves.attempts))
    data = next((str(attempt.data) for attempt in reversed(curves.attempts) if attempt.data), None)
    return traits | {
        "request.overrides": overrides,
        "trained on": data,
        "totals": " then ".join(map(str, totals)) if len(totals) > 1 else None,
        "ended": None if summary.state == "done" else summary.state,
    }


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
        metrics = measure(scored.labels, scored.probas, threshold=scored.threshold)
        auroc, accuracy = metrics["auroc"].value, metrics["accuracy"].value
    curves, summary = read_curves(read_events(run.events)), history.summarize(run)
    traits = _traits(run, summary, curves)
    return ComparedRun(run, run.request(), summary, curves, traits, scored, auroc, accuracy)

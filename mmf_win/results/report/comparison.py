"""The page that compares several runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from textwrap import shorten
from typing import Any

from mmf_win.dataset.annotations import labels_of
from mmf_win.dataset.published_results import (
    PAPER,
    PublishedScore,
    find_published_score,
    missing_score_reason,
)
from mmf_win.results.metrics import Score, auroc_difference
from mmf_win.results.report import plots
from mmf_win.results.report.curves import TrainingCurves, read_curves
from mmf_win.results.report.scored import Scored
from mmf_win.runs import history, seeds
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord

_BEST = len(plots.SERIES)  # of how many runs of a sweep the curves and differences are shown
_LONGEST = 120  # characters of a group's name

# The seed, what is told otherwise, and what changes how something is done, and not the result.
_NO_MATTER = re.compile(
    r"(mmf\.)?training\.(seed|num_workers|log_interval)|mmf\.checkpoint\..*|training\.max_(updates|epochs)"
    r"|mmfw\.(updates|epochs|keep|auto_batch)|settings|offline|preset_file",
)


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs.

    Attributes:
        known: what its files say.
        preset: what it was trained by, or what its published weights are of.
        configuration: what its result depends on beside the seed, by key; see :func:`_configuration`.
        best, best_on: its best validation AUROC, and what that was measured on, where there is one.
        scored, rows: its predictions of the split that is compared, and of how many rows, where it has some.
        auroc, accuracy: of these predictions, where all of them have labels.
    """

    known: RunRecord
    curves: TrainingCurves
    preset: str
    configuration: Mapping[str, Any]
    best: float | None
    best_on: str | None
    scored: Scored | None
    rows: str | None
    auroc: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Group:
    """Runs that were trained to their end with configurations that differ in the seed alone, or one run.

    The name is their preset, and what tells them from other groups of it.
    """

    name: str
    entries: Sequence[ComparedRun]

    def same(self, attribute: str) -> str | None:
        """``best_on`` or ``rows``, where it is known and the same for all of the runs."""
        values = {getattr(entry, attribute) for entry in self.entries} - {None}
        return "different rows" if len(values) > 1 else next(iter(values), None)

    def is_comparable(self, paper: PublishedScore) -> bool:
        """Whether all of the runs predicted as many rows as the paper did."""
        return all(paper.rows == len(e.scored.memes) for e in self.entries if e.scored is not None)


def of_runs(
    runs: Sequence[tuple[RunRecord, Scored | None]],
    split: str | None,
    settings: Mapping[Run, Mapping[str, object]],
) -> dict[str, Any]:
    """What the page shows.

    Args:
        runs: each with its predictions of ``split`` by its best checkpoint.
        split: what the runs are compared on; None where none of them has predicted anything.
        settings: the parameters in which runs of a sweep differ. With them, curves and differences are those
            of the eight best runs alone, since a sweep may have hundreds.

    Raises DataError where a run's configuration, or how it ended, cannot be read.
    """
    entries = [entry_of(known, scored) for known, scored in runs]
    groups = grouped(entries)
    predicted = [entry for entry in entries if entry.scored is not None]
    shown, contrasted = (best(entries), best(predicted)) if settings else (entries, predicted)
    group_of = {entry.known.run: group.name for group in groups for entry in group.entries}
    apart = dict.fromkeys(group_of[entry.known.run] for entry in shown)
    if len(apart) == 1:
        apart = dict.fromkeys(entry.known.summary.id for entry in shown)
    colours = dict(zip(apart, cycle(plots.SERIES)))  # of the groups, or of the runs of the only one
    roles = [colours.get(e.known.summary.id) or colours[group_of[e.known.run]] for e in shown]
    numbers = {group.name: group.entries[0].known.request.published for group in groups}
    varied = [(settings[e.known.run], e.best) for e in entries if e.known.run in settings]
    papers = {name: split and find_published_score(of, split, "auroc") for name, of in numbers.items()}
    return {
        "groups": groups,
        "entries": entries,
        "split": split,
        "papers": papers if any(papers.values()) else {},
        "paper": PAPER,
        "why_none": missing_score_reason(split)
        if split and any(e.known.request.published for e in entries)
        else None,
        "contrasts": contrasts(contrasted),
        "best": _BEST,
        "all_predicted": len(contrasted) == len(predicted),
        "all_shown": len(shown) == len(entries),
        "all_validated_alike": len({entry.best_on for entry in entries} - {None}) < 2,
        "settings": plots.by_setting(varied),
        "plots": plots.overlaid([*zip((entry.curves for entry in shown), roles, strict=True)]),
        "colours": colours,
    }


def best(entries: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Those with the best validation AUROC, in their order; a test set is not for choosing."""
    ranked = sorted(entries, key=lambda entry: -1.0 if entry.best is None else entry.best, reverse=True)
    chosen = {entry.known.run for entry in ranked[:_BEST]}
    return [entry for entry in entries if entry.known.run in chosen]


def grouped(entries: Sequence[ComparedRun]) -> list[Group]:
    """The runs with those that they may be averaged with, in the order in which they were named."""

    def alike(entry: ComparedRun) -> str:
        alone = None if entry.known.state == "done" else entry.known.run.path
        return repr((sorted(entry.configuration.items()), alone))

    groups = seeds.group_by_config((entry, alike(entry), entry.known.summary.seed) for entry in entries)
    firsts = [group[0] for group in groups]
    names = [_name(first, [other for other in firsts if other.preset == first.preset]) for first in firsts]
    return [
        Group(name if names.count(name) == 1 else f"{name} ({group[0].known.summary.id})", group)
        for group, name in zip(groups, names, strict=True)
    ]


def _name(first: ComparedRun, others: Sequence[ComparedRun]) -> str:
    """The preset of a group, and the settings that tell it from ``others`` of the preset."""

    def apart(of_mmf: bool) -> list[str]:
        return [
            f"{key}={value}"
            for key, value in first.configuration.items()
            if key.startswith("mmf.") == of_mmf
            and any(value != other.configuration.get(key) for other in others)
        ]

    # MMF's configuration follows from what was asked for, unless a file that this names was changed.
    return shorten(", ".join([first.preset, *(apart(False) or apart(True))]), _LONGEST, placeholder=" …")


def _configuration(known: RunRecord, curves: TrainingCurves) -> dict[str, Any]:
    """What the result of a run depends on beside its seed: what was asked for, what MMF made of it, what it
    was trained on, which totals it was to reach when (rates of learning depend on that), and how it ended.
    """
    told = history.comparable_config(known.run).items()
    found = {key.removeprefix("request.").removeprefix("settings."): value for key, value in told}
    data = [str(attempt.data) for attempt in curves.attempts if attempt.data]
    totals = dict.fromkeys(str(attempt.total) for attempt in curves.attempts if attempt.total)
    found |= {
        "trained on": data[-1] if data else None,
        "total": " then ".join(totals),
        "state": None if known.state == "done" else known.state,
    }
    return {key: value for key, value in found.items() if value is not None and not _NO_MATTER.fullmatch(key)}


def contrasts(entries: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Of every two runs with predictions, the better one first, the difference on the memes of both."""
    scored = [(entry, entry.scored.memes) for entry in entries if entry.scored is not None]
    ranked = sorted(scored, key=lambda pair: pair[0].auroc or 0.0, reverse=True)
    found = []
    for (first, ours), (second, others) in combinations(ranked, 2):
        theirs = {meme.row.id: meme.proba for meme in others}
        both = [meme for meme in ours if meme.row.id in theirs]
        labels, difference = labels_of(meme.row for meme in both), Score(None)
        if labels is not None:
            p, q = [meme.proba for meme in both], [theirs[meme.row.id] for meme in both]
            difference = auroc_difference(labels, p, q)
        found.append({"first": first, "second": second, "memes": len(both), "difference": difference})
    return found


def entry_of(known: RunRecord, scored: Scored | None) -> ComparedRun:
    """A run, with its scores where its predictions have labels. Raises as :func:`of_runs`."""
    metrics = {} if scored is None else scored.metrics
    request, summary, curves = known.request, known.summary, read_curves(known.events, known.attempt_outcome)
    on = None if summary.best_auroc is None else summary.validated_on
    return ComparedRun(
        known,
        curves,
        preset=f"{request.preset}, published weights" if request.published_weights else request.preset,
        configuration=_configuration(known, curves),
        best=summary.best_auroc,
        best_on=None if on is None else on.split_label,
        scored=scored,
        rows=None if scored is None else scored.coverage.amount,
        auroc=metrics["auroc"].value if metrics else None,
        accuracy=metrics["accuracy"].value if metrics else None,
    )

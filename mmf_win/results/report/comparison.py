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
from mmf_win.results.metrics import MetricEstimate, auroc_difference
from mmf_win.results.report import plots
from mmf_win.results.report.curves import TrainingCurves, read_curves
from mmf_win.results.report.scored_split import ScoredSplit
from mmf_win.runs import history, seeds
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord

_MAX_SHOWN_RUNS = len(plots.SERIES_ROLES)  # of how many runs of a sweep the curves and differences are shown
_MAX_NAME_CHARS = 120  # characters of a group's name

# The seed, what is told otherwise, and what changes how something is done, and not the result.
_IRRELEVANT_KEYS = re.compile(
    r"(mmf\.)?training\.(seed|num_workers|log_interval)|mmf\.checkpoint\..*|training\.max_(updates|epochs)"
    r"|mmfw\.(updates|epochs|keep|auto_batch)|settings|offline|preset_file",
)


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs.

    Attributes:
        known: what its files say.
        preset: what it was trained by, or what its published weights are of.
        configuration: what its result depends on beside the seed, by key; see :func:`_result_config`.
        best, best_on: its best validation AUROC, and what that was measured on, where there is one.
        scored, rows: its predictions of the split that is compared, and of how many rows, where it has some.
        auroc, accuracy: of these predictions, where all of them have labels.
    """

    run_record: RunRecord
    curves: TrainingCurves
    preset: str
    configuration: Mapping[str, Any]
    best_auroc: float | None
    validation_rows: str | None
    scored: ScoredSplit | None
    rows: str | None
    auroc: float | None
    accuracy: float | None


@dataclass(frozen=True)
class SeedGroup:
    """Runs that were trained to their end with configurations that differ in the seed alone, or one run.

    The name is their preset, and what tells them from other groups of it.
    """

    name: str
    entries: Sequence[ComparedRun]

    def shared_value(self, attribute: str) -> str | None:
        """``validation_rows`` or ``rows``, where it is known and the same for all of the runs."""
        values = {getattr(entry, attribute) for entry in self.entries} - {None}
        return "different rows" if len(values) > 1 else next(iter(values), None)

    def is_comparable(self, paper: PublishedScore) -> bool:
        """Whether all of the runs predicted as many rows as the paper did."""
        return all(paper.rows == len(e.scored.memes) for e in self.entries if e.scored is not None)


def comparison_context(
    runs: Sequence[tuple[RunRecord, ScoredSplit | None]],
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
    entries = [build_compared_run(known, scored) for known, scored in runs]
    groups = group_runs(entries)
    predicted = [entry for entry in entries if entry.scored is not None]
    shown, contrasted = (
        (select_best_runs(entries), select_best_runs(predicted)) if settings else (entries, predicted)
    )
    group_of = {entry.run_record.run: group.name for group in groups for entry in group.entries}
    apart = dict.fromkeys(group_of[entry.run_record.run] for entry in shown)
    if len(apart) == 1:
        apart = dict.fromkeys(entry.run_record.summary.id for entry in shown)
    colours = dict(zip(apart, cycle(plots.SERIES_ROLES)))  # of the groups, or of the runs of the only one
    roles = [colours.get(e.run_record.summary.id) or colours[group_of[e.run_record.run]] for e in shown]
    numbers = {group.name: group.entries[0].run_record.request.published for group in groups}
    varied = [(settings[e.run_record.run], e.best_auroc) for e in entries if e.run_record.run in settings]
    papers = {name: split and find_published_score(of, split, "auroc") for name, of in numbers.items()}
    return {
        "groups": groups,
        "entries": entries,
        "split": split,
        "papers": papers if any(papers.values()) else {},
        "paper": PAPER,
        "why_none": missing_score_reason(split)
        if split and any(e.run_record.request.published for e in entries)
        else None,
        "contrasts": compare_aurocs(contrasted),
        "best": _MAX_SHOWN_RUNS,
        "all_predicted": len(contrasted) == len(predicted),
        "all_shown": len(shown) == len(entries),
        "all_validated_alike": len({entry.validation_rows for entry in entries} - {None}) < 2,
        "settings": plots.draw_scores_by_setting(varied),
        "plots": plots.draw_overlaid_curves([*zip((entry.curves for entry in shown), roles, strict=True)]),
        "colours": colours,
    }


def select_best_runs(entries: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Those with the best validation AUROC, in their order; a test set is not for choosing."""
    ranked = sorted(
        entries, key=lambda entry: -1.0 if entry.best_auroc is None else entry.best_auroc, reverse=True
    )
    chosen = {entry.run_record.run for entry in ranked[:_MAX_SHOWN_RUNS]}
    return [entry for entry in entries if entry.run_record.run in chosen]


def group_runs(entries: Sequence[ComparedRun]) -> list[SeedGroup]:
    """The runs with those that they may be averaged with, in the order in which they were named."""

    def group_key(entry: ComparedRun) -> str:
        alone = None if entry.run_record.state == "done" else entry.run_record.run.path
        return repr((sorted(entry.configuration.items()), alone))

    groups = seeds.group_by_config(
        (entry, group_key(entry), entry.run_record.summary.seed) for entry in entries
    )
    firsts = [group[0] for group in groups]
    names = [
        _group_name(first, [other for other in firsts if other.preset == first.preset]) for first in firsts
    ]
    return [
        SeedGroup(name if names.count(name) == 1 else f"{name} ({group[0].run_record.summary.id})", group)
        for group, name in zip(groups, names, strict=True)
    ]


def _group_name(first: ComparedRun, others: Sequence[ComparedRun]) -> str:
    """The preset of a group, and the settings that tell it from ``others`` of the preset."""

    def differing_settings(is_mmf_key: bool) -> list[str]:
        return [
            f"{key}={value}"
            for key, value in first.configuration.items()
            if key.startswith("mmf.") == is_mmf_key
            and any(value != other.configuration.get(key) for other in others)
        ]

    # MMF's configuration follows from what was asked for, unless a file that this names was changed.
    return shorten(
        ", ".join([first.preset, *(differing_settings(False) or differing_settings(True))]),
        _MAX_NAME_CHARS,
        placeholder=" …",
    )


def _result_config(run_record: RunRecord, curves: TrainingCurves) -> dict[str, Any]:
    """What the result of a run depends on beside its seed: what was asked for, what MMF made of it, what it
    was trained on, which totals it was to reach when (rates of learning depend on that), and how it ended.
    """
    told = history.comparable_config(run_record.run).items()
    found = {key.removeprefix("request.").removeprefix("settings."): value for key, value in told}
    data = [str(attempt.coverage) for attempt in curves.attempts if attempt.coverage]
    totals = dict.fromkeys(str(attempt.max_updates) for attempt in curves.attempts if attempt.max_updates)
    found |= {
        "trained on": data[-1] if data else None,
        "total": " then ".join(totals),
        "state": None if run_record.state == "done" else run_record.state,
    }
    return {
        key: value
        for key, value in found.items()
        if value is not None and not _IRRELEVANT_KEYS.fullmatch(key)
    }


def compare_aurocs(entries: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Of every two runs with predictions, the better one first, the difference on the memes of both."""
    scored = [(entry, entry.scored.memes) for entry in entries if entry.scored is not None]
    ranked = sorted(scored, key=lambda pair: pair[0].auroc or 0.0, reverse=True)
    found = []
    for (first, ours), (second, others) in combinations(ranked, 2):
        theirs = {meme.row.id: meme.proba for meme in others}
        both = [meme for meme in ours if meme.row.id in theirs]
        labels, difference = labels_of(meme.row for meme in both), MetricEstimate(None)
        if labels is not None:
            p, q = [meme.proba for meme in both], [theirs[meme.row.id] for meme in both]
            difference = auroc_difference(labels, p, q)
        found.append({"first": first, "second": second, "memes": len(both), "difference": difference})
    return found


def build_compared_run(run_record: RunRecord, scored: ScoredSplit | None) -> ComparedRun:
    """A run, with its scores where its predictions have labels. Raises as :func:`comparison_context`."""
    metrics = {} if scored is None else scored.metrics
    request, summary, curves = (
        run_record.request,
        run_record.summary,
        read_curves(run_record.events, run_record.attempt_outcome),
    )
    on = None if summary.best_auroc is None else summary.validated_on
    return ComparedRun(
        run_record,
        curves,
        preset=f"{request.preset}, published weights" if request.published_weights else request.preset,
        configuration=_result_config(run_record, curves),
        best_auroc=summary.best_auroc,
        validation_rows=None if on is None else on.split_label,
        scored=scored,
        rows=None if scored is None else scored.coverage.amount,
        auroc=metrics["auroc"].value if metrics else None,
        accuracy=metrics["accuracy"].value if metrics else None,
    )

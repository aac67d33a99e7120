"""Content of the page that compares several runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from textwrap import shorten
from typing import Any

from mmf_win.dataset.annotations import collect_labels
from mmf_win.dataset.published_results import PAPER, PublishedScore, find_published_score, missing_score_reason
from mmf_win.results.metrics import MetricEstimate, auroc_difference
from mmf_win.results.report import plots
from mmf_win.results.report.curves import TrainingCurves, read_curves
from mmf_win.results.report.scored_split import ScoredSplit
from mmf_win.runs import history, seeds
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord

_MAX_SHOWN_RUNS = len(plots.SERIES_ROLES)  # runs of a sweep with curves and differences
_MAX_NAME_CHARS = 120  # characters of a group's name

# The seed, keys that the page shows separately, and keys that do not affect the result.
_IRRELEVANT_KEYS = re.compile(
    r"(mmf\.)?training\.(seed|num_workers|log_interval)|mmf\.checkpoint\..*|training\.max_(updates|epochs)"
    r"|mmfw\.(updates|epochs|keep|auto_batch)|settings|offline|preset_file"
)


@dataclass(frozen=True)
class ComparedRun:
    """One of the compared runs.

    Attributes:
        run_record: Content of the run's files.
        curves: Training curves.
        preset: Preset of the training, or of the published weights.
        configuration: Everything except the seed that the result depends on, by key; see
            :func:`_read_result_config`.
        best_auroc: Best validation AUROC, if any.
        validation_rows: Rows on which it was measured.
        scored: Predictions of the compared split, if any.
        rows: Number of predicted rows, if any.
        auroc: AUROC of these predictions, if all rows have labels.
        accuracy: Accuracy of these predictions, if all rows have labels.
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
    """Runs that finished training and whose configurations differ only in the seed, or a single run.

    Attributes:
        name: Preset, and the settings that distinguish the group from other groups of the preset.
        entries: Runs of the group.
    """

    name: str
    entries: Sequence[ComparedRun]

    def find_shared_value(self, attribute: str) -> str | None:
        """Return the ``validation_rows`` or ``rows`` that all runs share, "different rows", or None if unknown."""
        values = {getattr(entry, attribute) for entry in self.entries} - {None}
        return "different rows" if len(values) > 1 else next(iter(values), None)

    def is_comparable(self, paper: PublishedScore) -> bool:
        """Return whether all runs predicted as many rows as the paper did."""
        return all(paper.rows == len(e.scored.memes) for e in self.entries if e.scored is not None)


def build_comparison_context(
    runs: Sequence[tuple[RunRecord, ScoredSplit | None]],
    split: str | None,
    settings: Mapping[Run, Mapping[str, object]],
) -> dict[str, Any]:
    """Return the template variables of the page.

    Args:
        runs: Each run with the predictions of ``split`` by its best checkpoint.
        split: Split on which the runs are compared; ``None`` if no run has predictions.
        settings: Parameters in which the runs of a sweep differ. If given, curves and differences are limited
            to the eight best runs, because a sweep may have hundreds.

    Raises:
        DataError: A run's configuration or outcome cannot be read.
    """
    entries = [build_compared_run(run_record, scored) for run_record, scored in runs]
    groups = group_runs(entries)
    predicted = [entry for entry in entries if entry.scored is not None]
    shown, compared = (select_best_runs(entries), select_best_runs(predicted)) if settings else (entries, predicted)
    group_of = {entry.run_record.run: group.name for group in groups for entry in group.entries}
    colour_names = dict.fromkeys(group_of[entry.run_record.run] for entry in shown)
    if len(colour_names) == 1:
        colour_names = dict.fromkeys(entry.run_record.summary.id for entry in shown)
    # By group, or by run if there is only one group.
    colours = dict(zip(colour_names, cycle(plots.SERIES_ROLES)))
    roles = [colours.get(e.run_record.summary.id) or colours[group_of[e.run_record.run]] for e in shown]
    published = {group.name: group.entries[0].run_record.request.published_scores for group in groups}
    varied = [(settings[e.run_record.run], e.best_auroc) for e in entries if e.run_record.run in settings]
    papers = {name: split and find_published_score(scores, split, "auroc") for name, scores in published.items()}
    return {
        "groups": groups,
        "entries": entries,
        "split": split,
        "papers": papers if any(papers.values()) else {},
        "paper": PAPER,
        "missing_reason": missing_score_reason(split)
        if split and any(e.run_record.request.published_scores for e in entries)
        else None,
        "contrasts": compare_aurocs(compared),
        "best": _MAX_SHOWN_RUNS,
        "all_predicted": len(compared) == len(predicted),
        "all_shown": len(shown) == len(entries),
        "same_validation_rows": len({entry.validation_rows for entry in entries} - {None}) < 2,
        "settings": plots.draw_scores_by_setting(varied),
        "plots": plots.draw_overlaid_curves([*zip((entry.curves for entry in shown), roles, strict=True)]),
        "colours": colours,
    }


def select_best_runs(entries: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Return the runs with the best validation AUROC in their given order.

    The runs are not selected by their test scores: a test set must not be used for selection.
    """
    ranked = sorted(entries, key=lambda entry: -1.0 if entry.best_auroc is None else entry.best_auroc, reverse=True)
    best_runs = {entry.run_record.run for entry in ranked[:_MAX_SHOWN_RUNS]}
    return [entry for entry in entries if entry.run_record.run in best_runs]


def group_runs(entries: Sequence[ComparedRun]) -> list[SeedGroup]:
    """Group the runs that may be averaged, in input order."""

    def group_key(entry: ComparedRun) -> str:
        own_path = None if entry.run_record.state == "done" else entry.run_record.run.path
        return repr((sorted(entry.configuration.items()), own_path))

    groups = seeds.group_by_config((entry, group_key(entry), entry.run_record.summary.seed) for entry in entries)
    firsts = [group[0] for group in groups]
    names = [_format_group_name(first, [other for other in firsts if other.preset == first.preset]) for first in firsts]
    return [
        SeedGroup(name if names.count(name) == 1 else f"{name} ({group[0].run_record.summary.id})", group)
        for group, name in zip(groups, names, strict=True)
    ]


def _format_group_name(first: ComparedRun, others: Sequence[ComparedRun]) -> str:
    """Return the preset of a group and the settings that distinguish it from ``others`` of the preset."""

    def list_differing_settings(*, mmf_keys: bool) -> list[str]:
        return [
            f"{key}={value}"
            for key, value in first.configuration.items()
            if key.startswith("mmf.") == mmf_keys and any(value != other.configuration.get(key) for other in others)
        ]

    # MMF's configuration follows from the requested settings unless a file that they name was changed.
    settings = list_differing_settings(mmf_keys=False) or list_differing_settings(mmf_keys=True)
    return shorten(", ".join([first.preset, *settings]), _MAX_NAME_CHARS, placeholder=" …")


def _read_result_config(run_record: RunRecord, curves: TrainingCurves) -> dict[str, Any]:
    """Return everything except the seed that the result of a run depends on, by key.

    This includes the requested settings, MMF's resolved configuration, the training data, the totals of
    updates (the learning rate schedule depends on them) and the outcome.
    """
    config = history.read_comparable_config(run_record.run).items()
    values = {key.removeprefix("request.").removeprefix("settings."): value for key, value in config}
    data = [str(attempt.coverage) for attempt in curves.attempts if attempt.coverage]
    totals = dict.fromkeys(str(attempt.max_updates) for attempt in curves.attempts if attempt.max_updates)
    values |= {
        "trained on": data[-1] if data else None,
        "total": " then ".join(totals),
        "state": None if run_record.state == "done" else run_record.state,
    }
    return {key: value for key, value in values.items() if value is not None and not _IRRELEVANT_KEYS.fullmatch(key)}


def compare_aurocs(entries: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Compare the AUROCs of each pair of runs on the memes that both predicted, the better run first."""
    scored = [(entry, entry.scored.memes) for entry in entries if entry.scored is not None]
    ranked = sorted(scored, key=lambda pair: pair[0].auroc or 0.0, reverse=True)
    differences = []
    for (first, first_memes), (second, second_memes) in combinations(ranked, 2):
        other_probas = {meme.row.id: meme.proba for meme in second_memes}
        shared = [meme for meme in first_memes if meme.row.id in other_probas]
        labels, difference = collect_labels(meme.row for meme in shared), MetricEstimate(None)
        if labels is not None:
            p, q = ([meme.proba for meme in shared], [other_probas[meme.row.id] for meme in shared])
            difference = auroc_difference(labels, p, q)
        differences.append({"first": first, "second": second, "memes": len(shared), "difference": difference})
    return differences


def build_compared_run(run_record: RunRecord, scored: ScoredSplit | None) -> ComparedRun:
    """Return the entry of a run, with scores if its predictions have labels.

    Raises:
        DataError: The run's configuration or outcome cannot be read.
    """
    metrics = {} if scored is None else scored.metrics
    request, summary = run_record.request, run_record.summary
    curves = read_curves(run_record.events, run_record.attempt_outcome)
    coverage = None if summary.best_auroc is None else summary.validated_on
    return ComparedRun(
        run_record,
        curves,
        preset=f"{request.preset}, published weights" if request.published_weights else request.preset,
        configuration=_read_result_config(run_record, curves),
        best_auroc=summary.best_auroc,
        validation_rows=None if coverage is None else coverage.split_label,
        scored=scored,
        rows=None if scored is None else scored.coverage.amount,
        auroc=metrics["auroc"].value if metrics else None,
        accuracy=metrics["accuracy"].value if metrics else None,
    )

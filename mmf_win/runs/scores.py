"""Scores of a run, each with its split and checkpoint.

A table or test uses one split and one checkpoint of each run: the current ``best``. It is identified by the
SHA-256 that the worker recorded when it saved the checkpoint, so nothing needs to be hashed here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mmf_win.dataset.coverage import Coverage
from mmf_win.dataset.user_memes import user_annotations_path
from mmf_win.files import read_json
from mmf_win.protocol import Event
from mmf_win.runs.folder import Run

BEST, UNKNOWN = "best", "unknown"

_TIMESTAMP_PATTERN = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:-\d+)?"


@dataclass(frozen=True)
class ScoredPrediction:
    """A prediction file of a run.

    Attributes:
        csv: The file.
        split: Stem of the annotation file, or the name that stands for user data.
        checkpoint: Checkpoint that was used: the current ``best``, ``update 300``, or ``unknown`` if the run
            has no record of its hash.
        auroc: AUROC from 0 to 1; ``None`` without labels.
        coverage: Split and rows of the score; ``None`` if not recorded.
    """

    csv: Path
    split: str
    checkpoint: str
    auroc: float | None
    coverage: Coverage | None


@dataclass(frozen=True)
class RunScores:
    """Scores of a run.

    Attributes:
        validation: Validation event of the best checkpoint; if that is unknown, the one with the best AUROC.
        checkpoint_names: Names of the checkpoints (see :class:`ScoredPrediction`), by SHA-256.
        scored_checkpoint: Checkpoint that tables and tests use: ``best``, the last one before there is a
            best, or ``unknown``.
        predictions: All predictions of the run, newest first.
        newest_by_split: Newest prediction with ``scored_checkpoint``, by split.
    """

    validation: Event | None = None
    checkpoint_names: Mapping[str | None, str] = field(default_factory=dict)
    scored_checkpoint: str = UNKNOWN
    predictions: Sequence[ScoredPrediction] = ()
    newest_by_split: Mapping[str, ScoredPrediction] = field(default_factory=dict)

    @property
    def best_auroc(self) -> float | None:
        """Validation AUROC of the best checkpoint."""
        return None if self.validation is None else val_auroc(self.validation)

    @property
    def validated_on(self) -> Coverage | None:
        """Validation split and the number of its rows used, or ``None`` if the event does not record them."""
        return Coverage.from_json(self.validation and self.validation.get("data"))

    @property
    def scored_by_split(self) -> dict[str, ScoredPrediction]:
        """Predictions of ``newest_by_split`` that have an AUROC, without those of user data."""
        scored = ((split, item) for split, item in self.newest_by_split.items() if item.auroc is not None)
        return {split: item for split, item in scored if not user_annotations_path(item.csv).is_file()}


def read_scores(run: Run, events: Sequence[Event], published_sha256: str | None = None) -> RunScores:
    """Collect the scores of a run from its events and its prediction files.

    Args:
        run: The run.
        events: Events of the run.
        published_sha256: SHA-256 of the published weights, for a run of such weights that was never trained.
            Predictions with these weights count as predictions with the ``best`` checkpoint.

    Returns:
        The scores.
    """
    saves = [event for event in events if event["kind"] == "checkpoint"]
    names = {event.get("sha256"): f"update {event.get('update')}" for event in saves}
    best = next((event for event in reversed(saves) if event.get("best") and "sha256" in event), None)
    scored = UNKNOWN
    if best is not None or published_sha256 is not None:
        scored = names[published_sha256 if best is None else best["sha256"]] = BEST
    elif saves and None not in names:
        scored = names[saves[-1]["sha256"]]
    predictions = _find_predictions(run, names)
    newest = {item.split: item for item in reversed(predictions) if item.checkpoint == scored}
    return RunScores(_find_best_validation(events, best), names, scored, predictions, newest)


def common_split(splits: Iterable[Iterable[str]]) -> str | None:
    """Return the split that most runs have, preferring test splits; ``None`` if there is no split."""
    counts = Counter(split for run_splits in splits for split in set(run_splits))
    return max(counts, key=lambda split: (counts[split], is_test_split(split), split), default=None)


def is_test_split(split: str) -> bool:
    """Return whether a split is a test split, judging by its name."""
    return f"{split}_".startswith("test_")


def val_auroc(event: Event) -> float | None:
    """Return the validation AUROC that an event reports, or ``None``."""
    return _share_or_none((event.get("metrics") or {}).get("auroc")) if event["kind"] == "val" else None


def _find_best_validation(events: Sequence[Event], best_save: Event | None) -> Event | None:
    scored = [event for event in events if val_auroc(event) is not None]
    if best_save is None:
        return max(scored, key=lambda event: val_auroc(event) or 0.0, default=None)
    # The final validation uses the best checkpoint; after a kill, it may be the only one with an event.
    final = [event for event in scored if event.get("final") and event.get("t", 0) >= best_save.get("t", 0)]
    position = (best_save.get("update"), best_save.get("attempt"))
    at_save = [e for e in scored if not e.get("final") and (e.get("update"), e.get("attempt")) == position]
    return next(reversed([*final, *at_save]), None)


def _find_predictions(run: Run, checkpoint_names: Mapping[str | None, str]) -> list[ScoredPrediction]:
    # Named by Run.reserve_prediction_file; the split is the stem of an annotation file.
    name = re.compile(f"hateful_memes_{re.escape(run.path.parent.name)}_(.*)_({_TIMESTAMP_PATTERN})", re.DOTALL)
    predictions: list[tuple[float, str, ScoredPrediction]] = []
    for csv in run.reports.glob("*.csv"):
        if (match := name.fullmatch(csv.stem)) is None:
            continue
        split, stamp = match.groups()
        auroc = coverage = sha256 = None
        created = csv.stat().st_mtime  # the time in the name is local
        with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
            record = read_json(csv.with_suffix(".metrics.json"))
            created = float(record.get("created", created))
            coverage = Coverage.from_json(record)
            auroc = _share_or_none(record["auroc"]) if coverage else None
            [member] = record["members"]
            sha256 = str(member["checkpoint_sha256"])
        checkpoint = UNKNOWN if sha256 is None else checkpoint_names.get(sha256, UNKNOWN)
        predictions.append((created, stamp, ScoredPrediction(csv, split, checkpoint, auroc, coverage)))
    return [entry for *_, entry in sorted(predictions, key=lambda entry: entry[:2], reverse=True)]


def _share_or_none(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None

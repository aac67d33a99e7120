"""The scores of a run, each with the split and the checkpoint that it is of.

A table or a test is of one split and, for each run, of one checkpoint: what ``best`` stands for now. That is
known by the SHA-256 that the worker told when it saved it, so that nothing is hashed here.
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
        split: the annotation file's stem, or what stands for own memes in names.
        checkpoint: what predicted: ``best`` as it is now, ``update 300``, or ``unknown``, where the run has
            no record of its hash.
        auroc: 0 to 1; None without labels.
        on: what it was measured on; None where no record tells.
    """

    csv: Path
    split: str
    checkpoint: str
    auroc: float | None
    coverage: Coverage | None


@dataclass(frozen=True)
class RunScores:
    """What was measured of a run.

    Attributes:
        validation: the event of the validation of the best checkpoint, or the one with the best AUROC where
            nothing tells which checkpoint that is.
        names: what :class:`ScoredPrediction` calls the checkpoints, by their hashes.
        counted: the one that tables and tests take: ``best``, the last until there is one, or ``unknown``.
        made: all predictions of the run, the newest first.
        newest: by their splits, the newest predictions by the checkpoint that is counted.
    """

    validation: Event | None = None
    checkpoint_names: Mapping[str | None, str] = field(default_factory=dict)
    scored_checkpoint: str = UNKNOWN
    predictions: Sequence[ScoredPrediction] = ()
    newest_by_split: Mapping[str, ScoredPrediction] = field(default_factory=dict)

    @property
    def best_auroc(self) -> float | None:
        """The validation AUROC of the best checkpoint."""
        return None if self.validation is None else val_auroc(self.validation)

    @property
    def validated_on(self) -> Coverage | None:
        """The validation split, and how many of its rows were used; None where the event does not say."""
        return Coverage.from_json(self.validation and self.validation.get("data"))

    @property
    def scored_by_split(self) -> dict[str, ScoredPrediction]:
        """Those of ``newest`` that have an AUROC, but for memes of the user's own."""
        scored = ((split, item) for split, item in self.newest_by_split.items() if item.auroc is not None)
        return {split: item for split, item in scored if not user_annotations_path(item.csv).is_file()}


def read_scores(run: Run, events: Sequence[Event], published_sha256: str | None = None) -> RunScores:
    """The scores of a run; ``published`` is the hash of its weights where it was never trained."""
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
    """The split that most of the runs have, each with its ``splits``; a test set before another."""
    counts = Counter(split for run_splits in splits for split in set(run_splits))
    return max(counts, key=lambda split: (counts[split], is_test_split(split), split), default=None)


def is_test_split(split: str) -> bool:
    """Whether a split is a test set, by its name."""
    return f"{split}_".startswith("test_")


def val_auroc(event: Event) -> float | None:
    """The validation AUROC that an event reports, if it does."""
    return _share_or_none((event.get("metrics") or {}).get("auroc")) if event["kind"] == "val" else None


def _find_best_validation(events: Sequence[Event], best_save: Event | None) -> Event | None:
    scored = [event for event in events if val_auroc(event) is not None]
    if best_save is None:
        return max(scored, key=lambda event: val_auroc(event) or 0.0, default=None)
    # The final validation is of the best checkpoint, and may be all that is left of it after a kill.
    final = [event for event in scored if event.get("final") and event.get("t", 0) >= best_save.get("t", 0)]
    position = (best_save.get("update"), best_save.get("attempt"))
    at_save = [e for e in scored if not e.get("final") and (e.get("update"), e.get("attempt")) == position]
    return next(reversed([*final, *at_save]), None)


def _find_predictions(run: Run, checkpoint_names: Mapping[str | None, str]) -> list[ScoredPrediction]:
    # As Run.new_report names them; the split is the stem of an annotation file.
    name = re.compile(
        f"hateful_memes_{re.escape(run.path.parent.name)}_(.*)_({_TIMESTAMP_PATTERN})", re.DOTALL
    )
    predictions: list[tuple[float, str, ScoredPrediction]] = []
    for csv in run.reports.glob("*.csv"):
        if (match := name.fullmatch(csv.stem)) is None:
            continue
        split, stamp = match.groups()
        auroc = coverage = sha256 = None
        created = csv.stat().st_mtime  # the name has a local time
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

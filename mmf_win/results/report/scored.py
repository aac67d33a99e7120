"""A file of predictions, side by side with the memes that it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmf_win.dataset.annotations import Row, labels_of, read_rows, where_to_get
from mmf_win.dataset.coverage import Coverage, coverage
from mmf_win.dataset.own_memes import annotations_beside
from mmf_win.dataset.predictions import in_order, read_predictions
from mmf_win.errors import DataError, DatasetError
from mmf_win.paths import DatasetPaths
from mmf_win.results import saved_metrics
from mmf_win.results.probabilities import DEFAULT_THRESHOLD, NO_PROBABILITIES
from mmf_win.runs.folder import Run
from mmf_win.unpacking.staging import require_finished

# As Run.report names them; the split is the stem of an annotation file.
_NAME = re.compile(r"_(?P<stamp>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(-\d+)?)$")


@dataclass(frozen=True)
class ScoredMeme:
    """A meme and what was predicted for it.

    Attributes:
        row: the line of the annotation file.
        proba: the predicted probability that it is hateful.
        decision: the predicted label.
    """

    row: Row
    proba: float
    decision: int


@dataclass(frozen=True)
class Scored:
    """The predictions of one split.

    Attributes:
        csv: the file of predictions.
        split: the annotation file's stem, or what stands for own memes in names.
        title: what the user calls it.
        annotations: the file that holds the memes.
        memes: in the order of the annotations.
        saved_metrics: what is written beside the CSV, see :mod:`mmf_win.results.saved_metrics`; empty
            without that.
        full_rows: how many rows the full split has; None where that is not known.
    """

    csv: Path
    split: str
    title: str
    annotations: Path
    memes: tuple[ScoredMeme, ...]
    saved_metrics: dict[str, Any]
    full_rows: int | None = None

    @property
    def coverage(self) -> Coverage:
        """How many rows of the split there are predictions for."""
        return Coverage(self.title, len(self.memes), self.full_rows)

    @property
    def are_own(self) -> bool:
        """Whether these are memes of the user's own, not the dataset's."""
        return self.annotations == annotations_beside(self.csv)

    @property
    def labels(self) -> list[int] | None:
        """The label of each meme; None where the split, or a part of it, was published without."""
        return labels_of(meme.row for meme in self.memes)

    @property
    def labelled(self) -> int:
        """How many of the memes have a label."""
        return sum(meme.row.label is not None for meme in self.memes)

    @property
    def probas(self) -> list[float]:
        """The predicted probability of each meme."""
        return [meme.proba for meme in self.memes]

    @property
    def are_probabilities(self) -> bool:
        """Whether what was predicted for a meme is a probability, not a rank."""
        return self.saved_metrics.get("ensemble") not in NO_PROBABILITIES

    @property
    def value_name(self) -> str:
        """What stands for a meme's place between benign and hateful."""
        return "probability" if self.are_probabilities else "rank"

    @property
    def threshold(self) -> float:
        """A probability above it was predicted to be hateful."""
        value = self.saved_metrics.get("threshold")
        return float(value) if isinstance(value, (int, float)) else DEFAULT_THRESHOLD


def predictions_of(run: Run) -> list[tuple[str, Path]]:
    """Split and file of each prediction of a run, the newest first."""
    prefix = f"hateful_memes_{run.path.parent.name}_"
    found: list[tuple[str, str, Path]] = []
    for file in run.reports.glob("*.csv"):
        stamp = _NAME.search(file.stem)
        if stamp is not None and file.stem.startswith(prefix):
            found.append((stamp["stamp"], file.stem[len(prefix) : stamp.start()], file))
    return [(split, file) for _, split, file in sorted(found, reverse=True)]


def read_scored(csv: Path, split: str, dataset: DatasetPaths) -> Scored:
    """Read a file of predictions together with the annotations of its split.

    Raises:
        DataError: one of the two cannot be read, or they do not fit each other.
    """
    own = annotations_beside(csv)
    annotations = own if own.is_file() else dataset.split(split)
    if not annotations.is_file():
        message = f"{annotations}: there is no such file, and {csv.name} was predicted for it"
        raise DatasetError(message, hint=where_to_get(dataset))
    if annotations != own:
        require_finished(dataset.root)
    rows = read_rows(annotations)
    try:
        predictions = in_order(read_predictions(csv), [row.shown_id for row in rows])
        outside = [row.id for row in predictions if not 0 <= row.proba <= 1 or row.label not in (0, 1)]
        if outside:
            raise DataError(f"{len(outside)} rows with impossible numbers (first id {outside[0]})")
    except DataError as error:
        raise DataError(f"{csv}: {error}", hint=f"predict {split} again") from None
    memes = tuple(ScoredMeme(r, p.proba, p.label) for r, p in zip(rows, predictions, strict=True))
    facts = saved_metrics.read(csv)
    if annotations == own:
        return Scored(csv, split, Path(str(facts.get("annotations", split))).name, annotations, memes, facts)
    return Scored(csv, split, split, annotations, memes, facts, coverage(dataset, split).full_rows)


def ranked(memes: Sequence[ScoredMeme], limit: int) -> list[ScoredMeme]:
    """Memes by their probability, the highest first."""
    return sorted(memes, key=lambda meme: (-meme.proba, meme.row.id))[:limit]


def worst(memes: Sequence[ScoredMeme], label: int, limit: int) -> list[ScoredMeme]:
    """Memes of class ``label`` that were taken for the other one, the surest mistakes first."""
    wrong = [meme for meme in memes if meme.row.label == label and meme.decision != label]
    return sorted(wrong, key=lambda meme: (-abs(meme.proba - label), meme.row.id))[:limit]

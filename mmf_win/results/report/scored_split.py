"""Predictions joined with the annotations of their memes, and notable cases among them.

The challenge contains confounder pairs: two memes that share their text or their picture and of which only
one is hateful, so neither text nor picture alone determines the label (D. Kiela et al., *The Hateful Memes
Challenge*, arXiv:2005.04790). A model that scores the hateful meme of a pair higher has used both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmf_win.dataset.annotations import AnnotationFile, AnnotationRow, collect_labels, missing_dataset_hint
from mmf_win.dataset.coverage import Coverage, load_coverage
from mmf_win.dataset.prediction_file import order_by_ids, read_predictions
from mmf_win.dataset.user_memes import user_annotations_path
from mmf_win.errors import DataError, DatasetError
from mmf_win.paths import DatasetPaths
from mmf_win.results import metrics_file
from mmf_win.results.blending import DEFAULT_THRESHOLD
from mmf_win.unpacking.staging import require_complete_install

if TYPE_CHECKING:
    from mmf_win.results.metrics import MetricEstimate

# The challenge's confounders come in groups of two or three; larger groups share a phrase or a placeholder.
_MAX_SHARING_MEMES = 20


class ScoredMeme(NamedTuple):
    """A meme, the predicted probability that it is hateful, and the predicted label."""

    row: AnnotationRow
    proba: float
    decision: int


class ConfounderPair(NamedTuple):
    """A hateful and a benign meme, by their labels, that share their ``text`` or their ``picture``."""

    hateful: ScoredMeme
    benign: ScoredMeme
    shared: str

    @property
    def margin(self) -> float:
        """Probability of the hateful meme minus that of the benign one, -1 to 1."""
        return self.hateful.proba - self.benign.proba


@dataclass(frozen=True)
class ScoredSplit:
    """Predictions of one split.

    Attributes:
        csv: Prediction file.
        split: Stem of the annotation file, or the name that stands for the user's memes.
        annotations: Annotation file, or the saved copy for the user's memes.
        sha256: SHA-256 of the annotations.
        memes: Scored memes, in the order of the annotations.
        saved_metrics: Record from :mod:`mmf_win.results.metrics_file`; empty if there is none.
        coverage: Predicted rows of the split, under the name that the user gave.
    """

    csv: Path
    split: str
    annotations: Path
    sha256: str
    memes: tuple[ScoredMeme, ...]
    saved_metrics: dict[str, Any]
    coverage: Coverage

    @property
    def is_user_data(self) -> bool:
        """True if the memes were provided by the user and are not from the dataset."""
        return self.annotations == user_annotations_path(self.csv)

    @property
    def labels(self) -> list[int] | None:
        """Label of each meme; ``None`` if any label is missing."""
        return collect_labels(meme.row for meme in self.memes)

    @property
    def labelled_count(self) -> int:
        """Number of memes with a label."""
        return sum(meme.row.label is not None for meme in self.memes)

    @property
    def probas(self) -> list[float]:
        """Predicted probability of each meme."""
        return [meme.proba for meme in self.memes]

    @property
    def value_name(self) -> str:
        """Kind of the predicted values: ``probability`` or ``rank``."""
        return "rank" if self.saved_metrics.get("ensemble") == "rank" else "probability"

    @property
    def threshold(self) -> float:
        """Memes with a probability above it are predicted to be hateful."""
        return float(self.saved_metrics.get("threshold", DEFAULT_THRESHOLD))

    @cached_property
    def metrics(self) -> dict[str, MetricEstimate]:
        """Metrics by name; empty without labels."""
        if (labels := self.labels) is None:
            return {}
        from mmf_win.results.metrics import compute_metrics

        are_probabilities = self.value_name == "probability"
        return compute_metrics(labels, self.probas, threshold=self.threshold, are_probabilities=are_probabilities)

    @property
    def score_record(self) -> dict[str, Any]:
        """Part of the metrics record that depends on the labels."""
        labels, metrics = self.labels, self.metrics
        return {
            **{name: metrics[name].value if name in metrics else None for name in metrics_file.METRIC_TITLES},
            "intervals": {name: [e.low, e.high] for name, e in metrics.items() if e.low is not None},
            "rows": len(self.memes),
            "labelled": self.labelled_count,
            "hateful": None if labels is None else sum(labels),
            "threshold": self.threshold,
        }


def load_scored_split(csv: Path, split: str, dataset: DatasetPaths) -> ScoredSplit:
    """Read a prediction file together with the annotations of its split.

    Args:
        csv: Prediction file.
        split: Stem of the annotation file. A copy of the user's annotations next to ``csv`` takes precedence.
        dataset: Dataset of the split.

    Returns:
        The predictions with their annotations.

    Raises:
        DataError: Predictions or annotations cannot be read, or they do not match.
        DatasetError: The annotation file is missing.
    """
    user_annotations = user_annotations_path(csv)
    annotations = user_annotations if user_annotations.is_file() else dataset.annotation_file(split)
    if not annotations.is_file():
        message = f"{annotations}: file not found (needed for {csv.name})"
        raise DatasetError(message, hint=missing_dataset_hint(dataset))
    if annotations != user_annotations:
        require_complete_install(dataset.root)
    file = AnnotationFile(annotations)
    try:
        predictions = order_by_ids(read_predictions(csv), [row.display_id for row in file.rows])
        if invalid := [p.id for p in predictions if not 0 <= p.proba <= 1 or p.label not in (0, 1)]:
            raise DataError(f"{len(invalid)} rows with invalid numbers (first ID: {invalid[0]})")
    except DataError as error:
        raise DataError(f"{csv}: {error}", hint=f"predict {split} again") from None
    memes = tuple(ScoredMeme(r, p.proba, p.label) for r, p in zip(file.rows, predictions, strict=True))
    record = metrics_file.read_metrics(csv)
    if annotations == user_annotations:
        coverage = Coverage(Path(str(record.get("annotations", split))).name, len(memes))
    else:
        coverage = load_coverage(dataset, file)
    return ScoredSplit(csv, split, annotations, file.sha256, memes, record, coverage)


def rank_by_probability(memes: Sequence[ScoredMeme], limit: int) -> list[ScoredMeme]:
    """Return the memes with the highest probabilities, highest first."""
    return sorted(memes, key=lambda meme: (-meme.proba, meme.row.id))[:limit]


def find_worst_errors(memes: Sequence[ScoredMeme], label: int, limit: int) -> list[ScoredMeme]:
    """Return the misclassified memes of class ``label``, the most confident mistakes first."""
    errors = [meme for meme in memes if meme.row.label == label and meme.decision != label]
    return sorted(errors, key=lambda meme: (-abs(meme.proba - label), meme.row.id))[:limit]


def find_confounder_pairs(memes: Sequence[ScoredMeme], picture_groups: Mapping[int, int]) -> list[ConfounderPair]:
    """Return all confounder pairs, the worst predicted ones first.

    Args:
        memes: Memes with their predictions.
        picture_groups: Group of similar pictures by meme ID, as from
            :func:`mmf_win.results.report.pictures.group_similar_pictures`.
    """
    texts = {meme.row.id: text for meme in memes if (text := " ".join(meme.row.text.casefold().split()))}
    pairs: list[ConfounderPair] = []
    shared: dict[str, Mapping[int, Hashable]] = {"text": texts, "picture": picture_groups}
    for shared_feature, keys in shared.items():
        sides: dict[Hashable, tuple[list[ScoredMeme], list[ScoredMeme]]] = defaultdict(lambda: ([], []))
        for meme in memes:
            if meme.row.id in keys and meme.row.label is not None:
                sides[keys[meme.row.id]][meme.row.label].append(meme)
        for benign, hateful in sides.values():
            if len(benign) + len(hateful) <= _MAX_SHARING_MEMES:
                pairs += [ConfounderPair(h, b, shared_feature) for h in hateful for b in benign]
    return sorted(pairs, key=lambda pair: (pair.margin, pair.hateful.row.id, pair.benign.row.id))

"""A file of predictions, side by side with the memes that it is about, and what stands out among them.

The challenge was built from confounder pairs: two memes that share their text or their picture, and of which
one alone is hateful, so that neither tells the label by itself (D. Kiela et al., *The Hateful Memes
Challenge*, arXiv:2005.04790). A model that puts the hateful one of a pair higher has looked at both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmf_win.dataset.annotations import AnnotationFile, AnnotationRow, labels_of, missing_dataset_hint
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

_MAX_SHARING_MEMES = (
    20  # what more memes have in common is a phrase or a placeholder; the challenge's are twos and threes
)


class ScoredMeme(NamedTuple):
    """A meme, the predicted probability that it is hateful, and the predicted label."""

    row: AnnotationRow
    proba: float
    decision: int


class ConfounderPair(NamedTuple):
    """Two memes, hateful and benign by their labels, that share their ``text`` or their ``picture``."""

    hateful: ScoredMeme
    benign: ScoredMeme
    shared: str

    @property
    def margin(self) -> float:
        """How much higher the hateful one was put, -1 to 1."""
        return self.hateful.proba - self.benign.proba


@dataclass(frozen=True)
class ScoredSplit:
    """The predictions of one split.

    Attributes:
        split: the annotation file's stem, or what stands for own memes in names.
        annotations: the file of the memes, or the copy of that of own memes; ``sha256`` is its hash.
        memes: in the order of the annotations.
        saved_metrics: the record, see :mod:`mmf_win.results.metrics_file`; empty where there is none.
        coverage: how many rows of the split, as the user calls it, there are predictions for.
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
        """Whether these are memes of the user's own, not the dataset's."""
        return self.annotations == user_annotations_path(self.csv)

    @property
    def labels(self) -> list[int] | None:
        """The label of each meme; None where the split, or a part of it, was published without."""
        return labels_of(meme.row for meme in self.memes)

    @property
    def labelled_count(self) -> int:
        """How many of the memes have a label."""
        return sum(meme.row.label is not None for meme in self.memes)

    @property
    def probas(self) -> list[float]:
        """The predicted probability of each meme."""
        return [meme.proba for meme in self.memes]

    @property
    def value_name(self) -> str:
        """What was predicted for a meme: ``probability`` or ``rank``."""
        return "rank" if self.saved_metrics.get("ensemble") == "rank" else "probability"

    @property
    def threshold(self) -> float:
        """A probability above it was predicted to be hateful."""
        return float(self.saved_metrics.get("threshold", DEFAULT_THRESHOLD))

    @cached_property
    def metrics(self) -> dict[str, MetricEstimate]:
        """The metrics by their names; none without labels."""
        if (labels := self.labels) is None:
            return {}
        from mmf_win.results.metrics import compute_metrics

        calibrated = self.value_name == "probability"
        return compute_metrics(labels, self.probas, threshold=self.threshold, are_probabilities=calibrated)

    @property
    def score_record(self) -> dict[str, Any]:
        """The part of the record that the labels decide."""
        labels, found = self.labels, self.metrics
        return {
            **{name: found[name].value if name in found else None for name in metrics_file.METRIC_TITLES},
            "intervals": {name: [s.low, s.high] for name, s in found.items() if s.low is not None},
            "rows": len(self.memes),
            "labelled": self.labelled_count,
            "hateful": None if labels is None else sum(labels),
            "threshold": self.threshold,
        }


def load_scored_split(csv: Path, split: str, dataset: DatasetPaths) -> ScoredSplit:
    """Read a file of predictions together with the annotations of its split.

    Raises DataError where one of the two cannot be read, or they do not fit each other.
    """
    own = user_annotations_path(csv)
    annotations = own if own.is_file() else dataset.annotation_file(split)
    if not annotations.is_file():
        message = f"{annotations}: there is no such file, and {csv.name} was predicted for it"
        raise DatasetError(message, hint=missing_dataset_hint(dataset))
    if annotations != own:
        require_complete_install(dataset.root)
    file = AnnotationFile(annotations)
    try:
        predictions = order_by_ids(read_predictions(csv), [row.display_id for row in file.rows])
        if outside := [p.id for p in predictions if not 0 <= p.proba <= 1 or p.label not in (0, 1)]:
            raise DataError(f"{len(outside)} rows with impossible numbers (first id {outside[0]})")
    except DataError as error:
        raise DataError(f"{csv}: {error}", hint=f"predict {split} again") from None
    memes = tuple(ScoredMeme(r, p.proba, p.label) for r, p in zip(file.rows, predictions, strict=True))
    record = metrics_file.read_metrics(csv)
    if annotations == own:
        covered = Coverage(Path(str(record.get("annotations", split))).name, len(memes))
    else:
        covered = load_coverage(dataset, file)
    return ScoredSplit(csv, split, annotations, file.sha256, memes, record, covered)


def rank_by_probability(memes: Sequence[ScoredMeme], limit: int) -> list[ScoredMeme]:
    """Memes by their probability, the highest first."""
    return sorted(memes, key=lambda meme: (-meme.proba, meme.row.id))[:limit]


def worst_errors(memes: Sequence[ScoredMeme], label: int, limit: int) -> list[ScoredMeme]:
    """Memes of class ``label`` that were taken for the other one, the surest mistakes first."""
    wrong = [meme for meme in memes if meme.row.label == label and meme.decision != label]
    return sorted(wrong, key=lambda meme: (-abs(meme.proba - label), meme.row.id))[:limit]


def find_confounder_pairs(
    memes: Sequence[ScoredMeme], picture_groups: Mapping[int, int]
) -> list[ConfounderPair]:
    """All confounder pairs, those first that the model got most wrong.

    For the ids of memes whose pictures look alike, ``pictures`` has a number that those have in common.
    """
    texts = {meme.row.id: text for meme in memes if (text := " ".join(meme.row.text.casefold().split()))}
    found: list[ConfounderPair] = []
    shared: dict[str, Mapping[int, Hashable]] = {"text": texts, "picture": picture_groups}
    for what, keys in shared.items():
        sides: dict[Hashable, tuple[list[ScoredMeme], list[ScoredMeme]]] = defaultdict(lambda: ([], []))
        for meme in memes:
            if meme.row.id in keys and meme.row.label is not None:
                sides[keys[meme.row.id]][meme.row.label].append(meme)
        for benign, hateful in sides.values():
            if len(benign) + len(hateful) <= _MAX_SHARING_MEMES:
                found += [ConfounderPair(h, b, what) for h in hateful for b in benign]
    return sorted(found, key=lambda pair: (pair.margin, pair.hateful.row.id, pair.benign.row.id))

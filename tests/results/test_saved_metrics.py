"""What is written beside a prediction file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytestmark = pytest.mark.torch

from mmf_win.dataset.annotations import Row  # noqa: E402
from mmf_win.dataset.predictions import Prediction  # noqa: E402
from mmf_win.results import saved_metrics  # noqa: E402


def scored(labels: Sequence[int | None]) -> dict[str, object]:
    """The scores of predictions that rise from row to row."""
    rows = [Row(n, f"img/{n}.png", "", label, n + 1) for n, label in enumerate(labels)]
    predictions = [Prediction(str(n), (n + 1) / (len(labels) + 1), 0) for n in range(len(labels))]
    found = saved_metrics.scores(rows, predictions, 0.5, None)
    assert json.loads(json.dumps(found, allow_nan=False)) == found, "a NaN is no JSON"
    return found


def test_auroc_and_accuracy_have_intervals_around_them() -> None:
    found = scored([n % 3 % 2 for n in range(10_000)])
    assert (found["rows"], found["hateful"]) == (10_000, 3333)
    assert set(found["intervals"]) == {"auroc", "accuracy"}  # type: ignore[call-overload]
    for name, (low, high) in found["intervals"].items():  # type: ignore[attr-defined]
        assert low < found[name] < high  # type: ignore[operator]


def test_ranks_are_not_judged_as_probabilities() -> None:
    rows = [Row(n, f"img/{n}.png", "", n % 2, n + 1) for n in range(4)]
    predictions = [Prediction(str(n), n / 3, 0) for n in range(4)]
    found = saved_metrics.scores(rows, predictions, 0.5, "rank")
    assert {name for name in saved_metrics.METRICS if found[name] is None} == {"brier", "calibration_error"}
    assert found["auroc"] == saved_metrics.scores(rows, predictions, 0.5, "mean")["auroc"]


@pytest.mark.parametrize("labels", [[], [None, None], [0, 1, None]])
def test_without_a_label_for_each_row_there_are_no_scores(labels: list[int | None]) -> None:
    found = scored(labels)
    assert found["rows"] == len(labels)
    assert found["hateful"] is None and found["intervals"] == {}
    assert all(found[name] is None for name in saved_metrics.METRICS)


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff"])
def test_a_record_that_cannot_be_read_is_empty(tmp_path: Path, content: bytes | None) -> None:
    csv = tmp_path / "predictions.csv"
    if content is not None:
        saved_metrics.path_beside(csv).write_bytes(content)
    assert saved_metrics.read(csv) == {}

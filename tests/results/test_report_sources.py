"""Content of a page: curves of a training, and confounder pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mmf_win.dataset.annotations import AnnotationRow
from mmf_win.results.report.curves import read_curves
from mmf_win.results.report.scored_split import ScoredMeme, find_confounder_pairs, find_worst_errors
from tests.worlds.report_world import attempt_events

NO_OUTCOMES: Callable[[str], None] = {}.get


def test_every_curve_is_read() -> None:
    curves = read_curves(attempt_events("1", 0, 60), NO_OUTCOMES)
    assert [update for update, _ in curves.get_series("train/loss")] == [10, 20, 30, 40, 50, 60]
    assert [update for update, _ in curves.get_series("val/auroc")] == [30, 60]
    for name in ("train/lr", "train/updates_per_s", "train/max_mem_mib", "val/loss", "val/accuracy"):
        assert curves.get_series(name), name
    assert curves.superseded_samples == ()
    assert read_curves([], NO_OUTCOMES).get_series("train/loss") == [], "there must be no points before training begins"


def test_samples_repeated_by_a_later_attempt_are_superseded() -> None:
    curves = read_curves([*attempt_events("1", 0, 60), *attempt_events("3", 30, 120, batch=16)], {"1": "cuda_oom"}.get)
    updates = [update for update, _ in curves.get_series("train/loss")]
    assert updates == list(range(10, 121, 10))
    assert [update for update, _ in curves.get_series("train/loss", superseded=True)] == [40, 50, 60]
    first, second = curves.attempts
    assert (first.start_update, first.resume_reason, first.batch) == (0, "", 32)
    assert (second.start_update, second.batch) == (30, 16)
    assert "memory" in second.resume_reason


def test_attempt_without_outcome_was_killed() -> None:
    curves = read_curves([*attempt_events("1", 0, 60), *attempt_events("2", 60, 120)], NO_OUTCOMES)
    assert curves.attempts[1].resume_reason == "after it was killed"


def test_attempt_killed_before_training_does_not_hide_the_previous_outcome() -> None:
    killed = attempt_events("2", 60, 60)[:1]
    curves = read_curves([*attempt_events("1", 0, 60), *killed, *attempt_events("3", 60, 120)], {"1": "nan"}.get)
    assert curves.attempts[1].resume_reason == "after the loss became NaN"


def test_outcome_is_found_if_the_next_start_event_is_missing() -> None:
    curves = read_curves([*attempt_events("1", 0, 60), *attempt_events("2", 60, 120)[1:]], {"1": "disk"}.get)
    assert curves.attempts[1].resume_reason.startswith("after the disk was full")


@pytest.mark.parametrize("name", ["1", "2"])
def test_outcome_of_a_removed_attempt_is_read_from_older_events(name: str) -> None:
    ended = {"t": 1_001_900.0, "kind": "run_ended", "attempt": "1", "outcome": "interrupted"}
    curves = read_curves([*attempt_events("1", 0, 60), ended, *attempt_events(name, 60, 120)], NO_OUTCOMES)
    assert curves.attempts[1].resume_reason == "after an interruption"


def test_pauses_between_attempts_take_no_time() -> None:
    curves = read_curves([*attempt_events("1", 0, 60), *attempt_events("2", 60, 120)], NO_OUTCOMES)
    seconds = [second for second, _ in curves.get_series_over_time("train/updates_per_s")]
    assert seconds == [float(n) for n in range(10, 121, 10)]


def test_final_validation_is_not_part_of_the_curve() -> None:
    events = attempt_events("1", 0, 60)
    final = {"t": 2e6, "kind": "val", "attempt": "1", "update": 30, "final": True}
    curves = read_curves([*events, {**final, "metrics": {"auroc": 0.9}}], NO_OUTCOMES)
    assert max(score for _, score in curves.get_series("val/auroc")) < 0.9


def test_events_and_values_of_other_versions_are_skipped() -> None:
    metrics = {"auroc": "high", "loss": float("nan")}
    strange: list[dict[str, Any]] = [
        {"kind": "train", "attempt": "1", "update": 70, "loss": 0.1},
        {"kind": "val", "t": 2e6, "attempt": "1", "update": 70, "metrics": metrics},
        {"kind": "val", "t": 2e6, "attempt": "1", "metrics": None},
        {"kind": "unheard of", "t": 2e6},
    ]
    events = attempt_events("1", 0, 60)
    assert read_curves([*events, *strange], NO_OUTCOMES) == read_curves(events, NO_OUTCOMES)


def make_meme(id_: int, text: str, label: int | None, proba: float) -> ScoredMeme:
    return ScoredMeme(AnnotationRow(id_, f"img/{id_}.png", text, label, id_), proba, int(proba > 0.5))


def test_same_text_with_different_labels_is_a_pair() -> None:
    memes = [make_meme(1, "Love  you", 1, 0.2), make_meme(2, "love you", 0, 0.6), make_meme(3, "love you", 1, 0.9)]
    pairs = [
        (p.hateful.row.id, p.benign.row.id, p.shared, round(p.margin, 2)) for p in find_confounder_pairs(memes, {})
    ]
    assert pairs == [(1, 2, "text", -0.4), (3, 2, "text", 0.3)], "the worst prediction must come first"


def test_same_picture_with_different_labels_is_a_pair() -> None:
    memes = [make_meme(1, "a", 1, 0.2), make_meme(2, "b", 0, 0.6), make_meme(3, "c", 1, 0.9)]
    [pair] = find_confounder_pairs(memes, {1: 1, 2: 1})
    assert (pair.hateful.row.id, pair.benign.row.id, pair.shared) == (1, 2, "picture")


def test_text_shared_by_many_memes_makes_no_pairs() -> None:
    memes = [make_meme(n, "when you", n % 2, 0.5) for n in range(10_000)]
    assert find_confounder_pairs(memes, {m.row.id: 1 for m in memes}) == []


def test_empty_texts_make_no_pairs() -> None:
    assert find_confounder_pairs([make_meme(1, " ", 1, 0.2), make_meme(2, "", 0, 0.6)], {}) == []


def test_worst_errors_are_the_most_confident_ones() -> None:
    memes = [make_meme(1, "", 0, 0.6), make_meme(2, "", 0, 0.9), make_meme(3, "", 0, 0.1), make_meme(4, "", 1, 0.2)]
    assert [m.row.id for m in find_worst_errors(memes, 0, 10)] == [2, 1]
    assert [m.row.id for m in find_worst_errors(memes, 0, 1)] == [2]
    assert [m.row.id for m in find_worst_errors(memes, 1, 10)] == [4]

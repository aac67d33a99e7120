"""Memes that share their text or their picture and differ in their label."""

from __future__ import annotations

from mmf_win.dataset.annotations import Row
from mmf_win.results.report.scored import ScoredMeme, pairs, worst


def meme(id_: int, text: str, label: int | None, proba: float) -> ScoredMeme:
    return ScoredMeme(Row(id_, f"img/{id_}.png", text, label, id_), proba, int(proba > 0.5))


def test_same_text_and_other_label_make_a_pair() -> None:
    memes = [meme(1, "Love  you", 1, 0.2), meme(2, "love you", 0, 0.6), meme(3, "love you", 1, 0.9)]
    found = [(p.hateful.row.id, p.benign.row.id, p.shared, round(p.margin, 2)) for p in pairs(memes, {})]
    assert found == [(1, 2, "text", -0.4), (3, 2, "text", 0.3)], "the most wrong one first"


def test_same_picture_and_other_label_make_a_pair() -> None:
    memes = [meme(1, "a", 1, 0.2), meme(2, "b", 0, 0.6), meme(3, "c", 1, 0.9)]
    [pair] = pairs(memes, {1: 1, 2: 1})
    assert (pair.hateful.row.id, pair.benign.row.id, pair.shared) == (1, 2, "picture")


def test_what_many_memes_have_in_common_makes_no_pairs() -> None:
    memes = [meme(n, "when you", n % 2, 0.5) for n in range(10_000)]
    assert pairs(memes, {m.row.id: 1 for m in memes}) == []


def test_memes_without_text_do_not_share_it() -> None:
    assert pairs([meme(1, " ", 1, 0.2), meme(2, "", 0, 0.6)], {}) == []


def test_the_worst_mistakes_are_the_surest_ones() -> None:
    memes = [meme(1, "", 0, 0.6), meme(2, "", 0, 0.9), meme(3, "", 0, 0.1), meme(4, "", 1, 0.2)]
    assert [m.row.id for m in worst(memes, 0, 10)] == [2, 1]
    assert [m.row.id for m in worst(memes, 0, 1)] == [2]
    assert [m.row.id for m in worst(memes, 1, 10)] == [4]

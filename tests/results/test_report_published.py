"""Published numbers on pages, and how many rows of the full split a score is on."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pages = pytest.importorskip("mmf_win.results.report.pages")

from tests.worlds.report_world import SPLIT, World, attempt, left_out, tell, text_of  # noqa: E402


def test_it_shows_the_scores_beside_the_published_ones(world: World) -> None:
    world.annotate([{"id": n, "img": f"img/{n}.png", "text": f"{n}", "label": n % 2} for n in range(1000)])
    run = world.run()
    csv = world.predict(run)
    page = text_of(pages.of_run(run, images=False).read_text(encoding="utf-8"))
    from sklearn.metrics import roc_auc_score

    from mmf_win.dataset.annotations import read_rows
    from mmf_win.dataset.predictions import read_predictions

    labels = [row.label for row in read_rows(world.dataset.split(SPLIT))]
    auroc = roc_auc_score(labels, [row.proba for row in read_predictions(csv)])
    assert f"AUROC {auroc:.4f}" in page
    assert "Published 0.6792 ± 0.0087 on the 1,000 rows of test_seen" in page
    assert "arXiv:2005.04790" in page
    assert f"{auroc - 0.6792:+.4f}".replace("-", "−") in page
    assert "Not comparable" not in page


def predicted(world: World, split: str, **asked: Any) -> str:
    """The page of a run that predicted the world's 32 memes as this split."""
    memes = [json.loads(line) for line in world.dataset.split(SPLIT).read_text(encoding="utf-8").splitlines()]
    world.annotate(memes, split)
    run = world.run(**asked)
    world.predict(run, split)
    return text_of(pages.of_run(run, split=split, images=False).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("split", "number"),
    [("dev_seen", "0.6857"), ("dev", "0.6857"), ("test_seen", "0.6792"), ("test", "0.6792")],
)
def test_a_published_number_names_its_split_and_is_not_compared_with_other_rows(
    world: World, split: str, number: str
) -> None:
    page = predicted(world, split)
    rows = {"0.6857": "500", "0.6792": "1,000"}[number]
    assert re.search(rf"Published {number}( ± \S+)? on the {rows} rows of {split}\b", page)
    assert "Not comparable: here it is 32 rows" in page
    assert not re.search(r"rows of \w+ [+−]0", page), "a difference is shown"


@pytest.mark.parametrize("split", ["dev_unseen", "test_unseen", "train", "mine"])
def test_no_published_number_stands_beside_another_split(world: World, split: str) -> None:
    page = predicted(world, split, splits={"train": "train", "val": split, "test": split})
    assert f"The paper reports dev_seen and test_seen, not {split}." in page
    for number in ("0.6857", "0.6792", "0.5820", "0.6006"):
        assert number not in page


def test_rows_that_were_left_out_are_told_of_a_score_and_of_the_training(world: World) -> None:
    left_out(world, SPLIT, 8)
    run = world.run()
    data = {"split": "train", "rows": 8400, "full_rows": 8500}
    validated = {"split": "dev_unseen", "rows": 433, "full_rows": 540}
    tell(run, attempt("1", 0, 120, "ok", data=data, validated=validated))
    world.predict(run)
    page = text_of(pages.of_run(run).read_text(encoding="utf-8"))
    assert f"These predictions cover 32 of 40 rows of {SPLIT}" in page
    assert f"Split {SPLIT}, 32 of 40 memes" in page
    assert "Not comparable: here it is 32 of 40 rows" in page
    assert "Trained on 8,400 of 8,500 rows of train" in page
    assert "Validated on 433 of 540 rows of dev_unseen" in page
    assert "at update 120, on 433 of 540 rows of dev_unseen" in page


def test_of_a_whole_split_nothing_is_said_to_be_left_out(world: World) -> None:
    left_out(world, SPLIT, 0)
    run = world.run()
    world.predict(run)
    page = text_of(pages.of_run(run).read_text(encoding="utf-8"))
    assert f"Split {SPLIT}, 32 memes" in page and "These predictions cover" not in page

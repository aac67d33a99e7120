"""Which published number belongs to which split."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.paths import Places
from mmf_win.runs import presets
from mmf_win.runs.paper import Published, published, why_none
from tests.worlds import memes

NUMBERS = {"val": {"accuracy": 58.2, "auroc": 68.57}, "test": {"auroc": [67.92, 0.87]}}


def test_the_papers_splits_are_the_seen_ones_and_those_of_the_first_phase() -> None:
    for split in ("dev_seen", "dev"):
        assert published(NUMBERS, split, "auroc") == Published(pytest.approx(0.6857), None, split, 500)
    for split in ("test_seen", "test"):
        paper = Published(pytest.approx(0.6792), pytest.approx(0.0087), split, 1000)
        assert published(NUMBERS, split, "auroc") == paper


@pytest.mark.parametrize("split", ["dev_unseen", "test_unseen", "train", "mine", "val", ""])
def test_no_other_split_has_any(split: str) -> None:
    assert published(NUMBERS, split, "auroc") is None
    assert split in why_none(split) and "dev_seen and test_seen" in why_none(split)


def test_nothing_is_published_of_own_sets_whatever_their_splits_are_called(user_dir: Path) -> None:
    tables = {f"{split}.csv": f"img,text,label\n{split}.png,hello,1\n".encode() for split in ("train", "dev")}
    images = {f"{split}.png": memes.image(n) for n, split in enumerate(("train", "dev"))}
    sets = {"own": tables | images, "released": memes.memes(), "first": memes.memes(memes.PHASE_1)}
    found = {}
    for name, files in sets.items():
        places = Places.resolve(user_dir / f"data {name}")
        convert(memes.lay_out(files, user_dir / name), places)
        preset = presets.load("mmbt_grid")
        found[name] = presets.request(preset, {"val": "dev"}, places).published == preset.published
    assert found == {"own": False, "released": True, "first": True}


@pytest.mark.parametrize("numbers", [{}, {"test": {}}, {"test": {"auroc": None}}, NUMBERS])
def test_what_the_paper_does_not_report_is_not_there(numbers: dict[str, object]) -> None:
    assert published(numbers, "test_seen", "accuracy") is None


@pytest.mark.parametrize("number", [-1, 101, 10**40, float("inf"), float("nan"), "1", None])
def test_what_is_no_percentage_is_as_if_it_were_not_there(number: object) -> None:
    for value in (number, [50.0, number]):
        assert published({"test": {"auroc": value}}, "test_seen", "auroc") is None

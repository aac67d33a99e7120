"""What is said of features that were added: which images have them, and which would get another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.annotations import read_rows
from mmf_win.errors import DatasetError
from mmf_win.inputs.keys import taken_from_another_image
from mmf_win.paths import Places
from tests.inputs.conftest import Add
from tests.worlds import npy
from tests.worlds.memes import jsonl, lay_out

pytestmark = pytest.mark.torch


def laid_out(places: Places, **images: list[str]) -> None:
    """Splits with rows for these images."""
    splits = {
        f"{split}.jsonl": jsonl([{"id": n, "img": name, "text": ""} for n, name in enumerate(names)])
        for split, names in images.items()
    }
    lay_out(splits, places.dataset.annotations)


def test_each_split_says_how_much_of_it_has_features(user_dir: Path, places: Places, add: Add) -> None:
    laid_out(places, train=["img/00001.png", "img/00002.png", "img/x.y.jpg"], dev=["img/00003.png"])
    folder = npy.write_pairs(user_dir / "npy", ["1", "00002", "x", "other"])
    npy.write_pair(folder / "sub", "00003")  # MMF looks for the name alone, without folders
    assert add(folder)["splits"] == {
        "train": {"rows": 3, "with_features": 3},
        "dev": {"rows": 1, "with_features": 0},
    }


@pytest.mark.parametrize(
    ("images", "keys", "expected"),
    [
        (
            ["img/12.png", "img/cat_12.png", "img/dog_7.png", "img/cow_7.png", "img/00008.png"],
            ["12", "cat_12", "7", "8"],
            {"img/cat_12.png": "12", "img/dog_7.png": "7", "img/cow_7.png": "7"},
        ),
        (["img/a/1.png", "img/b/1.png", "img/2.png", "img/2.png"], ["1", "2"], {"img/b/1.png": "1"}),
    ],
    ids=["a number at the end of another's name", "one name in two folders"],
)
def test_an_image_that_would_get_the_features_of_another_is_known(
    places: Places, images: list[str], keys: list[str], expected: dict[str, str]
) -> None:
    laid_out(places, train=images)
    assert taken_from_another_image(read_rows(places.dataset.split("train")), keys) == expected


def test_a_broken_annotation_file_is_named_before_anything_is_written(
    user_dir: Path, places: Places, lmdb: Path, add: Add
) -> None:
    lay_out({"train.jsonl": b"{"}, places.dataset.annotations)
    with pytest.raises(DatasetError, match=r"train\.jsonl:1"):
        add(npy.write_pairs(user_dir / "npy", ["1"]))
    assert not lmdb.exists()

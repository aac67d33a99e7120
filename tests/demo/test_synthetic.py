"""Memes of the demo: their format, and that text or picture alone does not predict the label."""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from mmf_win.demo import synthetic
from mmf_win.demo.synthetic import Meme, archive_members, generate_memes


def test_memes_depend_only_on_the_seed() -> None:
    assert generate_memes(7) == generate_memes(7) != generate_memes(8)


def test_ids_are_unique_and_some_file_names_need_their_leading_zero() -> None:
    splits = generate_memes(1)
    assert {split: len(memes) for split, memes in splits.items()} == synthetic.SPLIT_SIZES
    memes = [meme for of_split in splits.values() for meme in of_split]
    assert len({meme.id for meme in memes}) == len(memes)
    assert all(re.fullmatch(r"img/\d{5}\.png", meme.image_path) for meme in memes)
    assert any(meme.image_path.startswith("img/0") for meme in memes)


SIDES: dict[str, Callable[[Meme], Any]] = {
    "caption": lambda meme: meme.text,
    "word": lambda meme: frozenset(meme.text.split()) & {w for pair in synthetic.VERBS for w in pair},
    "picture": lambda meme: meme.picture,
    "kind of picture": lambda meme: meme.picture.crowded,
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_text_or_picture_alone_does_not_predict_the_label(side: str, seed: int) -> None:
    for memes in generate_memes(seed).values():
        labels = defaultdict(list)
        for meme in memes:
            labels[SIDES[side](meme)].append(meme.label)
        assert {sum(some) / len(some) for some in labels.values()} == {0.5}


def test_words_and_picture_together_decide_all_labels_but_one_in_ten() -> None:
    mean_words = {mean for _, mean in synthetic.VERBS}

    def is_mean(meme: Meme) -> bool:
        return bool(mean_words & set(meme.text.split())) == meme.picture.crowded

    for memes in generate_memes(1).values():
        assert sum(meme.label != is_mean(meme) for meme in memes) == pytest.approx(0.1 * len(memes))


def test_captions_and_pictures_are_unique_across_splits() -> None:
    seen: set[Any] = set()
    for memes in generate_memes(1).values():
        parts = {meme.text for meme in memes} | {meme.picture for meme in memes}
        assert not parts & seen
        seen |= parts


@pytest.mark.torch
def test_images_are_reproducible_png_files_of_varied_sizes() -> None:
    Image = pytest.importorskip("PIL.Image", reason="Pillow is of the train extra, as on Windows in the tests")
    memes, again = (generate_memes(1)["train"][:8] for _ in range(2))
    assert [meme.png for meme in memes] == [meme.png for meme in again]
    images = [Image.open(io.BytesIO(meme.png)) for meme in memes]
    assert {image.format for image in images} == {"PNG"}
    assert [image.size for image in images] == [(m.picture.width, m.picture.height) for m in memes]
    assert len({image.size for image in images}) > 1


@pytest.mark.torch
def test_archive_has_the_layout_of_the_release() -> None:
    splits = {split: memes[:4] for split, memes in generate_memes(1).items()}
    files = dict(archive_members(splits))
    for split, memes in splits.items():
        rows = files.pop(f"hateful_memes/{split}.jsonl").decode().splitlines()
        fields = [{"id": m.stem, "img": m.image_path, "label": m.label, "text": m.text} for m in memes]
        assert rows == [json.dumps(row) for row in fields]
    del files["hateful_memes/README.md"]
    assert files == {f"hateful_memes/{meme.image_path}": meme.png for memes in splits.values() for meme in memes}

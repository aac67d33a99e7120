"""Sets and splits of the user's own, trained on and predicted by the real MMF."""

from __future__ import annotations

import shutil
from pathlib import Path

from mmf_win.cli import main
from tests.endtoend.conftest import Tool, ids, probabilities
from tests.worlds.tiny_mmf import SPLITS


def own_set(folder: Path) -> None:
    """Tables by pandas, with images of several kinds by Pillow."""
    import numpy as np
    import pandas
    from PIL import Image

    random = np.random.default_rng(0)
    number = 0
    for split, count in {"train": 6, "dev": 4, "test": 3}.items():
        rows = []
        for n in range(count):
            number += 1
            image = folder / "photos" / split / f"{number}.{('jpg', 'png', 'webp', 'GIF')[n % 4]}"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (50, 60, 3), dtype=np.uint8)).save(image)
            text = 'she said "love",\nthis cat' if n % 2 else "смех 世界"
            path = image.relative_to(folder).as_posix()
            rows.append({"image": path, "text": text, "id": f"{split}-{n}", "label": float(n % 2)})
        pandas.DataFrame(rows).to_csv(folder / f"{split}.csv", index=False, encoding="utf-8-sig")


def test_a_set_of_csv_files_is_trained_on_and_predicted_by_its_own_ids(tool: Tool, tmp_path: Path) -> None:
    source = tmp_path / "мой набор"
    source.mkdir()
    own_set(source)
    own = tool.in_a_copy("world")
    shutil.rmtree(own.world.dataset)
    assert main(["convert", "--zip", str(source), "--data-dir", str(own.world.data)]) == 0
    tool.read()
    assert own("train", own.preset("concat_bert"), "--updates", "2")["state"] == "done"
    assert ids(own("predict")) == ["test-0", "test-1", "test-2"]


def test_a_split_that_lies_beside_the_others_is_predicted(tool: Tool) -> None:
    own = tool.in_a_copy("world")
    annotations = own.world.dataset / "annotations"
    shutil.copyfile(annotations / "dev_seen.jsonl", annotations / "трудные.jsonl")
    tool.trained("bert")
    mine, same = (own("predict", "--split", split) for split in ("трудные", "dev_seen"))
    assert len(ids(mine)) == SPLITS["dev_seen"]
    assert (ids(same), probabilities(same)) == (ids(mine), probabilities(mine))
    assert own.code("predict", "--split", "hard") == 3
    assert "трудные" in own.errors

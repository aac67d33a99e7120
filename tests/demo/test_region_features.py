"""Region features in the format of MMF's LMDBFeatureReader; another test lets MMF read them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest

from tests.worlds.tools import untar

pytestmark = pytest.mark.torch

RED, BLUE = (255, 0, 0), (0, 0, 255)


def half_red_half_blue() -> bytes:
    from PIL import Image

    image = Image.new("RGB", (60, 40), RED)
    image.paste(BLUE, (0, 20, 60, 40))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_each_image_has_a_record_in_key_order(user_dir: Path) -> None:
    """The records are read like in MMF: first the keys, then each record."""
    import lmdb

    from mmf_win.demo.generate import write_features_archive

    archive = user_dir / "features.tar.gz"
    stems = [f"{n:05d}" for n in range(100)]
    write_features_archive(archive, [(stem, half_red_half_blue()) for stem in stems])
    assert list(user_dir.iterdir()) == [archive]
    untar(archive, user_dir)
    with (
        lmdb.open(str(user_dir / "detectron.lmdb"), readonly=True, lock=False) as environment,
        environment.begin(buffers=True) as transaction,
    ):
        keys = pickle.loads(transaction.get(b"keys"))
        records = {key.decode(): pickle.loads(transaction.get(key)) for key in keys}
    assert list(records) == stems
    record = records["00042"]
    assert record["feature_path"] == "00042"
    assert (record["image_width"], record["image_height"], record["num_boxes"]) == (60, 40, 5)
    assert (record["features"].shape, record["features"].dtype) == ((5, 2048), "float32")
    assert (record["bbox"].shape, record["bbox"].dtype) == ((5, 4), "float32")
    assert (record["cls_prob"].shape, record["objects"].shape) == ((5, 1601), (5,))


def test_regions_are_the_image_and_its_quarters() -> None:
    import numpy as np

    from mmf_win.demo.generate import make_feature_record

    record = make_feature_record("00001", half_red_half_blue())
    assert record["bbox"][0].tolist() == [0, 0, 60, 40]
    assert record["bbox"][4].tolist() == [30, 20, 60, 40]
    image, upper_left, upper_right, lower_left, lower_right = record["features"]
    assert np.array_equal(upper_left, upper_right)
    assert np.array_equal(lower_left, lower_right)
    assert upper_left @ lower_left == 0
    assert set(np.flatnonzero(image)) == set(np.flatnonzero(upper_left + lower_left))
    assert np.linalg.norm(record["features"], axis=1) == pytest.approx(np.full(5, 40.0))


def test_failed_features_archive_leaves_no_file(user_dir: Path) -> None:
    from PIL import UnidentifiedImageError

    from mmf_win.demo.generate import write_features_archive

    with pytest.raises(UnidentifiedImageError):
        write_features_archive(user_dir / "features.tar.gz", [("01234", b"no image")])
    assert list(user_dir.iterdir()) == []

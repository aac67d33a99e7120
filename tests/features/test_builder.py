"""Files of MMF's extraction scripts: accepted formats and rejected files."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import DatasetError
from tests.worlds import feature_files, hostile_archives
from tests.worlds.pickles import UnusualObject
from tests.worlds.tools import LazyModule, requires_package

np = pytest.importorskip("numpy")

from mmf_win.features.builder import build_lmdb, find_feature_files, read_record  # noqa: E402

torch = LazyModule("torch")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def read(folder: Path, key: str = "00001") -> dict[str, Any]:
    """Return the record of a key."""
    return read_record(find_feature_files([folder])[key], key)


def save_object(path: Path, value: Any, protocol: int = 4) -> None:
    """Write a Python object like ``np.save``, which used protocol 3 in older versions."""
    array = np.empty((), dtype=object)
    array[()] = value
    save_pickled(path, array, protocol)


def save_pickled(path: Path, value: Any, protocol: int = 4) -> None:
    """Write an ``.npy`` file with a header for an object and any pickled value."""
    with path.open("wb") as file:
        header = np.lib.format.header_data_from_array_1_0(np.empty((), dtype=object))
        np.lib.format.write_array_header_1_0(file, header)
        pickle.dump(value, file, protocol=protocol)


def test_record_has_the_fields_that_mmf_stores(user_dir: Path) -> None:
    feature_files.write_pair(user_dir, "00001", regions=7)
    record = read(user_dir)
    info_keys = ["image_height", "image_width", "num_boxes", "objects", "cls_prob", "bbox"]
    assert list(record) == ["feature_path", "features", *info_keys]
    assert record["feature_path"] == "00001"
    assert np.array_equal(record["features"], np.load(user_dir / "00001.npy"))
    assert np.array_equal(record["bbox"], feature_files.make_info(7)["bbox"])
    assert (record["image_height"], record["image_width"], record["num_boxes"]) == (48, 64, 7)
    (user_dir / "00001_info.npy").unlink()
    assert list(read(user_dir)) == ["feature_path", "features"]


def test_keys_are_relative_paths_and_hidden_files_are_ignored(user_dir: Path) -> None:
    feature_files.write_pair(user_dir, "00001")
    feature_files.write_pair(user_dir / "часть 二", "00002")
    feature_files.write_pair(user_dir / ".cache", "00003")
    feature_files.write_pair(user_dir, "._00004")
    assert list(find_feature_files([user_dir])) == ["00001", "часть 二/00002"]


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_pickles_of_all_numpy_versions_are_read(user_dir: Path, protocol: int) -> None:
    feature_files.write_pair(user_dir, "00001")
    info = {**feature_files.make_info(), "num_boxes": np.int64(10), "image_width": np.float32(64)}
    save_object(user_dir / "00001_info.npy", info, protocol)
    record = read(user_dir)
    assert np.array_equal(record["cls_prob"], info["cls_prob"])
    assert record["num_boxes"] == 10


def test_module_names_of_numpy_1_are_read(user_dir: Path) -> None:
    feature_files.write_pair(user_dir, "00001")
    path = user_dir / "00001_info.npy"
    save_object(path, feature_files.make_info(), protocol=3)
    content = path.read_bytes().replace(b"numpy._core.", b"numpy.core.")
    assert b"numpy.core.multiarray" in content
    path.write_bytes(content)
    assert read(user_dir)["bbox"].shape == (10, 4)


def test_output_of_the_frcnn_script_is_read(user_dir: Path) -> None:
    """The script always records 100 boxes and stores one probability per region."""
    feature_files.write_pair(user_dir, "00001", regions=36, num_boxes=100, cls_prob=np.ones(36, dtype=np.float32))
    info_of_100 = {name: feature_files.make_info(100)[name] for name in ("bbox", "objects", "cls_prob")}
    feature_files.write_pair(user_dir, "00002", regions=150, num_boxes=100, **info_of_100)
    assert read(user_dir)["num_boxes"] == 100
    assert len(read(user_dir, "00002")["bbox"]) == 100


def test_output_of_the_vinvl_script_is_read(user_dir: Path) -> None:
    feature_files.write_pair(user_dir, "00001", feature_size=2054)
    boxes = np.zeros((10, 6), dtype=np.float32)
    info = {"bbox": boxes, "image_width": 4, "image_height": 3, "labels": boxes}
    np.save(user_dir / "00001_info.npy", info)
    record = read(user_dir)
    assert record["bbox"].shape == (10, 6)
    assert record["num_boxes"] is record["objects"] is record["cls_prob"] is None


def test_grid_of_the_resnet_script_is_read(user_dir: Path) -> None:
    np.save(user_dir / "00001.npy", np.ones((1, 7, 7, 2048), dtype=np.float32))
    assert read(user_dir)["features"].shape == (1, 7, 7, 2048)
    assert build_lmdb(user_dir / "a.lmdb", [user_dir])["regions"] == (49, 49)


@pytest.mark.parametrize("name", ["00001.npy", "00001_info.npy"])
def test_pickle_with_code_is_rejected_and_named(name: str, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(user_dir)
    feature_files.write_pair(user_dir, "00001")
    runs_code = UnusualObject(os.mkdir, ("pwned",))
    save_object(user_dir / name, {"features": runs_code, "bbox": runs_code})
    with pytest.raises(DatasetError, match=r"mkdir|allow_pickle") as raised:
        read(user_dir)
    assert str(user_dir / name) in str(raised.value)
    assert not (user_dir / "pwned").exists()


@pytest.mark.parametrize("name", ["numpy.testing._private.utils runstring", "numpy load", "builtins eval"])
def test_other_functions_of_numpy_are_not_called(name: str, user_dir: Path) -> None:
    module, function = name.split()
    feature_files.write_pair(user_dir, "00001")
    start = (user_dir / "00001_info.npy").read_bytes()[:128]
    (user_dir / "00001_info.npy").write_bytes(start + f"c{module}\n{function}\n(V1\ntR.".encode())
    with pytest.raises(DatasetError, match=f"{module}.{function}"):
        read(user_dir)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"-" * 9000 + b"1", "the .npy header is nested too deeply"),
        (b" " * 60_000, "is large and may not be safe to load securely"),
        (b"{'descr': '|O', 'fortran_order': False, 'shape': ()}", "at position 0"),
    ],
    ids=["nested", "long", "no pickle"],
)
def test_invalid_header_is_reported_in_one_line(header: bytes, reason: str, user_dir: Path) -> None:
    start = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little")
    (user_dir / "00001.npy").write_bytes(start + header + b"\0" * 8)
    with pytest.raises(DatasetError, match=reason) as raised:
        read(user_dir)
    assert "\n" not in str(raised.value) and str(raised.value).count("cannot be read (") == 1


def test_tensors_are_rejected_with_a_hint(user_dir: Path) -> None:
    feature_files.write_pair(user_dir, "00001", num_boxes=torch.tensor(10))
    with pytest.raises(DatasetError, match="torch") as raised:
        read(user_dir)
    assert ".numpy()" in str(raised.value.hint)


@pytest.mark.parametrize("name", ["00001.npy", "00001_info.npy"])
@pytest.mark.parametrize(
    "damage",
    [
        hostile_archives.truncate_file,
        lambda path: hostile_archives.truncate_file(path, 0.0),
        lambda path: path.write_bytes(path.read_bytes()[:50]),
        lambda path: path.write_bytes(b"PK\x03\x04 an npz, for example"),
        lambda path: np.save(path, np.zeros(3, dtype=np.float32)),
        lambda path: np.save(path, np.zeros((3, 2048), dtype=np.int64)),
        lambda path: np.save(path, np.array([["a", "b"]])),
        lambda path: np.save(path, np.array([[1, np.nan]], dtype=np.float32)),
        lambda path: np.save(path, np.array([3], dtype=object)),
        lambda path: np.save(path, {**feature_files.make_info(9), "num_boxes": np.arange(3)}),
        *(partial(save_pickled, value=value) for value in ([1], None, "x", np.float32(1))),
    ],
    ids=[
        *("half", "empty", "in the header", "another format", "a row", "integers", "text", "NaN", "an object"),
        *("counts", "a pickled list", "a pickled None", "a pickled text", "a pickled number"),
    ],
)
def test_damaged_or_unsuitable_file_is_named(name: str, damage: Callable[[Path], object], user_dir: Path) -> None:
    feature_files.write_pair(user_dir, "00001")
    damage(user_dir / name)
    with pytest.raises(DatasetError) as raised:
        read(user_dir)
    assert str(user_dir / name) in str(raised.value)


@pytest.mark.parametrize(("name", "rows"), [("bbox", 9), ("objects", 9), ("cls_prob", 9), ("bbox", "no")])
def test_info_must_have_as_many_rows_as_regions(name: str, rows: Any, user_dir: Path) -> None:
    value = [[0, 0, 1, 1]] * 10 if rows == "no" else feature_files.make_info(rows)[name]
    feature_files.write_pair(user_dir, "00001", **{name: value})
    with pytest.raises(DatasetError, match=rf"00001_info\.npy: {name} has {rows} rows for 10 regions"):
        read(user_dir)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], r"no \.npy"),
        (["one/keys"], r"keys\.npy: name cannot be the key of an LMDB for MMF"),
        (["one/" + "x" * 250 + "/" + "y" * 250 + "/" + "z" * 20], "zz.npy: name cannot be the key"),
        (["one/1", "other/1"], r"other.1\.npy: same image as .*one.1\.npy"),
    ],
    ids=["none", "a name that MMF uses itself", "a name too long for a key", "two of one image"],
)
def test_unsuitable_sets_of_files_are_rejected(names: list[str], reason: str, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
        (folder / "a.txt").touch()
    for name in names:
        feature_files.write_pair((tmp_path / name).parent, (tmp_path / name).name)
    with pytest.raises(DatasetError, match=reason):
        find_feature_files(folders)

"""User datasets of train.csv, dev.csv, test.csv and images, converted like the released dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import MAX_ID, AnnotationRow, list_splits, read_annotations
from mmf_win.dataset.convert import convert
from mmf_win.errors import DatasetError
from mmf_win.paths import MmfPaths
from tests.dataset.conftest import verify_dataset
from tests.worlds.hostile_archives import write_zip
from tests.worlds.memes import (
    PASSWORD,
    PHASE_1_SPLITS,
    Files,
    dataset_files,
    image,
    jsonl,
    read_tree,
    tar_gz,
    write_tree,
)

TEXTS = ("plain", 'he said "hi", twice', "two\nlines", "смех 世界", "")


def table(names: list[str], **columns: list[Any]) -> bytes:
    """Return a table with a row for each image, as pandas writes it."""
    pandas = pytest.importorskip("pandas")
    texts = [TEXTS[n % len(TEXTS)] for n in range(len(names))]
    written: str = pandas.DataFrame({"img": names, "text": texts, **columns}).to_csv(index=False)
    return written.encode()


def make_user_dataset() -> Files:
    """Return three splits, with images of several types in several folders."""
    images = ["photos/cat.jpg", "photos/сова.webp", "other/x.GIF", "top.bmp", "img/last.tiff"]
    return {
        "train.csv": table(images[:3], id=["a", "b", "c"], label=[1, 0, 1]),
        "dev.csv": table(images[3:4], label=[0]),
        "test.csv": table(images[4:], id=["z-1"]),
        **{name: image(n) for n, name in enumerate(images)},
    }


def test_csv_named_jsonl_is_converted_after_renaming_as_hinted(user_dir: Path, mmf_paths: MmfPaths) -> None:
    source = write_tree(make_user_dataset(), user_dir / "mine")
    (source / "train.csv").rename(source / "train.jsonl")
    with pytest.raises(DatasetError, match="CSV") as caught:
        convert(source, mmf_paths)
    assert "end in .csv" in str(caught.value.hint)
    (source / "train.jsonl").rename(source / "train.csv")
    assert convert(source, mmf_paths).splits["train"].rows == 3


def read_rows(mmf_paths: MmfPaths, split: str) -> list[AnnotationRow]:
    """Return the rows of a converted split."""
    return read_annotations(mmf_paths.dataset.annotation_file(split))


@pytest.mark.parametrize("as_folder", [True, False])
def test_user_dataset_is_converted_to_mmfs_layout(as_folder: bool, user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {f"my set/{name}": content for name, content in make_user_dataset().items()}
    source = write_tree(files, user_dir / "a") if as_folder else write_zip(user_dir / "a.zip", files)
    result = convert(source, mmf_paths)
    summary = result.splits["train"]
    assert (summary.rows, summary.hateful, summary.benign, summary.missing) == (3, 2, 1, 0)
    assert (result.images, result.extra_images, result.shared_ids) == (5, 0, {})
    train, dev, test = (read_rows(mmf_paths, split) for split in ("train", "dev", "test"))
    assert [(row.img, row.custom_id, row.label) for row in (*train, *dev, *test)] == [
        ("img/photos/cat.jpg", "a", 1),
        ("img/photos/сова.webp", "b", 0),
        ("img/other/x.GIF", "c", 1),
        ("img/top.bmp", "top.bmp", 0),
        ("img/last.tiff", "z-1", None),
    ]
    assert len({row.id for row in (*train, *dev, *test)}) == 5
    assert [row.text for row in train] == list(TEXTS[:3])
    assert (mmf_paths.dataset.images / "img/photos/cat.jpg").read_bytes() == image(0)
    assert convert(source, mmf_paths).already_done
    assert verify_dataset(mmf_paths.dataset, full=True) == []
    assert {path.parts[0] for path in map(Path, read_tree(mmf_paths.dataset.root))} == {"annotations", "images"}


def test_integer_ids_are_kept_and_not_reused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {
        "train.csv": table(["a.png", "b.png"], id=[7, 12], label=[0, 1]),
        "dev.csv": table(["c.png", "a.png"], id=["x", "8"], label=[0, 1]),
        "test.csv": table(["c.png"], id=["x"]),
        **{f"{name}.png": image(ord(name)) for name in "abc"},
    }
    result = convert(write_tree(files, user_dir / "a"), mmf_paths)
    assert [(row.id, row.custom_id) for row in read_rows(mmf_paths, "train")] == [(7, None), (12, None)]
    assert [(row.id, row.custom_id) for row in read_rows(mmf_paths, "dev")] == [(13, "x"), (14, "8")]
    assert [(row.id, row.custom_id) for row in read_rows(mmf_paths, "test")] == [(13, "x")]
    assert result.shared_ids == {"dev & test": 1}, "a custom ID must get the same number in each split"


def test_ids_without_room_for_generated_ids_are_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    names = ["photos/cat.jpg", "photos/сова.webp", "other/x.GIF"]
    largest = make_user_dataset() | {"train.csv": table(names, id=[1, 2, MAX_ID], label=[1, 0, 1])}
    source = write_tree(largest, user_dir / "mine")
    with pytest.raises(DatasetError, match="at most") as caught:
        convert(source, mmf_paths)
    assert str(caught.value).startswith((f"{source}: dev.csv", f"{source}: test.csv"))
    assert read_tree(mmf_paths.data_dir) == {}


def test_csv_and_json_lines_may_be_mixed(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = dataset_files(PHASE_1_SPLITS, top="")
    files["dev.csv"] = table(["img/00007.png"], id=["x"], label=[1])
    del files["dev.jsonl"]
    convert(write_tree(files, user_dir / "a"), mmf_paths)
    (row,) = read_rows(mmf_paths, "dev")
    assert (row.id, row.custom_id, row.img) == (13, "x", "img/00007.png")
    assert len(read_rows(mmf_paths, "train")) == 6


def test_csv_is_ignored_if_the_split_exists_as_json_lines(
    user_dir: Path, mmf_paths: MmfPaths, caplog: pytest.LogCaptureFixture
) -> None:
    files = dataset_files(PHASE_1_SPLITS, top="") | {"train.csv": b"predictions"}
    convert(write_tree(files, user_dir / "a"), mmf_paths)
    assert len(read_rows(mmf_paths, "train")) == 6
    assert "train.csv, because the same split exists as .jsonl" in caplog.text


@pytest.mark.parametrize("packed", [True, False])
def test_images_may_be_next_to_the_folder_of_the_tables(packed: bool, user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {
        "annotations/train.csv": table(["../img/a.png"], label=[0]),
        "annotations/dev.csv": table(["img/b.png"], label=[0]),
    }
    images = {"img/a.png": image(1), "img/b.png": image(2)}
    files |= {"img.tar.gz": tar_gz(images)} if packed else images
    convert(write_tree(files, user_dir / "a"), mmf_paths)
    rows = read_rows(mmf_paths, "train") + read_rows(mmf_paths, "dev")
    assert [row.img for row in rows] == ["img/a.png", "img/b.png"]
    assert (mmf_paths.dataset.images / "img/b.png").read_bytes() == image(2)


def test_absolute_paths_are_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    folder = user_dir / "a"
    files = {"train.csv": table([str(folder / "a.png")], label=[0]), "dev.csv": table(["a.png"], label=[1])}
    with pytest.raises(DatasetError, match=r"train\.csv:2: ") as raised:
        convert(write_tree({**files, "a.png": image(1)}, folder), mmf_paths)
    assert "relative" in str(raised.value.hint)


def test_missing_images_are_named_or_excluded(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {"train.csv": table(["a.png", "gone.png", "b.png"], id=list("xyz"), label=[0, 1, 1])}
    files |= {"dev.csv": table(["a.png"], label=[0]), "a.png": image(1), "b.png": image(2)}
    source = write_tree(files, user_dir / "a")
    with pytest.raises(DatasetError, match=r"train 1 of 3 \(gone\.png"):
        convert(source, mmf_paths)
    assert not mmf_paths.dataset.annotations.exists()
    convert(source, mmf_paths, allow_missing=True)
    assert [row.custom_id for row in read_rows(mmf_paths, "train")] == ["x", "z"]


@pytest.mark.parametrize(
    ("train", "match"),
    [
        (b'img,text,label\na.png,"x\ny",0\na.png,x,true\n', r"train\.csv:4: .*label"),
        (b"img,text,label\na.png,x,0\na.png,y,\n", r"train\.csv:3: 1 of 2 rows have no label"),
        (b"id,img,text,label\n7,a.png,x,0\n07,a.png,y,1\n", r"train\.csv:3: id 7 is already in line 2"),
        (b"id,img,text,label\n99999999999,a.png,x,0\n", r"train\.csv:2: .*at most"),
        (b"img,text\na.png\xff,x\n", r"train\.csv: not a text file in UTF-8"),
    ],
)
def test_invalid_row_is_reported_and_nothing_is_written(
    train: bytes, match: str, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    files = {"train.csv": train, "dev.csv": b"img,text,label\na.png,x,0\n", "a.png": image(1)}
    with pytest.raises(DatasetError, match=match):
        convert(write_tree(files, user_dir / "a"), mmf_paths)
    assert read_tree(mmf_paths.dataset.root) == {}


def test_images_that_mmf_would_confuse_are_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {"train.csv": table(["a.png"], label=[0]), "dev.csv": table(["a.jpg"], label=[0])}
    with pytest.raises(DatasetError, match=r"a\.jpg and a\.png"):
        convert(write_tree({**files, "a.png": image(1), "a.jpg": image(2)}, user_dir / "a"), mmf_paths)


def test_tables_without_images_are_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    source = write_tree({"train.csv": table(["a.png"], label=[0])}, user_dir / "a")
    with pytest.raises(DatasetError, match="no images"):
        convert(source, mmf_paths, allow_missing=True)


# --- user splits next to the published splits --------------------------------------------------------------


@pytest.mark.parametrize("name", ["mine", "test"])
def test_another_conversion_keeps_a_user_split(name: str, archive: Path, mmf_paths: MmfPaths) -> None:
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    content = jsonl([{"id": 1, "img": "img/00001.png", "text": "x"}])
    mmf_paths.dataset.annotation_file(name).write_bytes(content)
    assert name in list_splits(mmf_paths.dataset)
    assert verify_dataset(mmf_paths.dataset) == []
    assert convert(archive, mmf_paths, ask=lambda: PASSWORD).already_done
    convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)
    assert mmf_paths.dataset.annotation_file(name).read_bytes() == content
    assert verify_dataset(mmf_paths.dataset, full=True) == []


def test_user_splits_are_listed_after_published_splits(mmf_paths: MmfPaths) -> None:
    names = ["mine.jsonl", "train.jsonl", "._x.jsonl", "dev.jsonl"]
    write_tree(dict.fromkeys(names, b""), mmf_paths.dataset.annotations)
    assert list_splits(mmf_paths.dataset) == ["train", "dev", "mine"]


@pytest.mark.parametrize("split", ["dev", "mine"])
def test_forced_conversion_renames_and_keeps_user_splits_and_images(
    split: str, archive: Path, user_dir: Path, mmf_paths: MmfPaths, caplog: pytest.LogCaptureFixture
) -> None:
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    path, picture = mmf_paths.dataset.annotation_file(split), mmf_paths.dataset.images / "img/00099.png"
    path.write_bytes(content := jsonl([{"id": 1, "img": "img/00001.png", "text": "x", "label": 1}]))
    picture.write_bytes(image(1))
    old = {**dataset_files(PHASE_1_SPLITS), "hateful_memes/img/00099.png": image(99)}
    for number in (1, 2):
        convert(write_zip(user_dir / f"{number}.zip", old), mmf_paths, force=True)
    is_taken = split == "dev"
    kept = path.with_name("dev.jsonl.old-1") if is_taken else path
    assert kept.read_bytes() == content
    assert picture.read_bytes() == image(99)
    assert picture.with_name("00099.png.old-1").read_bytes() == image(1)
    assert ("your file was renamed to dev.jsonl.old-1" in caplog.text) == is_taken
    assert list_splits(mmf_paths.dataset) == ["train", "dev", "test", *([] if is_taken else ["mine"])]
    assert len(list(mmf_paths.dataset.root.rglob("*.old-*"))) == 1 + is_taken
    assert verify_dataset(mmf_paths.dataset, full=True) == []


@pytest.mark.parametrize("inside", ["data", ".", "my data/2"])
def test_data_folder_inside_the_converted_folder_is_excluded(inside: str, user_dir: Path) -> None:
    source = write_tree(dataset_files(PHASE_1_SPLITS, top=""), user_dir / "mine")
    mmf_paths = MmfPaths.resolve(source / inside, source / "save")
    first = convert(source, mmf_paths)
    model = mmf_paths.data_dir / "models" / "some" / "train.jsonl"
    write_tree({"x/train.jsonl": b"{}", "x/dev.jsonl": b"{}"}, mmf_paths.save_dir)
    model.parent.mkdir(parents=True)
    model.write_bytes(b"{}")
    again = convert(source, mmf_paths)
    assert again.already_done and again.splits == first.splits
    (mmf_paths.dataset.images / "img/00001.png").unlink()
    assert not convert(source, mmf_paths).already_done
    assert convert(source, mmf_paths, force=True).images == 12


def test_images_named_by_another_path_are_counted_once(user_dir: Path, mmf_paths: MmfPaths) -> None:
    names = ["../photos/img/a.png", "../photos/img/b.png"]
    files = {f"tables/{split}.csv": table(names, label=[0, 1]) for split in ("train", "dev")}
    files |= {"photos/img/a.png": image(1), "photos/img/b.png": image(2), "photos/img/c.png": image(3)}
    result = convert(write_tree(files, user_dir / "a"), mmf_paths)
    assert (result.images, result.extra_images) == (3, 1)
    assert read_rows(mmf_paths, "train")[0].img == "img/photos/img/a.png"
    assert verify_dataset(mmf_paths.dataset, full=True) == []


def test_unusable_image_is_named_as_in_the_table(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {f"{split}.csv": table(["photos/a.png", "photos/b.png"], label=[0, 1]) for split in ("train", "dev")}
    files |= {"photos/a.png": image(1), "photos/b.png": b""}
    source = write_tree(files, user_dir / "a")
    with pytest.raises(DatasetError, match=r"train 1 of 2, dev 1 of 2 \(photos/b\.png: an empty file\)"):
        convert(source, mmf_paths)
    (source / "photos/b.png").unlink()
    with pytest.raises(DatasetError, match=r"train 1 of 2, dev 1 of 2 \(photos/b\.png\)"):
        convert(source, mmf_paths)

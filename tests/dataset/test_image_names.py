"""Image names that differ from those in the annotations, in case, Unicode form or otherwise."""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

import pytest

from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.convert import convert, repair_dataset
from mmf_win.dataset.user_memes import read_table, resolve_image_paths
from mmf_win.errors import DatasetError
from mmf_win.paths import MmfPaths
from tests.dataset.conftest import verify_dataset
from tests.worlds.hostile_archives import write_zip
from tests.worlds.memes import Files, image, jsonl, write_tree

NFC, NFD = (unicodedata.normalize(form, "été й.png") for form in ("NFC", "NFD"))
NAMES = {
    "case of the suffix": ("img/a.png", "img/a.PNG"),
    "case of the folder": ("img/a.png", "IMG/a.png"),
    "case in the annotations": ("IMG/A.png", "img/a.png"),
    "composed": (f"img/{NFD}", f"img/{NFC}"),
    "decomposed": (f"img/{NFC}", f"img/{NFD}"),
}
case_sensitive = pytest.mark.skipif(
    sys.platform in ("win32", "darwin"), reason="Windows and macOS have one file for both"
)


def dataset(annotated: str, stored: str, *, as_csv: bool = False) -> Files:
    """Return two splits that name an image, which is stored under another name."""
    rows = [{"id": n, "img": img, "text": "x", "label": n} for n, img in enumerate([annotated, "img/b.webp"])]
    table = "".join(f"{row['id']},{row['img']},x,{row['label']}\n" for row in rows)
    files = {f"{split}.jsonl": jsonl(rows) for split in ("train", "dev")}
    if as_csv:
        files = {f"{split}.csv": f"id,img,text,label\n{table}".encode() for split in ("train", "dev")}
    return {**files, stored: image(1), "img/b.webp": image(2)}


@pytest.mark.parametrize("case", NAMES)
@pytest.mark.parametrize("as_csv", [False, True], ids=["JSON Lines", "CSV"])
@pytest.mark.parametrize("as_folder", [False, True], ids=["zip", "folder"])
def test_image_is_found_by_a_name_that_differs_in_case_or_unicode_form(
    case: str, as_csv: bool, as_folder: bool, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    annotated, stored = NAMES[case]
    files = {f"my set/{name}": content for name, content in dataset(annotated, stored, as_csv=as_csv).items()}
    source = write_tree(files, user_dir / "a") if as_folder else write_zip(user_dir / "a.zip", files)
    result = convert(source, mmf_paths)
    assert (result.splits["train"].rows, result.images, result.extra_images) == (2, 2, 0)
    for split in ("train", "dev"):
        for row, content in zip(
            read_annotations(mmf_paths.dataset.annotation_file(split)), (image(1), image(2)), strict=True
        ):
            assert (mmf_paths.dataset.images / row.img).read_bytes() == content
            assert row.img in {
                path.relative_to(mmf_paths.dataset.images).as_posix()
                for path in (mmf_paths.dataset.images / "img").iterdir()
            }
    mmf_paths.dataset.annotation_file("train").unlink()
    assert repair_dataset(mmf_paths) == ["annotations/train.jsonl"]
    assert verify_dataset(mmf_paths.dataset, full=True) == []
    assert convert(source, mmf_paths).already_done


@case_sensitive
def test_ambiguous_names_are_shown_with_escapes(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {**dataset("img/É.png", "img/é.png"), "img/É.PNG": image(3)}
    with pytest.raises(DatasetError, match="images are missing: train 1 of 2") as caught:
        convert(write_tree(files, user_dir / "a"), mmf_paths)
    hint = str(caught.value.hint)
    assert all(name in hint for name in (r"'img/\xc9.png' matches", r"'img/\xe9.png'", r"'img/\xc9.PNG'"))


@pytest.mark.parametrize("as_csv", [False, True], ids=["JSON Lines", "CSV"])
def test_renamed_images_are_not_reported_as_an_incomplete_copy(
    as_csv: bool, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    """The zip is like one of a Russian Windows: names in code page 866, without the UTF-8 flag."""
    path = write_zip(user_dir / "a.zip", dataset("img/кот.png", "img/QQQ.png", as_csv=as_csv))
    path.write_bytes(path.read_bytes().replace(b"QQQ.png", "кот.png".encode("cp866")))
    with pytest.raises(DatasetError, match="images are missing: train 1 of 2") as caught:
        convert(path, mmf_paths)
    hint = str(caught.value.hint)
    assert "use a complete copy" not in hint
    assert (
        ascii("img/кот.png") in hint
        and ascii("кот.png".encode("cp866").decode("cp437"))[1:-1] in hint
        and "another program" in hint
    )


def test_missing_images_are_reported_as_an_incomplete_copy(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = dataset("img/a.png", "img/a.png")
    del files["img/a.png"]
    with pytest.raises(DatasetError) as caught:
        convert(write_tree(files, user_dir / "a"), mmf_paths)
    assert "use a complete copy" in str(caught.value.hint)


def test_missing_image_is_named_as_in_the_csv_file(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = dataset("https://example.org/img/a.png", "img/a.png", as_csv=True)
    with pytest.raises(DatasetError, match=r"\(https://example\.org/img/a\.png\)") as caught:
        convert(write_tree(files, user_dir / "a"), mmf_paths)
    assert 'instead of "https://example.org/img/a.png" in the annotations' in str(caught.value.hint)


def test_images_of_json_lines_outside_of_img_are_refused_with_a_hint(user_dir: Path, mmf_paths: MmfPaths) -> None:
    with pytest.raises(DatasetError, match=r"images are missing: train 1 of 2, .* \(images/a\.png\)") as caught:
        convert(write_tree(dataset("images/a.png", "images/a.png"), user_dir / "a"), mmf_paths)
    assert "move images such as 'images/a.png' into a folder img" in str(caught.value.hint)


@pytest.mark.parametrize("case", NAMES)
def test_user_memes_find_images_by_colliding_names(case: str, user_dir: Path) -> None:
    annotated, stored = NAMES[case]
    write_tree({stored: image(1), "memes.csv": f"img,text\n{annotated},x\n".encode()}, user_dir)
    (meme,) = resolve_image_paths(read_table(user_dir / "memes.csv"), user_dir / "memes.csv")
    assert Path(meme.img).read_bytes() == image(1)


@case_sensitive
def test_user_memes_with_ambiguous_images_are_refused(user_dir: Path) -> None:
    files = {"É.png": image(1), "é.PNG": image(2), "memes.csv": "img,text\né.png,x\n".encode()}
    write_tree(files, user_dir)
    with pytest.raises(DatasetError, match=r"1 of 1 images are missing: é\.png \(line 2\)") as caught:
        resolve_image_paths(read_table(user_dir / "memes.csv"), user_dir / "memes.csv")
    assert str(caught.value.hint) == r"'\xe9.png' matches '\xc9.png' and '\xe9.PNG': write one of these names"


def test_text_in_the_image_column_does_not_cause_a_system_error(user_dir: Path) -> None:
    (user_dir / "memes.csv").write_text(f"img,text\n{'so long a text ' * 30},1.png\n", "utf-8")
    with pytest.raises(DatasetError, match="1 of 1 images are missing"):
        resolve_image_paths(read_table(user_dir / "memes.csv"), user_dir / "memes.csv")

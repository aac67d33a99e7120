"""Unusable image files, which are reported with their cause before any training."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.convert import convert, repair_dataset
from mmf_win.dataset.image_files import find_flaw
from mmf_win.doctor.verify_all import verify_parts
from mmf_win.errors import DatasetError
from mmf_win.integrity.verify import record_hashes
from mmf_win.paths import MmfPaths
from tests.dataset.conftest import verify_dataset
from tests.worlds.hostile_archives import write_zip
from tests.worlds.memes import PHASE_1_SPLITS, dataset_files, image, write_tree

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
NO_PICTURES = {
    "an empty file": b"",
    "a git-lfs pointer": POINTER,
    "a web page or an error message of a server": b"<!DOCTYPE html><html><body>Sign in</body></html>",
    "not an image": b"see the other folder\n",
    "an unsupported image or video format": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
}
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "MPO")


def encode(format_: str, **save_options: object) -> bytes:
    """Return a noisy image, as Pillow encodes it."""
    from PIL import Image

    noise, buffer = Image.effect_noise((90, 60), 50).convert("RGB"), io.BytesIO()
    noise.save(buffer, format_, **save_options)
    return buffer.getvalue()


def is_read_by_pillow(content: bytes) -> bool:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return False
    return True


@pytest.mark.parametrize("content", [b"\0\0\0\x18ftypheic" + bytes(90), bytes(500)], ids=["HEIC", "zeros"])
def test_unknown_format_is_not_an_image(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    assert (flaw := find_flaw(tmp_path / "a")) and not flaw.is_usable


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda image: image,
        lambda image: image[: len(image) // 2],
        lambda image: image[:-200],
        lambda image: image[:20],
        lambda image: image + b"junk junk",
        lambda image: image + bytes(100),
    ],
    ids=["complete", "half", "end missing", "head", "junk after it", "zeros after it"],
)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_image_is_refused_if_pillow_cannot_load_it(
    format_: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    content = damage(encode(format_))
    (tmp_path / "a").write_bytes(content)
    flaw = find_flaw(tmp_path / "a")
    assert (flaw is None or flaw.is_usable) == is_read_by_pillow(content)


@pytest.mark.parametrize("format_", ["PNG", "JPEG"])
def test_image_that_ends_in_zeros_is_refused(format_: str, tmp_path: Path) -> None:
    complete = encode(format_)
    (tmp_path / "a").write_bytes(complete[: len(complete) // 2] + bytes(len(complete) // 2))
    assert (flaw := find_flaw(tmp_path / "a")) and flaw.description == "a truncated or damaged image"


def test_png_with_converted_line_ends_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(encode("PNG").replace(b"\r\n", b"\n"))
    assert (flaw := find_flaw(tmp_path / "a")) and not flaw.is_usable


def test_png_with_large_text_and_trailing_data_is_usable(tmp_path: Path) -> None:
    from PIL import PngImagePlugin

    text = PngImagePlugin.PngInfo()
    text.add_text("workflow", "x" * 3_000_000, zip=True)
    (tmp_path / "a").write_bytes(encode("PNG", pnginfo=text) + b"\n")
    assert (flaw := find_flaw(tmp_path / "a")) and flaw.is_usable


def test_end_marker_of_a_thumbnail_does_not_complete_its_jpeg(tmp_path: Path) -> None:
    picture, thumbnail = encode("JPEG"), encode("JPEG", quality=5)
    with_thumbnail = b"\xff\xd8\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail + picture[2:]
    (tmp_path / "a").write_bytes(with_thumbnail)
    assert find_flaw(tmp_path / "a") is None
    (tmp_path / "a").write_bytes(with_thumbnail[:-500])
    assert (flaw := find_flaw(tmp_path / "a")) and not flaw.is_usable


def test_png_without_pixels_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("L", (1, 1)).save(tmp_path / "a", "PNG")
    complete = (tmp_path / "a").read_bytes()
    assert find_flaw(tmp_path / "a") is None
    (tmp_path / "a").write_bytes(complete[:33] + b"\0\0\0\0IDAT\x35\xaf\x06\x1e" + complete[-12:])
    assert (flaw := find_flaw(tmp_path / "a")) and not flaw.is_usable


@pytest.mark.parametrize("content", [encode("PNG")[:-12], encode("PNG") + b"junk"], ids=["no IEND", "junk"])
def test_damaged_end_that_pillow_ignores_is_a_warning(
    content: bytes, user_dir: Path, mmf_paths: MmfPaths, caplog: pytest.LogCaptureFixture
) -> None:
    files = {**dataset_files(), "hateful_memes/img/00002.png": content}
    assert convert(write_zip(user_dir / "a.zip", files), mmf_paths).splits["train"].rows == 6
    assert "images that are damaged but readable: 1 (img/00002.png: " in caplog.text


@pytest.mark.parametrize("kind", NO_PICTURES)
def test_file_that_is_not_an_image_is_refused_or_excluded(kind: str, user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {**dataset_files(), "hateful_memes/img/00002.png": NO_PICTURES[kind]}
    source = write_tree(files, user_dir / "a")
    with pytest.raises(DatasetError) as caught:
        convert(source, mmf_paths)
    assert str(caught.value) == f"{source}: images cannot be used: train 1 of 6 (img/00002.png: {kind})"
    assert "exclude these memes with --allow-missing" in str(caught.value.hint)
    assert ("git lfs pull" in str(caught.value.hint)) == (kind == "a git-lfs pointer")
    assert not mmf_paths.dataset.annotations.exists()

    result = convert(source, mmf_paths, allow_missing=True)
    train = result.splits["train"]
    assert (train.rows, train.missing, train.missing_ids, result.images) == (5, 1, ["2"], 15)
    assert [row.id for row in read_annotations(mmf_paths.dataset.annotation_file("train"))] == [1, 3, 4, 5, 6]
    assert not (mmf_paths.dataset.images / "img/00002.png").exists()


def test_annotations_of_usable_images_are_repaired(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {**dataset_files(), "hateful_memes/img/00002.png": b""}
    convert(write_zip(user_dir / "a.zip", files), mmf_paths, allow_missing=True)
    mmf_paths.dataset.annotation_file("train").write_bytes(b"damaged")
    assert repair_dataset(mmf_paths) == ["annotations/train.jsonl"]
    assert verify_dataset(mmf_paths.dataset, full=True) == []


def test_split_without_any_usable_image_is_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    damaged = {f"hateful_memes/img/{id_:05}.png": POINTER for id_ in PHASE_1_SPLITS["dev"]}
    path = write_zip(user_dir / "a.zip", {**dataset_files(PHASE_1_SPLITS), **damaged})
    with pytest.raises(DatasetError, match=r"no row of dev has a usable image \(img/00007\.png, ") as caught:
        convert(path, mmf_paths, allow_missing=True)
    assert "delete the annotations of dev" in str(caught.value.hint)
    assert not mmf_paths.dataset.annotations.exists()


def test_verify_reports_unusable_images_accepted_by_an_earlier_version(user_dir: Path, mmf_paths: MmfPaths) -> None:
    convert(write_zip(user_dir / "a.zip", dataset_files()), mmf_paths)
    (finding,) = verify_parts(["dataset"], mmf_paths)
    assert finding.state == "intact"
    path = mmf_paths.dataset.images / "img/00001.png"
    path.write_bytes(POINTER)
    names = [file.relative_to(mmf_paths.dataset.root).as_posix() for file in path.parent.glob("*.png")]
    record_hashes(mmf_paths.dataset.root, names)  # like a conversion that did not check the images
    (finding,) = verify_parts(["dataset"], mmf_paths)
    assert (finding.state, finding.problems) == ("damaged", ("unusable: images/img/00001.png (a git-lfs pointer)",))
    assert finding.error and "`git lfs pull`" in str(finding.error.hint)
    assert "`mmfw convert --force --zip ARCHIVE" in str(finding.error.hint)
    convert(user_dir / "a.zip", mmf_paths, force=True)
    assert path.read_bytes() == image(1)
    (finding,) = verify_parts(["dataset"], mmf_paths)
    assert finding.state == "intact"

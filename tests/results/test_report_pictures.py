"""Thumbnails, and pictures that are the same under different captions."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mmf_win.demo.synthetic import Picture, draw_meme
from tests.worlds.tools import LazyModule, requires_package

Image = LazyModule("PIL.Image")
pictures = LazyModule("mmf_win.results.report.pictures")

pytestmark = [pytest.mark.torch, requires_package("PIL", "numpy")]


def make_picture(random: Random, width: int, height: int) -> Any:
    """Return a picture of large random patches."""
    return Image.frombytes("RGB", (12, 9), random.randbytes(12 * 9 * 3)).resize((width, height))


def save_images(folder: Path, images: dict[int, Any]) -> dict[int, Path]:
    """Write the images, given as Pillow images or bytes, to files."""
    files = {id_: folder / f"{id_}.png" for id_ in images}
    for id_, image in images.items():
        files[id_].write_bytes(image) if isinstance(image, bytes) else image.save(files[id_])
    return files


def test_thumbnail_keeps_the_aspect_ratio(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.effect_noise((1000, 500), 80).save(path)
    small = pictures.make_thumbnail(path)
    assert (small["width"], small["height"]) == (256, 128)
    kind, data = small["uri"].split(",")
    assert kind == "data:image/webp;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (256, 128)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16", "CMYK"])
def test_every_image_mode_has_a_thumbnail(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new(mode, (300, 300)).save(path)
    assert pictures.make_thumbnail(path) is not None


def make_png_without_palette() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((40, 30), 80).quantize(16).save(buffer, "PNG", transparency=1)
    content = buffer.getvalue()
    start = content.index(b"PLTE") - 4
    length = 12 + int.from_bytes(content[start : start + 4], "big")
    return content[:start] + content[start + length :]


def make_png_with_damaged_colour_profile() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((40, 30), 80).save(buffer, "PNG")
    image, end, rest = buffer.getvalue().rpartition(b"\0\0\0\0IEND")
    return image + b"\0\0\0\0iCCP" + zlib.crc32(b"iCCP").to_bytes(4, "big") + end + rest


BROKEN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no picture": lambda: b"no picture",
    "torn": lambda: draw_meme(Picture.random(Random(1), crowded=True), "a")[:200],
    "no palette": make_png_without_palette,
    "profile": make_png_with_damaged_colour_profile,
}


@pytest.mark.parametrize("content", [None, *BROKEN.values()], ids=["missing", *BROKEN])
def test_missing_or_damaged_picture_has_no_thumbnail(tmp_path: Path, content: Callable[[], bytes] | None) -> None:
    path = tmp_path / "a.png"
    if content is not None:
        path.write_bytes(content())
    assert pictures.make_thumbnail(path) is None
    assert pictures.group_similar_pictures({1: path, 2: path}) == {}


MEMORY = """
import resource, sys
from pathlib import Path
from mmf_win.results.report import pictures

files = {n: Path(name) for n, name in enumerate(sys.argv[1:])}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
shown = [pictures.make_thumbnail(file) is not None for file in files.values()]
similar = sorted(pictures.group_similar_pictures({**files, -1: files[0], -2: files[1]}))
print(shown, similar, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no getrusage")
def test_pictures_of_a_hundred_megapixels_take_little_memory(tmp_path: Path) -> None:
    """A JPEG can be scaled down while it is decoded; other formats cannot."""
    png, jpeg = tmp_path / "a.png", tmp_path / "a.jpg"
    large = Image.new("L", (10_000, 9_500), 200)
    for left in range(0, 10_000, 1_000):
        large.paste(30, (left, 0, left + 500, 9_500))
    for path in (png, jpeg):
        large.save(path)
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, str(png), str(jpeg)]
    process = subprocess.run(command, capture_output=True, encoding="utf-8")
    *results, kibibytes = process.stdout.split()
    assert "".join(results) == "[False,True][-2,1]", process.stderr
    assert int(kibibytes) < 60_000, "the picture must not be decoded at full size (95 MB, or 380 MB in colour)"


def test_same_picture_under_two_captions_is_grouped(tmp_path: Path) -> None:
    random = Random(3)
    images = {}
    for n in range(40):
        picture = Picture.random(random, crowded=n % 2 == 0)
        for caption in range(2):
            images[10 * n + caption] = draw_meme(picture, f"caption {caption} that is long enough for two lines")
    groups = pictures.group_similar_pictures(save_images(tmp_path, images))
    assert {id_ - id_ % 10 for id_ in groups} == {group - group % 10 for group in groups.values()}
    assert all(group == id_ - id_ % 10 for id_, group in groups.items()), "other pictures must not be grouped"
    assert len(groups) >= 60, "most of the 80 pictures must be grouped, except plain ones"


def test_tall_caption_does_not_prevent_grouping(tmp_path: Path) -> None:
    random, images = Random(5), {}
    for n in range(3):
        image = make_picture(random, 400, 320)
        for version, caption in enumerate([110, 60, 20]):  # the first caption covers over a third of the picture
            images[10 * n + version] = image.copy()
            images[10 * n + version].paste("black", (0, 0, 400, caption))
    assert pictures.group_similar_pictures(save_images(tmp_path, images)) == {id_: id_ - id_ % 10 for id_ in images}


def test_pictures_sharing_only_the_upper_part_are_not_grouped(tmp_path: Path) -> None:
    random = Random(6)
    upper, images = make_picture(random, 400, 140), {id_: make_picture(random, 400, 300) for id_ in range(4)}
    for image in images.values():
        image.paste(upper, (0, 0))
    assert pictures.group_similar_pictures(save_images(tmp_path, images)) == {}


def test_similarity_of_pictures_is_transitive(tmp_path: Path) -> None:
    images = {}
    for id_, (left, right) in {1: (0, 100), 2: (300, 400), 3: (0, 0)}.items():  # a quarter or a half differs
        images[id_] = make_picture(Random(7), 400, 320)
        images[id_].paste("black", (left, 0, right, 320))
    files = save_images(tmp_path, images)
    assert pictures.group_similar_pictures({1: files[1], 2: files[2]}) == {}
    assert pictures.group_similar_pictures(files) == {1: 1, 2: 1, 3: 1}


def test_grouping_sets_no_attributes_on_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_by_pillow_alone(image: Any, name: str, value: object) -> None:
        if not sys._getframe(1).f_globals["__name__"].startswith("PIL."):
            raise AttributeError(name)
        object.__setattr__(image, name, value)

    monkeypatch.setattr(Image.Image, "__setattr__", set_by_pillow_alone)
    images = {n: draw_meme(Picture(True, 240, 200, 1), f"caption {n}") for n in (1, 2)}
    assert pictures.group_similar_pictures(save_images(tmp_path, images)) == {1: 1, 2: 1}


def test_plain_backgrounds_are_not_grouped(tmp_path: Path) -> None:
    images = {n: Image.new("RGB", (200, 200), "white") for n in (1, 2)}
    assert pictures.group_similar_pictures(save_images(tmp_path, images)) == {}

"""Pictures become pixels in one way: 16 bits are scaled, orientation is applied, all else is Pillow's."""

from __future__ import annotations

import io
import runpy
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PIL = pytest.importorskip("PIL.Image", reason="could not import Pillow")

from PIL import ImageOps, PngImagePlugin  # noqa: E402

from mmf_win.export.exported_model import write_script  # noqa: E402
from mmf_win.images import open_image, to_rgb  # noqa: E402

Save = Callable[..., Path]


@pytest.fixture
def save(user_dir: Path) -> Save:
    """Save a picture to a file of that suffix, and return its path."""

    def to_file(image: Any, suffix: str, **options: Any) -> Path:
        path = user_dir / f"мем 梗.{suffix}"
        image.save(path, **options)
        return path

    return to_file


def colours() -> Any:
    """A picture of 5 × 4 pixels, each of another colour."""
    return PIL.frombytes("RGB", (5, 4), bytes((n * 37) % 251 for n in range(60)))


def every_grey() -> Any:
    """A picture with each of the 65,536 values of 16 bits."""
    little = b"".join(value.to_bytes(2, "little") for value in range(65536))
    return PIL.frombytes("I;16", (256, 256), little)


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return b"".join((len(content).to_bytes(4, "big"), kind, content, zlib.crc32(kind + content).to_bytes(4, "big")))


def test_grey_of_16_bits_keeps_its_upper_8(save: Save, user_dir: Path) -> None:
    expected = bytes(value >> 8 for value in range(65536) for _ in "RGB")
    image = every_grey()
    big_endian = user_dir / "big.pgm"
    pixels = b"".join(value.to_bytes(2, "big") for value in range(65536))
    big_endian.write_bytes(b"P5 256 256 65535\n" + pixels)
    for path in (save(image, "png"), save(image, "tiff"), big_endian):
        assert open_image(path).tobytes() == expected, path
    assert to_rgb(image).tobytes() == expected


def test_it_is_scaled_as_pillow_scales_other_pictures_of_16_bits(user_dir: Path) -> None:
    """16-bit RGB, and 16-bit grey with alpha, which Pillow reads with 8 bits."""
    values = [0, 255, 256, 0x1234, 0xABFF, 65535]
    for kind, channels in ((2, 3), (4, 2)):
        rows = b"\0" + b"".join(value.to_bytes(2, "big") * channels for value in values)
        header = len(values).to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes([16, kind, 0, 0, 0])
        png = user_dir / f"{kind}.png"
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
        png.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks))
        assert open_image(png).tobytes()[::3] == bytes(value >> 8 for value in values)


@pytest.mark.parametrize("suffix", ["png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_in_exif_is_applied(save: Save, suffix: str, orientation: int) -> None:
    exif = PIL.Exif()
    exif[0x0112] = orientation
    lossless = {"lossless": True} if suffix == "webp" else {}
    path = save(colours(), suffix, exif=exif.tobytes(), **lossless)
    shown = colours()
    shown.info["exif"] = exif.tobytes()
    found = open_image(path)
    assert found.size == ((5, 4) if orientation < 5 else (4, 5))
    assert found.tobytes() == ImageOps.exif_transpose(shown).tobytes()
    if suffix != "tiff":  # which Pillow turns by itself
        assert found.info.get("orientation", 1) == orientation
        assert open_image(path, orient=False).tobytes() == colours().tobytes()


@pytest.mark.parametrize("exif", [b"Exif\0\0MM\0*", b"not exif", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"])
def test_exif_that_cannot_be_read_changes_nothing(save: Save, exif: bytes) -> None:
    assert open_image(save(colours(), "png", exif=exif)).tobytes() == colours().tobytes()


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_changes_nothing(save: Save, orientation: int) -> None:
    exif = PIL.Exif()
    exif[0x0112] = orientation
    assert open_image(save(colours(), "png", exif=exif.tobytes())).tobytes() == colours().tobytes()


@pytest.mark.parametrize(
    ("mode", "suffix", "options"),
    [
        ("1", "png", {}),
        ("L", "png", {}),
        ("L", "jpg", {}),
        ("LA", "png", {}),
        ("P", "png", {"transparency": 3}),
        ("P", "gif", {}),
        ("RGB", "jpg", {"progressive": True}),
        ("RGB", "bmp", {}),
        ("RGBA", "png", {}),
        ("RGBA", "webp", {}),
        ("CMYK", "jpg", {}),
        ("YCbCr", "jpg", {}),
        ("I", "tiff", {}),
        ("F", "tiff", {}),
    ],
)
def test_other_pictures_are_those_of_pillow(save: Save, mode: str, suffix: str, options: Any) -> None:
    path = save(colours().convert(mode), suffix, **options)
    with PIL.open(path) as image:
        assert open_image(path).tobytes() == image.convert("RGB").tobytes()


def test_only_the_first_picture_of_several_counts(save: Save) -> None:
    second = colours().transpose(PIL.Transpose.FLIP_TOP_BOTTOM)
    path = save(colours(), "png", save_all=True, append_images=[second])
    assert open_image(path).tobytes() == colours().tobytes()


def test_long_texts_are_read(save: Save) -> None:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("workflow", "x" * (2 << 20), zip=True)
    path = save(colours(), "png", pnginfo=texts)
    assert open_image(path).tobytes() == colours().tobytes()


def test_the_copied_run_py_opens_pictures_by_the_same_functions(save: Save, user_dir: Path) -> None:
    for package in ("onnxruntime", "tokenizers"):
        pytest.importorskip(package, reason=f"could not import {package}")
    script = user_dir / "run.py"
    write_script(script)
    assert "mmf_win" not in script.read_text(encoding="utf-8")
    exif = PIL.Exif()
    exif[0x0112] = 6
    names = runpy.run_path(str(script))
    for path in (save(colours(), "png", exif=exif.tobytes()), save(every_grey(), "png")):
        assert names["open_image"](path).tobytes() == open_image(path).tobytes()


def test_what_is_no_picture_is_an_error(user_dir: Path) -> None:
    path = user_dir / "text.png"
    path.write_bytes(b"no picture")
    with pytest.raises(PIL.UnidentifiedImageError):
        open_image(path)
    cut = io.BytesIO()
    colours().resize((90, 80)).save(cut, "PNG")
    path.write_bytes(cut.getvalue()[:-40])
    with pytest.raises(OSError, match="truncated"):
        open_image(path)

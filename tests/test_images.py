"""Decoding of images: 16 bits are scaled, orientation is applied, and Pillow does the rest."""

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

SaveImage = Callable[..., Path]


@pytest.fixture
def save(user_dir: Path) -> SaveImage:
    """Return a function that saves an image with a suffix and returns the path."""

    def save_image(image: Any, suffix: str, **options: Any) -> Path:
        path = user_dir / f"мем 梗.{suffix}"
        image.save(path, **options)
        return path

    return save_image


def make_colour_image() -> Any:
    """Return an image of 5 × 4 pixels, each with another colour."""
    return PIL.frombytes("RGB", (5, 4), bytes((n * 37) % 251 for n in range(60)))


def make_16_bit_grey_image() -> Any:
    """Return an image with each of the 65,536 values of 16 bits."""
    pixels = b"".join(value.to_bytes(2, "little") for value in range(65536))
    return PIL.frombytes("I;16", (256, 256), pixels)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return b"".join((len(content).to_bytes(4, "big"), kind, content, zlib.crc32(kind + content).to_bytes(4, "big")))


def test_16_bit_grey_keeps_its_upper_8_bits(save: SaveImage, user_dir: Path) -> None:
    expected = bytes(value >> 8 for value in range(65536) for _ in "RGB")
    image = make_16_bit_grey_image()
    big_endian = user_dir / "big.pgm"
    pixels = b"".join(value.to_bytes(2, "big") for value in range(65536))
    big_endian.write_bytes(b"P5 256 256 65535\n" + pixels)
    for path in (save(image, "png"), save(image, "tiff"), big_endian):
        assert open_image(path).tobytes() == expected, path
    assert to_rgb(image).tobytes() == expected


def test_other_16_bit_images_keep_their_upper_8_bits(user_dir: Path) -> None:
    """Pillow reads 16-bit RGB and 16-bit grey with alpha as 8 bits."""
    values = [0, 255, 256, 0x1234, 0xABFF, 65535]
    for kind, channels in ((2, 3), (4, 2)):
        rows = b"\0" + b"".join(value.to_bytes(2, "big") * channels for value in values)
        header = len(values).to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes([16, kind, 0, 0, 0])
        png = user_dir / f"{kind}.png"
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
        png.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*fields) for fields in chunks))
        assert open_image(png).tobytes()[::3] == bytes(value >> 8 for value in values)


@pytest.mark.parametrize("suffix", ["png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(save: SaveImage, suffix: str, orientation: int) -> None:
    exif = PIL.Exif()
    exif[0x0112] = orientation
    lossless = {"lossless": True} if suffix == "webp" else {}
    path = save(make_colour_image(), suffix, exif=exif.tobytes(), **lossless)
    original = make_colour_image()
    original.info["exif"] = exif.tobytes()
    image = open_image(path)
    assert image.size == ((5, 4) if orientation < 5 else (4, 5))
    assert image.tobytes() == ImageOps.exif_transpose(original).tobytes()
    if suffix != "tiff":  # Pillow rotates TIFF images itself
        assert image.info.get("orientation", 1) == orientation
        assert open_image(path, orient=False).tobytes() == make_colour_image().tobytes()


@pytest.mark.parametrize("exif", [b"Exif\0\0MM\0*", b"not exif", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"])
def test_unreadable_exif_is_ignored(save: SaveImage, exif: bytes) -> None:
    assert open_image(save(make_colour_image(), "png", exif=exif)).tobytes() == make_colour_image().tobytes()


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_invalid_orientation_is_ignored(save: SaveImage, orientation: int) -> None:
    exif = PIL.Exif()
    exif[0x0112] = orientation
    assert open_image(save(make_colour_image(), "png", exif=exif.tobytes())).tobytes() == make_colour_image().tobytes()


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
def test_other_images_equal_those_of_pillow(save: SaveImage, mode: str, suffix: str, options: Any) -> None:
    path = save(make_colour_image().convert(mode), suffix, **options)
    with PIL.open(path) as image:
        assert open_image(path).tobytes() == image.convert("RGB").tobytes()


def test_only_first_frame_is_read(save: SaveImage) -> None:
    second = make_colour_image().transpose(PIL.Transpose.FLIP_TOP_BOTTOM)
    path = save(make_colour_image(), "png", save_all=True, append_images=[second])
    assert open_image(path).tobytes() == make_colour_image().tobytes()


def test_image_with_long_text_is_read(save: SaveImage) -> None:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("workflow", "x" * (2 << 20), zip=True)
    path = save(make_colour_image(), "png", pnginfo=texts)
    assert open_image(path).tobytes() == make_colour_image().tobytes()


def test_copied_run_py_opens_images_in_the_same_way(save: SaveImage, user_dir: Path) -> None:
    for package in ("onnxruntime", "tokenizers"):
        pytest.importorskip(package, reason=f"could not import {package}")
    script = user_dir / "run.py"
    write_script(script)
    assert "mmf_win" not in script.read_text(encoding="utf-8")
    exif = PIL.Exif()
    exif[0x0112] = 6
    script_globals = runpy.run_path(str(script))
    for path in (save(make_colour_image(), "png", exif=exif.tobytes()), save(make_16_bit_grey_image(), "png")):
        assert script_globals["open_image"](path).tobytes() == open_image(path).tobytes()


def test_invalid_or_truncated_image_is_an_error(user_dir: Path) -> None:
    path = user_dir / "text.png"
    path.write_bytes(b"no picture")
    with pytest.raises(PIL.UnidentifiedImageError):
        open_image(path)
    buffer = io.BytesIO()
    make_colour_image().resize((90, 80)).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue()[:-40])
    with pytest.raises(OSError, match="truncated"):
        open_image(path)

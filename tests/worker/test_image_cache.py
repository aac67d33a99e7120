"""Images are decoded once: whatever happens to the cache, the result is that of decoding."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

image_of = pytest.importorskip("PIL.Image", reason="could not import Pillow")

from mmf_win.worker import image_cache  # noqa: E402
from mmf_win.worker.image_cache import ImageCache, make_room  # noqa: E402


class Decoder:
    """Decodes and halves an image, and counts how often."""

    calls = 0

    def __call__(self, path: Path) -> Any:
        self.calls += 1
        with image_of.open(path) as image:
            return image.convert("RGB").resize((20, 15))


@pytest.fixture
def decode() -> Decoder:
    """One that has not been called."""
    return Decoder()


@pytest.fixture
def png(user_dir: Path) -> Path:
    """An image of many colours."""
    path = user_dir / "мем 梗.png"
    draw(path, 1)
    return path


def draw(path: Path, seed: int) -> None:
    """Write an image of 40 × 30 pixels."""
    pixels = bytes((n * seed * 37) % 251 for n in range(40 * 30 * 3))
    image_of.frombytes("RGB", (40, 30), pixels).save(path)


@pytest.fixture
def folder(user_dir: Path) -> Path:
    """Of the cache; not there at first."""
    return user_dir / "кэш"


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room, whatever the machine's has."""
    monkeypatch.setattr(image_cache, "free_space", lambda _: 1 << 40)


@pytest.fixture
def images(folder: Path) -> ImageCache:
    """A cache."""
    return ImageCache(folder)


def files(folder: Path) -> list[Path]:
    """What the cache has written."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_image_is_decoded_once_by_each_recipe_and_stays_what_it_is(
    images: ImageCache, png: Path, folder: Path, decode: Decoder
) -> None:
    first = images.get(png, "half", decode)
    again = ImageCache(folder).get(png, "half", decode)
    assert decode.calls == 1
    assert (again.mode, again.size, again.tobytes()) == (first.mode, first.size, first.tobytes())
    images.get(png, "half by another Pillow", decode)
    assert decode.calls == 2


def test_a_replaced_image_is_decoded_again_though_its_size_is_the_same(
    images: ImageCache, png: Path, decode: Decoder
) -> None:
    """On Linux and macOS also where its time is the same; Windows knows no time of the last change."""
    before = images.get(png, "half", decode).tobytes()
    old = png.stat()
    draw(png, 2)
    size = max(old.st_size, png.stat().st_size)
    png.write_bytes(png.read_bytes().ljust(size, b"\0"))
    while (new := png.stat()).st_mtime_ns == old.st_mtime_ns or new.st_ctime_ns == old.st_ctime_ns:
        if sys.platform == "win32" and new.st_mtime_ns != old.st_mtime_ns:
            break
        png.touch()  # the clock of a file system ticks every few milliseconds
    if sys.platform != "win32":
        os.utime(png, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert images.get(png, "half", decode).tobytes() != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:5],
        lambda content: b"",
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        lambda content: b"GIF8" + content[4:],
    ],
    ids=["short", "half a header", "empty", "a flipped bit", "another format"],
)
def test_a_damaged_file_is_made_again(
    images: ImageCache, png: Path, folder: Path, decode: Decoder, damage: Callable[[bytes], bytes]
) -> None:
    expected = images.get(png, "half", decode).tobytes()
    [kept] = files(folder)
    kept.write_bytes(damage(kept.read_bytes()))
    assert [images.get(png, "half", decode).tobytes() for _ in range(2)] == [expected] * 2
    assert decode.calls == 2


def test_a_folder_that_vanishes_is_made_again(
    images: ImageCache, png: Path, folder: Path, decode: Decoder
) -> None:
    images.get(png, "half", decode)
    shutil.rmtree(folder)
    assert images.get(png, "half", decode).size == (20, 15)
    assert len(files(folder)) == 1


def test_a_folder_that_vanishes_while_a_file_is_written_does_not_end_the_cache(
    images: ImageCache,
    png: Path,
    folder: Path,
    decode: Decoder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", lambda *_, **__: None)
        assert images.get(png, "half", decode).size == (20, 15)
    images.get(png, "half", decode)
    assert (len(files(folder)), caplog.messages) == (1, [])


def test_where_it_cannot_be_written_it_says_so_once(
    images: ImageCache, png: Path, folder: Path, decode: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("not a folder", encoding="utf-8")
    for recipe in ("a", "b", "c"):
        assert images.get(png, recipe, decode).size == (20, 15)
    [once] = caplog.messages
    assert str(folder) in once


@pytest.mark.parametrize(
    ("limit", "free", "kept"), [(1000, 1 << 40, 1), (1 << 40, 1 << 30, 0)], ids=["folder", "disk"]
)
def test_where_there_is_no_room_it_takes_no_more_and_keeps_what_it_has(
    images: ImageCache,
    png: Path,
    folder: Path,
    decode: Decoder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    free: int,
    kept: int,
) -> None:
    monkeypatch.setattr(image_cache, "_LIMIT", limit)
    monkeypatch.setattr(image_cache, "free_space", lambda _: free)
    for recipe in ("a", "b", "a"):
        images.get(png, recipe, decode)
    assert decode.calls == 3 - kept
    assert len(files(folder)) == kept
    assert len(caplog.messages) == 1


def test_the_next_run_removes_one_that_is_nearly_full(
    images: ImageCache, folder: Path, png: Path, decode: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_room(folder)  # which is not there
    images.get(png, "half", decode)
    size = files(folder)[0].stat().st_size
    monkeypatch.setattr(image_cache, "_LIMIT", 2 * size)
    make_room(folder)
    assert folder.exists()
    monkeypatch.setattr(image_cache, "_LIMIT", size)
    make_room(folder)
    assert not folder.exists()


def test_a_very_long_image_is_kept(images: ImageCache, png: Path, decode: Decoder) -> None:
    images.get(png, "long", lambda _: image_of.new("RGB", (70_000, 1), (1, 2, 3)))
    assert images.get(png, "long", decode).size == (70_000, 1)


def test_several_may_write_the_same_image_at_once(
    folder: Path, png: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def one(decode: Decoder) -> bytes:
        return bytes(ImageCache(folder).get(png, "half", decode).tobytes())

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(one, [Decoder() for _ in range(8)]))) == 1
    assert len(files(folder)) == 1
    assert caplog.messages == []


def test_an_image_that_is_not_there_is_left_to_whoever_opens_it(
    images: ImageCache, user_dir: Path, decode: Decoder
) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        images.get(user_dir / "none.png", "half", decode)


class TestDatabase:
    """A made-up database and transforms, as MMF's are."""

    @pytest.fixture
    def database(self, images: ImageCache, monkeypatch: pytest.MonkeyPatch) -> type[Any]:
        class Database:
            base_path = ""
            transform = "known"
            is_valid_file: Any = None
            loader: Any = staticmethod(len)
            opened = 0

            def open_image(self, path: str) -> Any:
                self.opened += 1
                return Decoder()(Path(path))

            def from_path(self, paths: Any, use_transforms: bool = True) -> Any:
                return "MMF's own"

        name = "mmf.datasets.databases.image_database"
        module: Any = SimpleNamespace(
            ImageDatabase=Database,
            tv_helpers=SimpleNamespace(default_loader=len),
            get_possible_image_paths=lambda path: path,
        )
        parts = {"known": (lambda image: image, lambda image: image.size, "recipe")}
        monkeypatch.setattr(image_cache, "_split", parts.get)
        monkeypatch.setitem(sys.modules, name, module)
        image_cache.use(images)
        return Database

    def test_what_is_known_is_decoded_once(self, database: type[Any], png: Path) -> None:
        each = database()
        assert [each.from_path(str(png)), each.from_path([str(png)])] == [{"images": [(20, 15)]}] * 2
        assert each.opened == 1

    @pytest.mark.parametrize(
        "changes",
        [
            {"transform": "unknown"},
            {"is_valid_file": bool},
            {"loader": staticmethod(print)},
            {"open_image": lambda self, path: "inverted"},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_anything_else_is_left_to_mmf(
        self, database: type[Any], png: Path, changes: dict[str, Any]
    ) -> None:
        other = type("Other", (database,), changes)
        assert other().from_path(str(png)) == "MMF's own"

    def test_images_without_transforms_are_left_to_mmf(self, database: type[Any], png: Path) -> None:
        assert database().from_path(str(png), use_transforms=False) == "MMF's own"

"""Images are decoded once: whatever happens to the cache, the result is that of decoding."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

image_of = pytest.importorskip("PIL.Image", reason="could not import Pillow")

from mmf_win.worker import image_cache  # noqa: E402
from mmf_win.worker.image_cache import ImageCache  # noqa: E402


class Decoder:
    """Decodes and halves an image, and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        with image_of.open(self.path) as image:
            return image.convert("RGB").resize((20, 15))


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
def said() -> list[str]:
    """What the cache said."""
    return []


@pytest.fixture
def folder(user_dir: Path) -> Path:
    """Of the cache; not there at first."""
    return user_dir / "кэш"


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room, whatever the machine's has."""
    monkeypatch.setattr(image_cache, "free_space", lambda _: 1 << 40)


@pytest.fixture
def images(folder: Path, said: list[str]) -> ImageCache:
    """A cache."""
    return ImageCache(folder, said.append)


def files(folder: Path) -> list[Path]:
    """What the cache has written."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_image_is_decoded_once_and_stays_what_it_is(images: ImageCache, png: Path, folder: Path) -> None:
    decode = Decoder(png)
    first = images.get(png, "half", decode)
    again = ImageCache(folder, print).get(png, "half", decode)
    assert decode.calls == 1
    assert (again.mode, again.size, again.tobytes()) == (first.mode, first.size, first.tobytes())


def test_another_recipe_is_another_image(images: ImageCache, png: Path) -> None:
    decode = Decoder(png)
    images.get(png, "half", decode)
    images.get(png, "half by another Pillow", decode)
    assert decode.calls == 2


def test_a_replaced_image_is_decoded_again_though_its_size_is_the_same(images: ImageCache, png: Path) -> None:
    """On Linux and macOS also where its time is the same; Windows knows no time of the last change."""
    decode = Decoder(png)
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
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"GIF8" + content[4:],
    ],
    ids=["short", "half a header", "empty", "a flipped bit", "another format"],
)
def test_a_damaged_file_is_made_again(
    images: ImageCache, png: Path, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    decode = Decoder(png)
    expected = images.get(png, "half", decode).tobytes()
    [kept] = files(folder)
    kept.write_bytes(damage(kept.read_bytes()))
    assert images.get(png, "half", decode).tobytes() == expected
    assert images.get(png, "half", decode).tobytes() == expected
    assert decode.calls == 2


def test_a_folder_that_vanishes_is_made_again(images: ImageCache, png: Path, folder: Path) -> None:
    decode = Decoder(png)
    images.get(png, "half", decode)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    assert images.get(png, "half", decode).size == (20, 15)
    assert len(files(folder)) == 1


def test_where_it_cannot_be_written_it_says_so_once(
    images: ImageCache, png: Path, folder: Path, said: list[str]
) -> None:
    folder.write_text("not a folder", encoding="utf-8")
    decode = Decoder(png)
    for recipe in ("a", "b", "c"):
        assert images.get(png, recipe, decode).size == (20, 15)
    [once] = said
    assert str(folder) in once


def test_a_full_one_takes_no_more_and_keeps_what_it_has(folder: Path, png: Path, said: list[str]) -> None:
    images, decode = ImageCache(folder, said.append, limit=1000), Decoder(png)
    for recipe in ("a", "b", "a"):
        images.get(png, recipe, decode)
    assert decode.calls == 2, "one was kept"
    assert len(files(folder)) == 1
    assert len(said) == 1


def test_the_next_run_removes_the_oldest(folder: Path, png: Path, said: list[str]) -> None:
    images, decode = ImageCache(folder, said.append), Decoder(png)
    by_age: list[Path] = []
    for number, recipe in enumerate("abcd"):
        images.get(png, recipe, decode)
        [new] = set(files(folder)) - set(by_age)
        os.utime(new, (1000 - number, 1000 - number))
        by_age.insert(0, new)
    size = by_age[0].stat().st_size
    image_cache.make_room(folder, limit=5 * size)
    assert len(files(folder)) == 4, "there is room"
    image_cache.make_room(folder, limit=4 * size)
    assert set(files(folder)) == set(by_age[2:])


def test_a_file_that_cannot_be_removed_does_not_stop_the_rest(
    folder: Path, png: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where another run reads it."""
    for recipe in "abcd":
        ImageCache(folder, print).get(png, recipe, Decoder(png))
    [held, *_] = files(folder)
    os.utime(held, (0, 0))
    unlink = Path.unlink

    def refused(path: Path, *args: Any, **kwargs: Any) -> None:
        if path == held:
            raise PermissionError
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", refused)
    image_cache.make_room(folder, limit=4 * held.stat().st_size)
    assert len(files(folder)) == 2
    assert held.exists()


def test_a_very_long_image_is_kept(images: ImageCache, png: Path) -> None:
    def long() -> Any:
        return image_of.new("RGB", (70_000, 1), (1, 2, 3))

    images.get(png, "long", long)
    assert images.get(png, "long", Decoder(png)).size == (70_000, 1)


def test_a_disk_with_little_space_is_left_alone(
    images: ImageCache, png: Path, folder: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "free_space", lambda _: 1 << 30)
    images.get(png, "half", Decoder(png))
    assert files(folder) == []
    assert len(said) == 1


def test_several_may_write_the_same_image_at_once(folder: Path, png: Path, said: list[str]) -> None:
    decoders = [Decoder(png) for _ in range(8)]

    def one(decode: Decoder) -> bytes:
        return bytes(ImageCache(folder, said.append).get(png, "half", decode).tobytes())

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(one, decoders))) == 1
    assert len(files(folder)) == 1
    assert said == []


def test_an_image_that_is_not_there_is_left_to_whoever_opens_it(images: ImageCache, user_dir: Path) -> None:
    def missing() -> Any:
        raise FileNotFoundError("as MMF says it")

    with pytest.raises(FileNotFoundError, match="as MMF says it"):
        images.get(user_dir / "none.png", "half", missing)


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
                return Decoder(Path(path))()

            def from_path(self, paths: Any, use_transforms: bool = True) -> Any:
                return "MMF's own"

        usual = SimpleNamespace(default_loader=len)
        module: Any = SimpleNamespace(
            ImageDatabase=Database, tv_helpers=usual, get_possible_image_paths=lambda path: path
        )
        parts = {"known": (lambda image: image, lambda image: image.size, "recipe")}
        monkeypatch.setattr(image_cache, "_parts", parts.get)
        image_cache._use(images, module)
        return Database

    def test_what_is_known_is_decoded_once(self, database: type[Any], png: Path) -> None:
        each = database()
        assert [each.from_path(str(png)), each.from_path([str(png)])] == [{"images": [(20, 15)]}] * 2
        assert each.opened == 1

    @pytest.mark.parametrize(
        "changes", [{"transform": "unknown"}, {"is_valid_file": bool}, {"loader": staticmethod(print)}]
    )
    def test_anything_else_is_left_to_mmf(
        self, database: type[Any], png: Path, changes: dict[str, Any]
    ) -> None:
        other = type("Other", (database,), changes)
        assert other().from_path(str(png)) == "MMF's own"

    def test_code_that_opens_images_in_its_own_way_is_left_alone(
        self, database: type[Any], png: Path
    ) -> None:
        class Inverted(database):  # type: ignore[misc]
            def open_image(self, path: str) -> Any:
                return "inverted"

        assert Inverted().from_path(str(png)) == "MMF's own"

    def test_images_without_transforms_are_left_to_mmf(self, database: type[Any], png: Path) -> None:
        assert database().from_path(str(png), use_transforms=False) == "MMF's own"

"""Cache of images: whatever its state, the result equals that of decoding."""

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

pil_image = pytest.importorskip("PIL.Image", reason="could not import Pillow")

from mmf_win.worker import disk_cache  # noqa: E402
from mmf_win.worker.disk_cache import ImageCache, evict_if_nearly_full  # noqa: E402


class CacheWorld:
    """A cache whose folder does not exist yet, and an image of many colours."""

    def __init__(self, root: Path) -> None:
        self.folder, self.png = root / "кэш", root / "мем 梗.png"
        self.images, self.decoded = ImageCache(self.folder), 0
        self.draw(1)

    def draw(self, seed: int) -> None:
        """Write an image of 40 × 30 pixels."""
        pixels = bytes((n * seed * 37) % 251 for n in range(40 * 30 * 3))
        pil_image.frombytes("RGB", (40, 30), pixels).save(self.png)

    def decode(self, path: Path) -> Any:
        """Return the image at half its size."""
        self.decoded += 1
        with pil_image.open(path) as image:
            return image.convert("RGB").resize((20, 15))

    def get(self, recipe: str = "half") -> bytes:
        """Return the pixels of the image."""
        image = self.images.get_image(self.png, recipe, self.decode)
        assert (image.mode, image.size) == ("RGB", (20, 15))
        return bytes(image.tobytes())

    @property
    def files(self) -> list[Path]:
        """Files of the cache."""
        return [path for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture
def world(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> CacheWorld:
    """Return a world on a disk that always has enough free space."""
    monkeypatch.setattr(disk_cache, "free_space", lambda _: 1 << 40)
    return CacheWorld(user_dir)


def test_image_is_decoded_once_per_recipe(world: CacheWorld) -> None:
    first = world.get()
    world.images = ImageCache(world.folder)
    assert world.get() == first
    assert world.decoded == 1
    world.get("half by another Pillow")
    assert world.decoded == 2


def test_replaced_image_of_the_same_size_is_decoded_again(world: CacheWorld) -> None:
    """On Linux and macOS, this includes an image with the same modification time; Windows has no change time."""
    before, png = world.get(), world.png
    old = png.stat()
    world.draw(2)
    size = max(old.st_size, png.stat().st_size)
    png.write_bytes(png.read_bytes().ljust(size, b"\0"))
    while (new := png.stat()).st_mtime_ns == old.st_mtime_ns or new.st_ctime_ns == old.st_ctime_ns:
        if sys.platform == "win32" and new.st_mtime_ns != old.st_mtime_ns:
            break
        png.touch()  # the clock of a file system ticks every few milliseconds
    if sys.platform != "win32":
        os.utime(png, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert world.get() != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:5],
        lambda _: b"",
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        lambda content: b"GIF8" + content[4:],
    ],
    ids=["short", "half a header", "empty", "a flipped bit", "another format"],
)
def test_damaged_cache_file_is_rewritten(world: CacheWorld, damage: Callable[[bytes], bytes]) -> None:
    expected = world.get()
    [cached] = world.files
    cached.write_bytes(damage(cached.read_bytes()))
    assert [world.get(), world.get()] == [expected] * 2
    assert world.decoded == 2


def test_removed_cache_folder_is_created_again(
    world: CacheWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.get()
    shutil.rmtree(world.folder)
    with monkeypatch.context() as patch:
        # The folder is removed again before the file is written.
        patch.setattr(Path, "mkdir", lambda *_, **__: None)
        world.get()
    world.get()
    assert (world.decoded, len(world.files), caplog.messages) == (3, 1, [])


@pytest.mark.parametrize(
    ("limit", "free", "cached"),
    [(1000, 1 << 40, 1), (1 << 40, 1 << 30, 0), (1 << 40, 1 << 40, 0)],
    ids=["folder is full", "disk is full", "a file instead of the folder"],
)
def test_full_cache_warns_once_and_keeps_its_files(
    world: CacheWorld,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    free: int,
    cached: int,
) -> None:
    if limit == free:
        world.folder.write_text("not a folder", encoding="utf-8")
    monkeypatch.setattr(disk_cache, "MAX_CACHE_BYTES", limit)
    monkeypatch.setattr(disk_cache, "free_space", lambda _: free)
    assert len({world.get(recipe) for recipe in ("a", "b", "a")}) == 1
    assert (world.decoded, len(world.files)) == (3 - cached, cached)
    [warning] = caplog.messages
    assert str(world.folder) in warning


def test_oldest_files_of_a_nearly_full_cache_are_evicted(world: CacheWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    evict_if_nearly_full(world.folder)  # the folder does not exist yet
    for age, recipe in enumerate("abcd"):
        before = set(world.files)
        world.get(recipe)
        [new] = set(world.files) - before
        os.utime(new, (age, age))
    size = world.files[0].stat().st_size
    for limit, cached in ((5 * size, {0, 1, 2, 3}), (4 * size, {2, 3}), (2 * size, {3})):
        monkeypatch.setattr(disk_cache, "MAX_CACHE_BYTES", limit)
        evict_if_nearly_full(world.folder)
        assert {path.stat().st_mtime for path in world.files} == cached


def test_very_wide_image_is_cached(world: CacheWorld) -> None:
    for _ in range(2):
        image = world.images.get_image(world.png, "long", lambda _: pil_image.new("RGB", (70_000, 1), (1, 2, 3)))
        assert (image.size, len(world.files)) == ((70_000, 1), 1)


def test_concurrent_writers_of_the_same_image(world: CacheWorld, caplog: pytest.LogCaptureFixture) -> None:
    def get_pixels(_: int) -> bytes:
        return bytes(ImageCache(world.folder).get_image(world.png, "half", world.decode).tobytes())

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(get_pixels, range(8)))) == 1
    assert (len(world.files), caplog.messages) == (1, [])


def test_missing_image_raises_the_error_of_the_decoder(world: CacheWorld) -> None:
    world.png.unlink()
    with pytest.raises(FileNotFoundError, match=world.png.name):
        world.get()


def test_only_default_decoding_is_cached(world: CacheWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    class Database:
        base_path = ""
        transform = "known"
        is_valid_file: Any = None
        loader: Any = staticmethod(len)

        def open_image(self, path: str) -> Any:
            return world.decode(Path(path))

        def from_path(self, paths: Any, use_transforms: bool = True) -> Any:
            return "MMF's own"

    module: Any = SimpleNamespace(
        ImageDatabase=Database,
        tv_helpers=SimpleNamespace(default_loader=len),
        get_possible_image_paths=lambda path: path,
    )
    parts = {"known": (lambda image: image, lambda image: image.size, "recipe")}
    monkeypatch.setattr(disk_cache, "_split_transform", parts.get)
    monkeypatch.setitem(sys.modules, "mmf.datasets.databases.image_database", module)
    disk_cache.install_image_cache(world.images)
    png = str(world.png)
    assert Database().from_path(png) == Database().from_path([png]) == {"images": [(20, 15)]}
    assert world.decoded == 1
    assert Database().from_path(png, use_transforms=False) == "MMF's own"
    for name, value in {
        "transform": "unknown",
        "is_valid_file": bool,
        "loader": staticmethod(print),
        "open_image": lambda self, path: "inverted",
    }.items():
        assert type("Other", (Database,), {name: value})().from_path(png) == "MMF's own", name

"""Decoded and resized images on the disk, so that each image is decoded once and not once an epoch.

To decode and resize a PNG of 350 kB takes 6 ms, to read the cached pixels 0.4 ms. Cached is what the
first transforms make, as far as they draw nothing at random: the pixels, from which the others make the very
tensor that they make without the cache.

A file is named by a hash of the image's path, size and times, and of these transforms and the versions of
Pillow and torchvision; so an image that was replaced is decoded again. A file holds :data:`_HEADER` (format,
width, height and the CRC-32 of what follows) and then the pixels in RGB. Several runs may share the folder.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from mmf_win.console import size as size_text
from mmf_win.files import free_space, replacing
from mmf_win.worker.compat.patch import after_import

Parts: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any], str]

LIMIT = 4 << 30
"""The most bytes that the folder holds; the 12,000 images of Hateful Memes are 1.8 GB for one size."""

_RESERVE = 5 << 30  # bytes of the disk that stay free
_HEADER = struct.Struct("<4sIII")
_MAGIC = b"RGB1"
_RECOUNT = 64 << 20  # bytes written, after which those of others are counted again
_SAME_EACH_TIME = ("Resize", "CenterCrop")


class ImageCache:
    """The files of one folder.

    Args:
        folder: need not exist.
        limit: bytes that it may hold.
        on_full: told why, once, when nothing more is kept.
    """

    def __init__(self, folder: Path, on_full: Callable[[str], None], limit: int = LIMIT) -> None:
        self._folder, self._limit, self._on_full = folder, limit, on_full
        self._room = self._until_recount = 0
        self._off = False

    def get(self, path: Path, recipe: str, make: Callable[[], Any]) -> Any:
        """The image that ``make`` makes of the file ``path`` by ``recipe``, kept or made now.

        Args:
            path: of the image.
            recipe: all that the result depends on beside the file.
            make: returns a Pillow image in RGB.
        """
        kept = self._file(path, recipe)
        image = kept and _read(kept)
        if image is None:
            image = make()
            if kept is not None and not self._off:
                self._keep(kept, image)
        return image

    def _file(self, path: Path, recipe: str) -> Path | None:
        try:
            found = path.stat()
        except OSError:
            return None  # to open it will say why
        about = (path.absolute(), found.st_size, found.st_mtime_ns, found.st_ctime_ns, recipe)
        name = hashlib.sha256("\n".join(map(str, about)).encode(errors="surrogatepass")).hexdigest()
        return self._folder / name[:2] / name[2:34]

    def _keep(self, kept: Path, image: Any) -> None:
        pixels = image.tobytes()
        content = _HEADER.pack(_MAGIC, *image.size, zlib.crc32(pixels)) + pixels
        try:
            if self._has_room(len(content)):
                _write(kept, content)
        except OSError as error:
            if not kept.exists():  # on Windows, another run may be reading what it has just written
                self._turn_off(error.strerror or str(error))

    def _has_room(self, size: int) -> bool:
        if self._until_recount <= 0:
            self._room = self._limit - sum(length for _, length, _ in _files(self._folder))
            self._until_recount = _RECOUNT
        self._until_recount -= size
        self._room -= size
        free = free_space(self._folder)
        if free is not None and free - size < _RESERVE:
            self._turn_off(f"{size_text(free)} of the disk are free")
        elif self._room < 0:
            self._turn_off(f"it holds {size_text(self._limit)}")
        return not self._off

    def _turn_off(self, reason: str) -> None:
        self._off = True
        self._on_full(f"the image cache {self._folder} takes no more images ({reason})")


def make_room(folder: Path, limit: int = LIMIT) -> None:
    """Remove the oldest files of a cache that is nearly full until it is half empty."""
    files = sorted(_files(folder))
    used = sum(size for _, size, _ in files)
    if used <= 0.9 * limit:
        return
    for _, size, path in files:
        if used <= limit / 2:
            return
        with suppress(OSError):  # on Windows, another run may be reading it
            path.unlink(missing_ok=True)
            used -= size


def _write(kept: Path, content: bytes) -> None:
    for last in (False, True):
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(kept) as temporary:
                temporary.write_bytes(content)
        except FileNotFoundError:  # the folder was removed at this very moment
            if last:
                raise
        else:
            return


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Time, size and path of each file in a cache; others may remove some meanwhile."""
    for path in folder.glob("??/*"):
        try:
            found = path.stat()
        except OSError:
            continue
        yield found.st_mtime, found.st_size, path


def _read(kept: Path) -> Any:
    """The image in a file; None where there is none, or not the whole of it."""
    from PIL import Image

    try:
        content = kept.read_bytes()
    except OSError:
        return None
    if len(content) < _HEADER.size:
        return None
    magic, width, height, checksum = _HEADER.unpack_from(content)
    pixels = memoryview(content)[_HEADER.size :]
    if magic != _MAGIC or len(pixels) != 3 * width * height or zlib.crc32(pixels) != checksum:
        return None
    return Image.frombytes("RGB", (width, height), pixels)


def use(images: ImageCache) -> None:
    """Let MMF's ``ImageDatabase`` take its images from a cache, where it decodes them in the usual way."""
    after_import("mmf.datasets.databases.image_database", lambda module: _use(images, module))


def _use(images: ImageCache, module: ModuleType) -> None:
    database: Any = module.ImageDatabase
    from_path, open_image = database.from_path, database.open_image
    # 1.0.0rc12 has its own
    default_loader = getattr(module, "default_loader", module.tv_helpers.default_loader)

    def cached(self: Any, paths: Any, use_transforms: bool = True) -> Any:
        opened_by_mmf = type(self).open_image is open_image and self.loader is default_loader
        parts = _parts(self.transform) if use_transforms and opened_by_mmf else None
        if parts is None or self.is_valid_file is not None:
            return from_path(self, paths, use_transforms)
        shrink, finish, recipe = parts

        def made(name: str) -> Any:
            path = module.get_possible_image_paths(str(Path(self.base_path, name)))
            return finish(images.get(Path(path), recipe, lambda: shrink(self.open_image(path))))

        return {"images": [made(name) for name in ([paths] if isinstance(paths, str) else paths)]}

    database.from_path = cached


def _parts(transform: Any) -> Parts | None:
    """What makes pixels that can be kept, what makes a tensor of them, and the former as text.

    None where the first transforms are not known to make the same of an image each time, and fewer pixels.
    """
    from mmf.datasets.processors.image_processors import TorchvisionTransforms

    processor = getattr(transform, "processor", transform)
    return _split(processor) if type(processor) is TorchvisionTransforms else None


@cache
def _split(processor: Any) -> Parts | None:
    import PIL
    import torchvision

    steps = processor.transform.transforms
    known = [getattr(torchvision.transforms, name) for name in _SAME_EACH_TIME]
    count = next((n for n, step in enumerate(steps) if type(step) not in known), len(steps))
    if count == 0 or type(steps[0]) is not known[0]:
        return None
    compose = torchvision.transforms.Compose
    recipe = f"{steps[:count]} by Pillow {PIL.__version__} and torchvision {torchvision.__version__}"
    return compose(steps[:count]), compose(steps[count:]), recipe

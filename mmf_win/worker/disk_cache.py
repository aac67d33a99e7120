"""What is made once and kept on the disk, not once an epoch: decoded images, and outputs of frozen models.

A file is named by a hash of all that its content depends on, and is in zlib's format, which adds a checksum.
Of images, cached is what a first transform Resize makes, as a PPM, of which the other transforms make the
tensor that they make without the cache. An image that was replaced is decoded again.
"""

from __future__ import annotations

import hashlib
import io
import logging
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import PIL.Image

from mmf_win.compat.patch import wrap
from mmf_win.files import atomic_replace, free_space, remove

_log = logging.getLogger(__name__)

#: The most bytes of a cache; the 12,000 images of Hateful Memes take 4.1 GB at 336 pixels.
MAX_CACHE_BYTES = 6 << 30
_MIN_FREE_BYTES = 5 << 30  # bytes of the disk that stay free
_RECOUNT_BYTES = 64 << 20  # bytes written, after which those of other processes are counted again


class DiskCache:
    """The files of a folder, which several runs may share, and which may be removed at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._budget_bytes, self._is_full = folder, 0, False

    def get_or_compute(self, key_parts: Iterable[object], compute: Callable[[], bytes]) -> bytes:
        """What ``make`` makes of all that it depends on, kept or made now."""
        name = hashlib.sha256("\n".join(map(str, key_parts)).encode(errors="surrogatepass")).hexdigest()
        kept = self._folder / name[:2] / name[2:34]
        with suppress(OSError, zlib.error):  # it is not there, or damaged
            return zlib.decompress(kept.read_bytes())
        made = compute()
        if not self._is_full:
            self._store(kept, zlib.compress(made, level=0))
        return made

    def _store(self, path: Path, content: bytes) -> None:
        try:
            if self._budget_bytes < len(content):
                left, _ = _usage(self._folder)
                self._budget_bytes = min(
                    _RECOUNT_BYTES, left, (free_space(self._folder) or 0) - _MIN_FREE_BYTES
                )
            if self._budget_bytes < len(content):
                raise OSError("it is full, or the disk is")
            self._budget_bytes -= len(content)
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_replace(path) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            # The folder may be removed at this very moment; on Windows, another run may be reading the file.
            if not isinstance(error, FileNotFoundError) and not path.exists():
                self._is_full = True
                _log.warning("the cache %s takes no more files (%s)", self._folder, error)


class ImageCache(DiskCache):
    """Images in RGB."""

    def get_image(self, path: Path, recipe: str, decode: Callable[[Path], Any]) -> Any:
        """The Pillow image that ``make`` makes of a file by a recipe, kept or made now."""
        if not path.is_file():
            return decode(path)  # which says what is wrong

        def encode_ppm() -> bytes:
            image = decode(path)
            return b"P6 %d %d 255\n" % image.size + bytes(image.tobytes())

        found = path.stat()
        about = (path.absolute(), found.st_size, found.st_mtime_ns, found.st_ctime_ns, recipe)
        return PIL.Image.open(io.BytesIO(self.get_or_compute(about, encode_ppm))).copy()


def _usage(folder: Path) -> tuple[int, list[tuple[float, int, Path]]]:
    """Return how many bytes are left, and the time, the size and the path of each file, the oldest first."""
    stats = ((path.stat(), path) for path in folder.glob(f"??/{'?' * 32}"))
    files = sorted((stat.st_mtime, stat.st_size, path) for stat, path in stats)
    return MAX_CACHE_BYTES - sum(size for _, size, _ in files), files


def evict_if_nearly_full(folder: Path) -> None:
    """Remove the oldest files of a cache that is nearly full, until half of it is free."""
    with suppress(OSError):  # another run may be using it
        left, files = _usage(folder)
        for _, size, path in files if left < 0.1 * MAX_CACHE_BYTES else ():
            if left < 0.5 * MAX_CACHE_BYTES:
                remove(path)
                left += size


def install_image_cache(cache: ImageCache) -> None:
    """Let MMF's ``ImageDatabase`` take its images from a cache, where it decodes them in the usual way."""

    module: Any = import_module("mmf.datasets.databases.image_database")
    open_image = module.ImageDatabase.open_image
    loader = getattr(module, "default_loader", module.tv_helpers.default_loader)  # its own in 1.0.0rc12

    @wrap(module.ImageDatabase, "from_path")
    def load_cached_images(from_path: Any, self: Any, paths: Any, use_transforms: bool = True) -> Any:
        is_usual = (type(self).open_image, self.loader, self.is_valid_file) == (open_image, loader, None)
        if not (use_transforms and is_usual and (parts := _split_transform(self.transform))):
            return from_path(self, paths, use_transforms)
        resize, finish, recipe = parts
        names = [paths] if isinstance(paths, str) else paths
        files = (Path(module.get_possible_image_paths(str(Path(self.base_path, name)))) for name in names)
        kept = (cache.get_image(f, recipe, lambda f: resize(self.open_image(str(f)))) for f in files)
        return {"images": [finish(image) for image in kept]}


def _split_transform(transform: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any], str] | None:
    """The first transform, the others, and what pixels depend on by the first; None where it is no Resize."""
    import torchvision
    from mmf.datasets.processors.image_processors import TorchvisionTransforms

    processor = getattr(transform, "processor", transform)
    steps = processor.transform.transforms if type(processor) is TorchvisionTransforms else []
    if not steps or type(steps[0]) is not torchvision.transforms.Resize:
        return None
    versions = f"Pillow {PIL.__version__} and torchvision {torchvision.__version__}"
    recipe = f"{steps[0]} of what images.open_image returns, by {versions}"
    return steps[0], torchvision.transforms.Compose(steps[1:]), recipe

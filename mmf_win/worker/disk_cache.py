"""Disk caches for decoded images and for the outputs of frozen models.

Files are named by a hash of everything that their content depends on and are in zlib's format, which has a
checksum. For images, the result of an initial ``Resize`` transform is stored as PPM; the remaining transforms
turn it into the same tensor as without the cache. A replaced image is decoded again.
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

#: Maximum size of a cache in bytes; the 12,000 images of Hateful Memes take 4.1 GB at 336 pixels.
MAX_CACHE_BYTES = 6 << 30
_MIN_FREE_BYTES = 5 << 30  # free disk space that is kept
_RECOUNT_BYTES = 64 << 20  # bytes written until the files of all processes are counted again


class DiskCache:
    """A folder of cached files, which several runs may share and which may be removed at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._budget_bytes, self._is_full = folder, 0, False

    def get_or_compute(self, key_parts: Iterable[object], compute: Callable[[], bytes]) -> bytes:
        """Return the cached content for ``key_parts``, or compute and store it."""
        name = hashlib.sha256("\n".join(map(str, key_parts)).encode(errors="surrogatepass")).hexdigest()
        path = self._folder / name[:2] / name[2:34]
        with suppress(OSError, zlib.error):  # missing or damaged
            return zlib.decompress(path.read_bytes())
        content = compute()
        if not self._is_full:
            self._store(path, zlib.compress(content, level=0))
        return content

    def _store(self, path: Path, content: bytes) -> None:
        try:
            if self._budget_bytes < len(content):
                remaining, _ = _usage(self._folder)
                self._budget_bytes = min(_RECOUNT_BYTES, remaining, (free_space(self._folder) or 0) - _MIN_FREE_BYTES)
            if self._budget_bytes < len(content):
                raise OSError("the cache or the disk is full")
            self._budget_bytes -= len(content)
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_replace(path) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            # The folder may have been removed; on Windows, another run may be reading the file.
            if not isinstance(error, FileNotFoundError) and not path.exists():
                self._is_full = True
                _log.warning("%s: nothing more is cached (%s)", self._folder, error)


class ImageCache(DiskCache):
    """Cache of decoded RGB images."""

    def get_image(self, path: Path, recipe: str, decode: Callable[[Path], Any]) -> Any:
        """Return the image that ``decode`` reads from a file, from the cache if possible.

        Args:
            path: The image file.
            recipe: Description of everything else that the pixels depend on.
            decode: Reads the file and returns an RGB image of Pillow.

        Returns:
            The image of Pillow.
        """
        if not path.is_file():
            return decode(path)  # raises the appropriate error

        def encode_ppm() -> bytes:
            image = decode(path)
            return b"P6 %d %d 255\n" % image.size + bytes(image.tobytes())

        stat = path.stat()
        key_parts = (path.absolute(), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, recipe)
        return PIL.Image.open(io.BytesIO(self.get_or_compute(key_parts, encode_ppm))).copy()


def _usage(folder: Path) -> tuple[int, list[tuple[float, int, Path]]]:
    """Return the remaining bytes and the time, size and path of each file, oldest first."""
    stats = ((path.stat(), path) for path in folder.glob(f"??/{'?' * 32}"))
    files = sorted((stat.st_mtime, stat.st_size, path) for stat, path in stats)
    return MAX_CACHE_BYTES - sum(size for _, size, _ in files), files


def evict_if_nearly_full(folder: Path) -> None:
    """Remove the oldest files of a nearly full cache until half of it is free."""
    with suppress(OSError):  # another run may be using it
        remaining, files = _usage(folder)
        for _, size, path in files if remaining < 0.1 * MAX_CACHE_BYTES else ():
            if remaining < 0.5 * MAX_CACHE_BYTES:
                remove(path)
                remaining += size


def install_image_cache(cache: ImageCache) -> None:
    """Make MMF's ``ImageDatabase`` load images from a cache unless it decodes them in a custom way."""
    module: Any = import_module("mmf.datasets.databases.image_database")
    open_image = module.ImageDatabase.open_image
    loader = getattr(module, "default_loader", module.tv_helpers.default_loader)  # 1.0.0rc12 has its own

    @wrap(module.ImageDatabase, "from_path")
    def load_cached_images(from_path: Any, self: Any, paths: Any, use_transforms: bool = True) -> Any:
        is_default = (type(self).open_image, self.loader, self.is_valid_file) == (open_image, loader, None)
        if not (use_transforms and is_default and (parts := _split_transform(self.transform))):
            return from_path(self, paths, use_transforms)
        resize, finish, recipe = parts
        names = [paths] if isinstance(paths, str) else paths
        files = (Path(module.get_possible_image_paths(str(Path(self.base_path, name)))) for name in names)
        images = (cache.get_image(f, recipe, lambda f: resize(self.open_image(str(f)))) for f in files)
        return {"images": [finish(image) for image in images]}


def _split_transform(transform: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any], str] | None:
    """Split a transform into its initial ``Resize`` and the rest.

    Returns:
        The ``Resize``, the other transforms, and a description of what the resized pixels depend on; ``None``
        if the first transform is no ``Resize``.
    """
    import torchvision
    from mmf.datasets.processors.image_processors import TorchvisionTransforms

    processor = getattr(transform, "processor", transform)
    steps = processor.transform.transforms if type(processor) is TorchvisionTransforms else []
    if not steps or type(steps[0]) is not torchvision.transforms.Resize:
        return None
    versions = f"Pillow {PIL.__version__} and torchvision {torchvision.__version__}"
    recipe = f"{steps[0]} of what images.open_image returns, by {versions}"
    return steps[0], torchvision.transforms.Compose(steps[1:]), recipe

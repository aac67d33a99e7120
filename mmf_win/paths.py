"""Locations of files, and file names that are legal on every system."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import count
from pathlib import Path

from mmf_win.errors import DataError, UsageError

# https://learn.microsoft.com/windows/win32/fileio/naming-a-file
_ILLEGAL = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
_RESERVED = re.compile(r"(?i)^(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(\.|$)")
#: Maximum length of a file name in UTF-8; Linux and macOS count bytes, Windows counts UTF-16 units.
MAX_NAME_BYTES = 255
_MAX_SHORT_NAME_BYTES = 90  # leaves room for two such names, a time and a suffix in one file name
# Like ``python -m MODULE``, but without the current folder at the start of the module path.
_RUN_MODULE_SCRIPT = """\
import sys
if not sys.path[0]: del sys.path[0]
import runpy
sys.path.append(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def is_portable(name: str) -> bool:
    """Return whether ``name`` is a legal file name on Windows, Linux and macOS."""
    return portable_name(name) == name


def portable_name(name: str, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Return a file name that is legal on every system, at most ``max_bytes`` long in UTF-8.

    Characters that Windows refuses become ``-``. A truncated name ends in six digits of its hash, so that
    names with the same start stay different.
    """
    name = _ILLEGAL.sub("-", _truncate_name(name, max_bytes)).rstrip(". ") or "-"
    return _truncate_name(f"_{name}", max_bytes) if _RESERVED.match(name) else name


def short_portable_name(name: str, suffix: str = "") -> str:
    """Return a portable name that is short enough for two of them to be parts of one file name.

    ``suffix`` is appended to the name and never truncated.
    """
    return portable_name(name, _MAX_SHORT_NAME_BYTES - len(suffix)) + suffix


def _truncate_name(name: str, max_bytes: int) -> str:
    data = name.encode(errors="surrogatepass")
    if len(data) <= max_bytes:
        return name
    ending = f"-{sha256(data).hexdigest()[:6]}"
    return data[: max_bytes - len(ending)].decode(errors="ignore") + ending


def module_command(module: str, *arguments: str) -> list[str]:
    """Return a command that runs a module of mmfw without importing from the current folder.

    It uses UTF-8 mode, since lmdb cannot open names that the locale cannot encode; the C locale only has
    ASCII.
    """
    return [sys.executable, "-X", "utf8", "-c", _RUN_MODULE_SCRIPT, str(Path(__file__).parents[1]), module, *arguments]


def make_portable(folder: Path) -> list[tuple[Path, Path]]:
    """Rename all files and folders below ``folder`` whose names are not legal on Windows.

    Returns:
        Old and new path of each, in the order of renaming: contents before their folder.

    Raises:
        DataError: A new name exists; nothing was renamed.
    """
    renames = [
        (path, path.with_name(portable_name(path.name)))
        for path in sorted(folder.rglob("*"), key=lambda path: -len(path.parts))
        if not is_portable(path.name)
    ]
    targets = [new for _, new in renames]
    for old, new in renames:
        if new.exists() or targets.count(new) > 1:
            raise DataError(f"{old}: cannot be renamed to {new.name}, which already exists", hint="rename one of them")
    for old, new in renames:
        old.rename(new)
    return renames


def create_timestamped_dir(parent: Path) -> Path:
    """Create a folder named by the current time; another one in the same second gets a number."""
    parent.mkdir(parents=True, exist_ok=True)
    return create_first_free((parent / name for name in numbered_names(timestamp())), Path.mkdir)


@contextmanager
def reserve_file(folder: Path, prefix: str, suffix: str) -> Iterator[Path]:
    """Reserve a new file name; no other process gets it while the block creates the file.

    The name is ``prefix``, the time, a number if the time is used, and ``suffix``. The name is reserved by a
    marker file with another name next to it.

    Args:
        folder: The folder of the file; it is created.
        prefix: Start of the name.
        suffix: End of the name, with its dot.

    Yields:
        The path of the file.
    """

    def create_marker(marker: Path) -> None:
        marker.touch(exist_ok=False)
        if marker.with_suffix("").exists():  # created, and no longer reserved
            marker.unlink()
            raise FileExistsError

    folder.mkdir(parents=True, exist_ok=True)
    names = (f"{name}{suffix}.reserved" for name in numbered_names(prefix + timestamp()))
    marker = create_first_free((folder / name for name in names), create_marker)
    try:
        yield marker.with_suffix("")
    finally:
        with suppress(OSError):  # on Windows, another process may have it open at this moment
            marker.unlink()


def require_new_file(path: Path) -> None:
    """Raise UsageError if a file exists, or if its folder does not."""
    if path.exists():
        raise UsageError(f"{path}: already exists", hint="choose another file")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: folder not found", hint="create it, or choose another folder")


def create_first_free(paths: Iterator[Path], create: Callable[[Path], None]) -> Path:
    """Create the first free one of an endless sequence of paths; safe against concurrent processes.

    Args:
        paths: The paths to try.
        create: Creates a path; raises FileExistsError if it exists.

    Returns:
        The created path.

    Raises:
        AssertionError: Never, if the sequence is endless.
    """
    for path in paths:
        with suppress(FileExistsError):
            create(path)
            return path
    raise AssertionError("the paths do not end")


def numbered_names(name: str) -> Iterator[str]:
    """Return an iterator over NAME, NAME-2, NAME-3 and so on."""
    return (name if n == 1 else f"{name}-{n}" for n in count(1))


def timestamp() -> str:
    """Return the local time as ``YYYY-mm-ddTHH-MM-SS``: sortable, and legal in file names on Windows."""
    return datetime.now().strftime("%Y-%m-%dT%H-%M-%S")


class ChildPath:
    """Descriptor for a path in a folder, which is in the attribute ``parent`` of the same object."""

    def __init__(self, name: str, parent: str = "path") -> None:
        self._name, self._parent = name, parent

    def __get__(self, owner: object, kind: type) -> Path:
        return Path(getattr(owner, self._parent), self._name)


@dataclass(frozen=True)
class MmfPaths:
    """The three folders of MMF, resolved by MMF's own rules.

    Attributes:
        cache_dir: ``MMF_CACHE_DIR``, or else ``mmf`` in PyTorch's cache folder.
        data_dir: ``MMF_DATA_DIR``, or else ``data`` in ``cache_dir``.
        save_dir: ``MMF_SAVE_DIR``, or else ``./save``.
    """

    cache_dir: Path
    data_dir: Path
    save_dir: Path

    @classmethod
    def resolve(cls, data_dir: Path | str | None = None, save_dir: Path | str | None = None) -> MmfPaths:
        """Return the folders to use; an argument takes precedence over the environment."""
        cache = expand_home(os.environ.get("MMF_CACHE_DIR") or Path(torch_home(), "mmf")).absolute()
        data = data_dir or Path(os.environ.get("MMF_DATA_DIR") or cache / "data")
        save = save_dir or Path(os.environ.get("MMF_SAVE_DIR") or "save")
        return cls(cache, expand_home(data).absolute(), expand_home(save).absolute())

    @property
    def dataset(self) -> DatasetPaths:
        """The Hateful Memes dataset in the data folder."""
        return DatasetPaths.from_data_dir(self.data_dir)

    @property
    def image_cache_dir(self) -> Path | None:
        """The folder of decoded images, or None if ``MMFW_IMAGE_CACHE`` is ``off``."""
        value = os.environ.get("MMFW_IMAGE_CACHE") or "on"
        if value not in ("on", "off"):
            raise UsageError(f"MMFW_IMAGE_CACHE={value}: must be on or off")
        return self.cache_dir / "mmfw-images" if value == "on" else None


def data_dir_arguments(data_dir: Path) -> list[str]:
    """Return the arguments that select a data folder, empty if it is the default."""
    return [] if data_dir == MmfPaths.resolve().data_dir else ["--data-dir", str(data_dir)]


@dataclass(frozen=True)
class DatasetPaths:
    """Paths of the Hateful Memes dataset in MMF's layout; see :meth:`from_data_dir` for the root."""

    root: Path

    #: Contains ``train.jsonl`` and the other annotation files.
    annotations = ChildPath("annotations", parent="root")
    #: Contains the folder ``img``, to which the ``img`` field of an annotation refers.
    images = ChildPath("images", parent="root")
    #: Contains ``detectron.lmdb``.
    features = ChildPath("features", parent="root")

    @classmethod
    def from_data_dir(cls, data_dir: Path) -> DatasetPaths:
        """Return the paths in MMF's data folder."""
        return cls(data_dir / "datasets" / "hateful_memes" / "defaults")

    @property
    def data_dir(self) -> Path:
        """The data folder of MMF."""
        return self.root.parents[2]

    def annotation_file(self, name: str) -> Path:
        """Return the annotation file of a split."""
        return self.annotations / f"{name}.jsonl"


def expand_home(path: str | Path) -> Path:
    """Replace ``~`` by the home folder; a name such as ``~$memes.zip``, which is no user's, is kept."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib raises if there is no such user


def torch_home() -> Path:
    """Return the cache folder of PyTorch."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(os.environ.get("TORCH_HOME") or Path(user_cache, "torch"))


def mmfw_home() -> Path:
    """Return the folder of what mmfw installs: ``MMFW_HOME``, or one in the Python environment."""
    configured = os.environ.get("MMFW_HOME")
    return expand_home(configured).absolute() if configured else Path(sys.prefix, "share", "mmfw")


def empty_zoo_file() -> Path:
    """Return a zoo file for MMF that lists no dataset, so that MMF downloads none."""
    return presets_dir() / "zoo" / "nothing.yaml"


def presets_dir() -> Path:
    """Return the folder of the presets."""
    return _in_wheel_or_checkout("configs")


def constraints_file() -> Path:
    """Return the file with the tested versions of dependencies, for ``pip install -c``."""
    return _in_wheel_or_checkout("constraints.txt")


def _in_wheel_or_checkout(name: str) -> Path:
    """Return a path in the package (installed from a wheel) or next to it (in a checkout)."""
    package = Path(__file__).parent
    in_package = package / name
    return in_package if in_package.exists() else package.parent / name

"""Where things live, and names that are legal on every system."""

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
#: Bytes in UTF-8 that any system takes; Linux and macOS count them so, and Windows counts no more.
MAX_NAME_BYTES = 255
_MAX_SHORT_NAME_BYTES = 90  # of two in one name, with a time and what says what the file is
# As ``python -m MODULE``, which would look for modules in the current folder first.
_RUN_MODULE_SCRIPT = """\
import sys
if not sys.path[0]: del sys.path[0]
import runpy
sys.path.append(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def is_portable(name: str) -> bool:
    """Whether ``name`` can be one file's name on Windows, Linux and macOS alike."""
    return portable_name(name) == name


def portable_name(name: str, max_bytes: int = MAX_NAME_BYTES) -> str:
    """``name`` with ``-`` for every character that Windows refuses, cut to ``longest`` bytes of UTF-8.

    What was cut ends in a few digits of the name's hash, so that names that begin alike stay different.
    """
    name = _ILLEGAL.sub("-", _truncate_name(name, max_bytes)).rstrip(". ") or "-"
    return _truncate_name(f"_{name}", max_bytes) if _RESERVED.match(name) else name


def short_portable_name(name: str, suffix: str = "") -> str:
    """As :func:`portable_name`, and so short that the names of files may hold it beside another such part.

    ``suffix`` follows the name, and is never cut.
    """
    return portable_name(name, _MAX_SHORT_NAME_BYTES - len(suffix)) + suffix


def _truncate_name(name: str, max_bytes: int) -> str:
    data = name.encode(errors="surrogatepass")
    if len(data) <= max_bytes:
        return name
    ending = f"-{sha256(data).hexdigest()[:6]}"
    return data[: max_bytes - len(ending)].decode(errors="ignore") + ending


def module_command(module: str, *arguments: str) -> list[str]:
    """What runs a module of mmfw's; the user's files in the current folder cannot stand in for libraries.

    In UTF-8 mode, since lmdb opens no name that the locale cannot encode, and the C locale has ASCII alone.
    """
    return [
        sys.executable,
        "-X",
        "utf8",
        "-c",
        _RUN_MODULE_SCRIPT,
        str(Path(__file__).parents[1]),
        module,
        *arguments,
    ]


def make_portable(folder: Path) -> list[tuple[Path, Path]]:
    """Rename every file and folder below ``folder`` whose name is not legal on Windows.

    Returned are the old and the new path of each, in the order in which they were renamed: contents before
    their folder. Raises DataError where a new name is taken; nothing has been renamed then.
    """
    planned = [
        (path, path.with_name(portable_name(path.name)))
        for path in sorted(folder.rglob("*"), key=lambda path: -len(path.parts))
        if not is_portable(path.name)
    ]
    targets = [new for _, new in planned]
    for old, new in planned:
        if new.exists() or targets.count(new) > 1:
            message = f"{old} cannot become {new.name}, which is taken"
            raise DataError(message, hint="rename one of them yourself")
    for old, new in planned:
        old.rename(new)
    return planned


def create_timestamped_dir(parent: Path) -> Path:
    """A new, empty folder named by the time; a second one within the same second gets a number."""
    parent.mkdir(parents=True, exist_ok=True)
    return create_first_free((parent / name for name in numbered_names(timestamp())), Path.mkdir)


@contextmanager
def reserve_file(folder: Path, prefix: str, suffix: str) -> Iterator[Path]:
    """The name of a file that is not there yet, and that no other process gets while the block makes it.

    Its name is ``start``, the time, for later ones within the same second a number, and ``suffix`` with its
    dot. What reserves it lies beside it under another name, so that nobody takes it for the file.
    """

    def create_marker(marker: Path) -> None:
        marker.touch(exist_ok=False)
        if marker.with_suffix("").exists():  # made, and no longer reserved
            marker.unlink()
            raise FileExistsError

    folder.mkdir(parents=True, exist_ok=True)
    names = (f"{name}{suffix}.reserved" for name in numbered_names(prefix + timestamp()))
    marker = create_first_free((folder / name for name in names), create_marker)
    try:
        yield marker.with_suffix("")
    finally:
        with suppress(OSError):  # on Windows, somebody may look at it at this moment
            marker.unlink()


def require_new_file(path: Path) -> None:
    """Raise UsageError where a file exists, or the folder that it is to be written to does not."""
    if path.exists():
        raise UsageError(f"{path} is there already", hint="name a new file")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: there is no such folder", hint="make it, or name another")


def create_first_free(paths: Iterator[Path], create: Callable[[Path], None]) -> Path:
    """The first of endlessly many paths that ``make``, which raises FileExistsError where one is taken, made.

    Another process may be making the same at this moment.
    """
    for path in paths:
        with suppress(FileExistsError):
            create(path)
            return path
    raise AssertionError("the paths do not end")


def numbered_names(name: str) -> Iterator[str]:
    """The name, and then with the numbers from 2 on."""
    return (name if n == 1 else f"{name}-{n}" for n in count(1))


def timestamp() -> str:
    """Local time as ``YYYY-mm-ddTHH-MM-SS``: sortable, and legal in a file name on Windows."""
    return datetime.now().strftime("%Y-%m-%dT%H-%M-%S")


class ChildPath:
    """What lies in a folder, as an attribute of the class whose attribute ``of`` is the folder."""

    def __init__(self, name: str, parent: str = "path") -> None:
        self._name, self._parent = name, parent

    def __get__(self, owner: object, kind: type) -> Path:
        return Path(getattr(owner, self._parent), self._name)


@dataclass(frozen=True)
class MmfPaths:
    """The three folders of MMF, resolved as MMF itself resolves them.

    Attributes:
        cache_dir: ``MMF_CACHE_DIR``, else ``mmf`` in PyTorch's own cache folder.
        data_dir: ``MMF_DATA_DIR``, else ``data`` in the cache folder.
        save_dir: ``MMF_SAVE_DIR``, else ``./save``.
    """

    cache_dir: Path
    data_dir: Path
    save_dir: Path

    @classmethod
    def resolve(cls, data_dir: Path | str | None = None, save_dir: Path | str | None = None) -> MmfPaths:
        """The folders in force; an explicit argument wins over the environment."""
        cache = expand_home(os.environ.get("MMF_CACHE_DIR") or Path(torch_home(), "mmf")).absolute()
        data = data_dir or Path(os.environ.get("MMF_DATA_DIR") or cache / "data")
        save = save_dir or Path(os.environ.get("MMF_SAVE_DIR") or "save")
        return cls(cache, expand_home(data).absolute(), expand_home(save).absolute())

    @property
    def dataset(self) -> DatasetPaths:
        """The Hateful Memes dataset inside the data folder."""
        return DatasetPaths.from_data_dir(self.data_dir)

    @property
    def image_cache_dir(self) -> Path | None:
        """Where decoded images are kept; None where ``MMFW_IMAGE_CACHE`` is ``off``."""
        wanted = os.environ.get("MMFW_IMAGE_CACHE") or "on"
        if wanted not in ("on", "off"):
            raise UsageError(f"MMFW_IMAGE_CACHE={wanted}: it can be on or off")
        return self.cache_dir / "mmfw-images" if wanted == "on" else None


def data_dir_arguments(data_dir: Path) -> list[str]:
    """What to type so that a command finds a data folder; nothing where it takes that anyway."""
    return [] if data_dir == MmfPaths.resolve().data_dir else ["--data-dir", str(data_dir)]


@dataclass(frozen=True)
class DatasetPaths:
    """MMF's layout of the Hateful Memes dataset; see :meth:`from_data_dir` for the root."""

    root: Path

    #: Holds ``train.jsonl`` and the other splits.
    annotations = ChildPath("annotations", parent="root")
    #: Holds the folder ``img``, as the ``img`` field of an annotation expects.
    images = ChildPath("images", parent="root")
    #: Holds ``detectron.lmdb``.
    features = ChildPath("features", parent="root")

    @classmethod
    def from_data_dir(cls, data_dir: Path) -> DatasetPaths:
        """In MMF's data folder."""
        return cls(data_dir / "datasets" / "hateful_memes" / "defaults")

    @property
    def data_dir(self) -> Path:
        """MMF's data folder."""
        return self.root.parents[2]

    def annotation_file(self, name: str) -> Path:
        """The annotation file of a split."""
        return self.annotations / f"{name}.jsonl"


def expand_home(path: str | Path) -> Path:
    """A path in which ``~`` is the home folder; what is no user's, as in ``~$memes.zip``, stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib refuses the name of no user


def torch_home() -> Path:
    """Return PyTorch's own cache folder."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(os.environ.get("TORCH_HOME") or Path(user_cache, "torch"))


def mmfw_home() -> Path:
    """Where mmfw keeps what it installs: ``MMFW_HOME``, else inside the Python environment."""
    chosen = os.environ.get("MMFW_HOME")
    return expand_home(chosen).absolute() if chosen else Path(sys.prefix, "share", "mmfw")


def empty_zoo_file() -> Path:
    """A zoo for MMF that names no dataset, so that MMF downloads none."""
    return presets_dir() / "zoo" / "nothing.yaml"


def presets_dir() -> Path:
    """The presets."""
    return _in_wheel_or_checkout("configs")


def constraints_file() -> Path:
    """The versions that mmfw is tested with, for ``pip install -c``."""
    return _in_wheel_or_checkout("constraints.txt")


def _in_wheel_or_checkout(name: str) -> Path:
    """What is inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / name
    return inside if inside.exists() else package.parent / name

"""MMF's zoo: what it downloads, from where, with which hash, and into which folder.

``mmf/configs/zoo/datasets.yaml`` and ``models.yaml`` of the installed MMF, or the files that
``MMF_DATASET_ZOO`` and ``MMF_MODEL_ZOO`` name, read as ``mmf.utils.configuration.get_zoo_config`` and
``mmf.utils.download.download_pretrained_model`` read them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.paths import ChildPath, MmfPaths, is_portable
from mmf_win.upstream.config import parse_yaml
from mmf_win.upstream.versions import follow_text_links

# mmf.utils.download.DownloadableFile
_MMF_DATA_URL = "https://dl.fbaipublicfiles.com/mmf/data/"
#: What MMF writes into ``.built.json``; where it finds another, it downloads everything again. In YAML
#: ``1.0_2020_10_01`` is the number 1.020201001, so that is what MMF reads, writes and compares.
ZooVersion: TypeAlias = str | float

#: MMF's own zoos, as its configuration names them.
DATASET_ZOO_FILE, MODEL_ZOO_FILE = "configs/zoo/datasets.yaml", "configs/zoo/models.yaml"

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ZooEntry:
    """An archive that MMF downloads into its ``folder``, where it unpacks it.

    On disk MMF calls it ``file_name``. The zoo need not say its SHA-256.
    """

    folder: Path
    version: ZooVersion | None
    url: str
    file_name: str
    sha256: str | None = None

    #: MMF's note that the entry was downloaded.
    marker = ChildPath(".built.json", parent="folder")

    @property
    def archive_names(self) -> tuple[str, ...]:
        """What a copy of it may be called: as the server calls it, or as MMF does."""
        on_server = unquote(urlsplit(self.url).path).rpartition("/")[2]
        return tuple(dict.fromkeys(name for name in (on_server, self.file_name) if name))

    @property
    def archive(self) -> Path:
        """Where MMF puts the archive."""
        return self.folder / self.file_name


@dataclass(frozen=True)
class Zoo:
    """MMF's zoo, or the one that the user chose.

    The methods raise a UsageError where the user's is none, and an MmfError where MMF's cannot be read.

    Attributes:
        root: the folder that holds the package ``mmf``.
        places: MMF's folders.
        datasets, models: the two files of it, as ``env`` of a configuration names them; by default those of
            the variables, or else MMF's.
    """

    root: Path
    mmf_paths: MmfPaths
    datasets_file: str = field(default_factory=lambda: os.environ.get("MMF_DATASET_ZOO") or DATASET_ZOO_FILE)
    models_file: str = field(default_factory=lambda: os.environ.get("MMF_MODEL_ZOO") or MODEL_ZOO_FILE)

    def dataset_entry(self, part: str) -> ZooEntry | None:
        """The entry for ``features`` or ``extras`` of Hateful Memes; None where there is none."""
        datasets = _load_zoo_file(self.root, self.datasets_file)
        entry = _select_node(datasets, "hateful_memes.defaults") or _select_node(datasets, "hateful_memes")
        if not isinstance(entry, Mapping) or not isinstance(entry.get("resources"), Mapping):
            return None
        root = self.mmf_paths.dataset.root
        folder = root if part == "extras" else root / part
        return _zoo_entry(f"hateful_memes.{part}", folder, entry.get("version"), entry["resources"].get(part))

    def model_entry(self, key: str) -> ZooEntry | None:
        """The entry for a pretrained model; None where there is none of that name.

        Of a key such as ``visual_bert.pretrained.coco`` that is a group, the ``defaults`` are meant.
        """
        entry, name = _select_node(_load_zoo_file(self.root, self.models_file), key), key
        if isinstance(entry, Mapping) and not {"version", "resources"} <= entry.keys():
            entry, name = entry.get("defaults"), f"{key}.defaults"
        if not isinstance(entry, Mapping):
            return None
        folder = self.mmf_paths.data_dir / "models" / name
        return _zoo_entry(key, folder, entry.get("version"), entry.get("resources"))


def _load_zoo_file(root: Path, zoo: str) -> Any:
    # MMF looks in the working folder first, then in its own.
    of_mmf = follow_text_links(root / "mmf" / zoo)
    path = of_mmf if of_mmf.is_file() and not Path(zoo).is_file() else Path(zoo)
    try:
        return _parse_zoo_file(path, path.stat().st_mtime_ns)
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
    except ValueError as error:
        problem = f"{path}: {error}"
    if zoo in (DATASET_ZOO_FILE, MODEL_ZOO_FILE):
        raise MmfEnvironmentError(problem, hint="run `mmfw setup`")
    raise UsageError(problem, hint="see the variables MMF_DATASET_ZOO and MMF_MODEL_ZOO")


@lru_cache(maxsize=4)  # a listing asks for the same zoos again and again
def _parse_zoo_file(path: Path, mtime_ns: int) -> Any:
    return parse_yaml(path.read_text(encoding="utf-8"))


def _select_node(zoo: Any, key: str) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        node = OmegaConf.select(zoo, key)
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    except OmegaConfBaseException:
        return None


def _zoo_entry(key: str, folder: Path, version: ZooVersion | None, resources: Any) -> ZooEntry | None:
    """The entry; None where it is not one archive, as everything is that Hateful Memes needs."""
    items = [resources] if isinstance(resources, Mapping) else list(resources or [])
    if len(items) != 1 or not items[0].get("compressed", True):
        return None
    url, name = str(items[0].get("url", "")), str(items[0].get("file_name", ""))
    if not is_portable(name):
        raise UsageError(f"MMF's zoo names no usable file for {key}: {name!r}")
    url = re.sub("^mmf://", _MMF_DATA_URL, url)
    sha256 = str(items[0].get("hashcode") or "").lower()
    return ZooEntry(folder, version, url, name, sha256 if _SHA256.fullmatch(sha256) else None)

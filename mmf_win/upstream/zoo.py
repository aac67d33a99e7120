"""MMF's zoo: the archives that MMF downloads, with their URLs, hashes and folders.

The zoo is ``mmf/configs/zoo/datasets.yaml`` and ``models.yaml`` of the installed MMF, or the files named by
``MMF_DATASET_ZOO`` and ``MMF_MODEL_ZOO``. They are read as by ``mmf.utils.configuration.get_zoo_config`` and
``mmf.utils.download.download_pretrained_model``.
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
#: Version that MMF writes to ``.built.json``; if it differs, MMF downloads everything again. YAML reads
#: ``1.0_2020_10_01`` as the number 1.020201001, and so does MMF.
ZooVersion: TypeAlias = str | float

#: Names of MMF's zoo files in its configuration.
DATASET_ZOO_FILE, MODEL_ZOO_FILE = "configs/zoo/datasets.yaml", "configs/zoo/models.yaml"

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ZooEntry:
    """An archive that MMF downloads and unpacks into ``folder``.

    Attributes:
        folder: Folder of the archive and its content.
        version: MMF's version of the entry.
        url: Download URL.
        file_name: Name that MMF gives the archive on disk.
        sha256: SHA-256 of the archive, if the zoo has it.
    """

    folder: Path
    version: ZooVersion | None
    url: str
    file_name: str
    sha256: str | None = None

    #: File in which MMF records that the entry was downloaded.
    marker = ChildPath(".built.json", parent="folder")

    @property
    def archive_names(self) -> tuple[str, ...]:
        """Names that a copy of the archive may have: that on the server and that of MMF."""
        on_server = unquote(urlsplit(self.url).path).rpartition("/")[2]
        return tuple(dict.fromkeys(name for name in (on_server, self.file_name) if name))

    @property
    def archive(self) -> Path:
        """Path to which MMF downloads the archive."""
        return self.folder / self.file_name


@dataclass(frozen=True)
class Zoo:
    """MMF's zoo, or the one selected by the user.

    The methods raise ``UsageError`` if the user's zoo is invalid, and ``MmfEnvironmentError`` if MMF's cannot
    be read.

    Attributes:
        root: Folder of the package ``mmf``.
        mmf_paths: MMF's folders.
        datasets_file: Zoo of datasets, as ``env`` of a configuration names it. The default is the file of the
            environment variable, or else MMF's.
        models_file: Zoo of models, likewise.
    """

    root: Path
    mmf_paths: MmfPaths
    datasets_file: str = field(default_factory=lambda: os.environ.get("MMF_DATASET_ZOO") or DATASET_ZOO_FILE)
    models_file: str = field(default_factory=lambda: os.environ.get("MMF_MODEL_ZOO") or MODEL_ZOO_FILE)

    def dataset_entry(self, part: str) -> ZooEntry | None:
        """Return the entry for ``features`` or ``extras`` of Hateful Memes, or ``None`` if there is none."""
        datasets = _load_zoo_file(self.root, self.datasets_file)
        entry = _select_node(datasets, "hateful_memes.defaults") or _select_node(datasets, "hateful_memes")
        if not isinstance(entry, Mapping) or not isinstance(entry.get("resources"), Mapping):
            return None
        root = self.mmf_paths.dataset.root
        folder = root if part == "extras" else root / part
        return _zoo_entry(f"hateful_memes.{part}", folder, entry.get("version"), entry["resources"].get(part))

    def model_entry(self, key: str) -> ZooEntry | None:
        """Return the entry for a pretrained model, or ``None`` if there is none of that name.

        For a key that is a group, such as ``visual_bert.pretrained.coco``, this is its ``defaults`` entry.
        """
        entry, name = _select_node(_load_zoo_file(self.root, self.models_file), key), key
        if isinstance(entry, Mapping) and not {"version", "resources"} <= entry.keys():
            entry, name = entry.get("defaults"), f"{key}.defaults"
        if not isinstance(entry, Mapping):
            return None
        folder = self.mmf_paths.data_dir / "models" / name
        return _zoo_entry(key, folder, entry.get("version"), entry.get("resources"))


def _load_zoo_file(root: Path, zoo: str) -> Any:
    # MMF looks first in the working directory, then in its own folder.
    mmf_file = follow_text_links(root / "mmf" / zoo)
    path = mmf_file if mmf_file.is_file() and not Path(zoo).is_file() else Path(zoo)
    try:
        return _parse_zoo_file(path, path.stat().st_mtime_ns)
    except OSError as error:
        problem = f"{path}: cannot be read ({error.strerror})"
    except ValueError as error:
        problem = f"{path}: {error}"
    if zoo in (DATASET_ZOO_FILE, MODEL_ZOO_FILE):
        raise MmfEnvironmentError(problem, hint="run `mmfw setup`")
    raise UsageError(problem, hint="check the variables MMF_DATASET_ZOO and MMF_MODEL_ZOO")


@lru_cache(maxsize=4)  # listings read the same zoos repeatedly
def _parse_zoo_file(path: Path, _mtime_ns: int) -> Any:
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
    """Return the entry, or ``None`` if it is not a single archive, as all entries for Hateful Memes are."""
    items = [resources] if isinstance(resources, Mapping) else list(resources or [])
    if len(items) != 1 or not items[0].get("compressed", True):
        return None
    url, name = str(items[0].get("url", "")), str(items[0].get("file_name", ""))
    if not is_portable(name):
        raise UsageError(f"MMF's zoo has an invalid file name for {key}: {name!r}")
    url = re.sub("^mmf://", _MMF_DATA_URL, url)
    sha256 = str(items[0].get("hashcode") or "").lower()
    return ZooEntry(folder, version, url, name, sha256 if _SHA256.fullmatch(sha256) else None)

"""Miniature of MMF's zoo: archives on a local web server, and the YAML files that name them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmf_win.inputs.archive_input import ArchiveInput, RegionFeaturesInput
from mmf_win.inputs.input_files import InputFiles, Mirror, fetch_inputs
from mmf_win.integrity.verify import VerificationResult
from mmf_win.paths import MmfPaths
from mmf_win.upstream.zoo import ZooEntry
from tests.worlds.memes import tar_gz
from tests.worlds.tools import untar
from tests.worlds.web_server import WebServer

LMDB_DATA = bytes(range(256)) * 4096  # placeholder for an LMDB in tests that do not open it
_LMDB_FILE = "detectron.lmdb/data.mdb"
FC7_FILES = {"fc7_w.pkl": b"weights" * 1000, "fc7_b.pkl": b"bias" * 100}


def sha256(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def features_archive(data: bytes = LMDB_DATA) -> bytes:
    """Return an archive like MMF's ``features.tar.gz``."""
    return tar_gz({_LMDB_FILE: data, "detectron.lmdb/lock.mdb": b"lock"})


@dataclass(frozen=True)
class Zoo:
    """Archives on a server and the inputs that they contain."""

    server: WebServer
    mmf_paths: MmfPaths

    @property
    def features(self) -> RegionFeaturesInput:
        """Return the input of region features; the LMDB has placeholder content."""
        folder = self.mmf_paths.dataset.features
        entry = self._entry(folder, "features.tar.gz")
        return RegionFeaturesInput("region features", folder, self.mmf_paths, (_LMDB_FILE,), entry=entry)

    @property
    def fc7(self) -> ArchiveInput:
        """Return the input with the last layer of the detector, which has two files."""
        folder = self.mmf_paths.data_dir / "models" / "detectron.defaults"
        entry = self._entry(folder, "fc7.tar.gz")
        return ArchiveInput("detectron fc7", folder, self.mmf_paths, tuple(FC7_FILES), entry=entry)

    def _entry(self, folder: Path, name: str) -> ZooEntry:
        url = f"{self.server.url}/{name}"
        return ZooEntry(folder, "1.0", url, name, sha256(self.server.files[name]))


def write_zoo_files(folder: Path, server: WebServer, **archives: tuple[str, str]) -> dict[str, str]:
    """Write the two files of MMF's zoo and return the variables that make MMF read them.

    Args:
        folder: Target folder.
        server: Server of the archives.
        archives: ``features`` or ``extras``, or a model's key with ``__`` for its dots → name of the archive
            on the server, name on disk.
    """

    def entry(name: str, file_name: str) -> dict[str, Any]:
        url = f"{server.url}/{name}"
        return {"url": url, "file_name": file_name, "hashcode": sha256(server.files[name])}

    resources = {key: [entry(*archives[key])] for key in ("features", "extras") if key in archives}
    datasets = {"hateful_memes": {"defaults": {"version": "1.0_test", "resources": resources}}}
    models: dict[str, Any] = {}
    for key, names in archives.items():
        if key not in resources:
            *groups, last = key.split("__")
            node = models
            for group in groups:
                node = node.setdefault(group, {})
            node[last] = {"version": "1.0_test", "resources": [entry(*names)]}
    for kind, zoo in (("datasets", datasets), ("models", models)):
        (folder / f"{kind}.yaml").write_text(json.dumps(zoo), encoding="utf-8")
    return {"MMF_DATASET_ZOO": str(folder / "datasets.yaml"), "MMF_MODEL_ZOO": str(folder / "models.yaml")}


def fetch(
    zoo: Zoo, *inputs: InputFiles, source: str | Path | None = None, keep_archives: bool = True
) -> list[VerificationResult]:
    """Fetch the inputs and return the results of their verification."""
    mirror = replace(Mirror.from_source(None if source is None else str(source)), keep_archives=keep_archives)
    return fetch_inputs(inputs, zoo.mmf_paths, mirror)


def lmdb_data_file(zoo: Zoo) -> Path:
    """Return the data file of the LMDB of region features."""
    return zoo.features.files()[0]


def unpack_like_mmf(zoo: Zoo) -> None:
    """Unpack the region features as MMF does, with the archive and MMF's marker in the same folder."""
    folder = zoo.mmf_paths.dataset.features
    folder.mkdir(parents=True)
    (folder / "features.tar.gz").write_bytes(zoo.server.files["features.tar.gz"])
    untar(folder / "features.tar.gz", folder)
    (folder / ".built.json").write_text('{"created_at": "today", "version": "1.0"}', encoding="utf-8")

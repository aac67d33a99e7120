"""A folder with everything that mmfw writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.dataset.region_features import extract_features
from mmf_win.paths import MmfPaths
from mmf_win.runs.folder import Run
from mmf_win.unpacking.extract import extract_verified
from mmf_win.upstream.install import install
from tests.worlds import hostile_archives
from tests.worlds.memes import dataset_files, tar_gz
from tests.worlds.mmf_sources import TREE, github_archive
from tests.worlds.mmf_sources import git_archive as mmf_archive
from tests.worlds.torch_files import write_checkpoint
from tests.worlds.web_server import WebServer


@pytest.fixture
def empty_paths(mmfw_home: Path, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> MmfPaths:
    """Return empty folders of MMF, without an installed MMF."""
    monkeypatch.setenv("MMF_CACHE_DIR", str(user_dir / "cache"))
    monkeypatch.setenv("MMF_SAVE_DIR", str(user_dir / "save"))
    return MmfPaths.resolve()


@pytest.fixture
def world(empty_paths: MmfPaths, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MmfPaths]:
    """Make one of everything that mmfw writes, with old modification times."""
    convert(hostile_archives.write_zip(user_dir / "memes.zip", dataset_files()), empty_paths)
    archive = user_dir / "features.tar.gz"
    archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": bytes(range(256)) * 64}))
    extract_features(archive, empty_paths, version=None)
    weights = user_dir / "visual_bert.tar.gz"
    weights.write_bytes(tar_gz({"model.pth": b"weights " * 1000}))
    extract_verified(weights, empty_paths.data_dir / "models" / "visual_bert")
    run = Run(empty_paths.save_dir / "mmbt_grid" / "2026-01-01T00-00-00")
    write_checkpoint(run.checkpoints / "best.ckpt", 10)
    write_checkpoint(run.checkpoints / "current.ckpt", 20)
    run.request_file.write_text("{}", encoding="utf-8")
    with WebServer.serving(mmf_tar_gz=mmf_archive(TREE)) as server:
        source = github_archive(server.url)
        install(source)
        monkeypatch.setattr("mmf_win.upstream.install.SOURCES", (source,))
        for file in user_dir.rglob("*"):
            os.utime(file, (1_600_000_000, 1_600_000_000))
        yield empty_paths

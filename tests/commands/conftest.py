"""One of everything that mmfw writes."""

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
from tests.worlds import hostile
from tests.worlds.memes import memes, tar_gz
from tests.worlds.mmf_sources import TREE, github
from tests.worlds.mmf_sources import tar_gz as mmf_archive
from tests.worlds.torch_files import checkpoint
from tests.worlds.web import WebServer


@pytest.fixture
def empty(home: Path, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> MmfPaths:
    """Folders of MMF's in which there is nothing, and no MMF."""
    monkeypatch.setenv("MMF_CACHE_DIR", str(user_dir / "cache"))
    monkeypatch.setenv("MMF_SAVE_DIR", str(user_dir / "save"))
    return MmfPaths.resolve()


@pytest.fixture
def world(empty: MmfPaths, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MmfPaths]:
    """One of everything that mmfw writes, long ago."""
    convert(hostile.plain_zip(user_dir / "memes.zip", memes()), empty)
    archive = user_dir / "features.tar.gz"
    archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": bytes(range(256)) * 64}))
    extract_features(archive, empty, version=None)
    weights = user_dir / "visual_bert.tar.gz"
    weights.write_bytes(tar_gz({"model.pth": b"weights " * 1000}))
    extract_verified(weights, empty.data_dir / "models" / "visual_bert")
    run = Run(empty.save_dir / "mmbt_grid" / "2026-01-01T00-00-00")
    checkpoint(run.checkpoints / "best.ckpt", 10)
    checkpoint(run.checkpoints / "current.ckpt", 20)
    run.request_file.write_text("{}", encoding="utf-8")
    with WebServer.serving(mmf_tar_gz=mmf_archive(TREE)) as server:
        source = github(server.url)
        install(source)
        monkeypatch.setattr("mmf_win.upstream.install.SOURCES", (source,))
        for file in user_dir.rglob("*"):
            os.utime(file, (1_600_000_000, 1_600_000_000))
        yield empty

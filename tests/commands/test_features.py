"""``mmfw features extract`` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.paths import Places
from tests.worlds.memes import tar_gz


def test_features_are_put_where_mmf_looks(user_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = user_dir / "features 特征.tar.gz"
    archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": b"x" * 5000}))
    data = user_dir / "data dir"
    for _ in range(2):
        assert main(["features", "extract", str(archive), "--data-dir", str(data)]) == 0
    folder = Places.resolve(data).dataset.features / "detectron.lmdb"
    assert (folder / "data.mdb").read_bytes() == b"x" * 5000
    assert str(folder) in capsys.readouterr().err


def test_a_missing_archive_is_bad_input(user_dir: Path) -> None:
    assert main(["features", "extract", str(user_dir / "no"), "--data-dir", str(user_dir / "data")]) == 3


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "extract", "--help"]) == 0
    assert "mmfw features extract features.tar.gz" in capsys.readouterr().out

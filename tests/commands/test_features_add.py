"""``mmfw features add``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mmf_win.inputs.feature_lmdb import rebuild_features_hint
from mmf_win.paths import MmfPaths
from tests.worlds import feature_files, hostile_archives
from tests.worlds.memes import dataset_files, write_tree
from tests.worlds.tools import MmfwRunner, split_command

pytestmark = pytest.mark.torch


@pytest.fixture
def data(user_dir: Path) -> Path:
    """Make MMF's data folder with a dataset without features."""
    files = dataset_files(top="", extra_files=False).items()
    annotations = {name: content for name, content in files if name.endswith(".jsonl")}
    write_tree(annotations, MmfPaths.resolve(user_dir / "data dir").dataset.annotations)
    return user_dir / "data dir"


def test_features_are_put_where_mmf_looks(user_dir: Path, data: Path, mmfw: MmfwRunner) -> None:
    folder = feature_files.write_pairs(user_dir / "извлечено 特征", [f"{n:05}" for n in range(1, 7)])
    arguments = ("features", "add", folder, "--data-dir", data)
    result = mmfw.json(*arguments)
    lmdb = MmfPaths.resolve(data).dataset.features / "detectron.lmdb"
    assert (result["lmdb"], result["images"]) == (str(lmdb), 6)
    assert result["splits"]["train"] == {"rows": 6, "with_features": 6}
    assert result["splits"]["dev_seen"] == {"rows": 3, "with_features": 0}
    assert "--force" in mmfw(*arguments, code=3)
    mmfw(*arguments, "--force")
    assert [line.split() for line in mmfw.out.splitlines()][1] == ["train", "6", "6"]
    assert f"6 images: {lmdb}" in mmfw.err


def test_features_that_some_models_cannot_use_are_reported(user_dir: Path, data: Path, mmfw: MmfwRunner) -> None:
    folder = user_dir / "npy"
    feature_files.write_pair(folder / "sub", "00001", feature_size=2054)
    feature_files.write_pair(folder / "sub", "00002", feature_size=2054, regions=36)
    (folder / "sub" / "00001_info.npy").unlink()
    mmfw("features", "add", folder, "--data-dir", data)
    for text in ("sub/00001", "10 to 36 regions", "2054", "ViLBERT", "max_features"):
        assert text in mmfw.err


def test_lmdb_can_be_built_at_another_path(user_dir: Path, data: Path, mmfw: MmfwRunner) -> None:
    folder = feature_files.write_pairs(user_dir / "npy", ["1"])
    lmdb = user_dir / "own" / "memes.lmdb"
    arguments = ["features", "add", str(folder), "--data-dir", str(data)]
    mmfw(*arguments, "-o", lmdb)
    assert set(feature_files.read_records(lmdb)) == {"1"}
    assert not MmfPaths.resolve(data).dataset.features.exists()
    assert ".lmdb" in mmfw(*arguments, "--output", user_dir / "own" / "memes", code=2)


def test_invalid_input_is_named(user_dir: Path, data: Path, mmfw: MmfwRunner) -> None:
    folder = feature_files.write_pairs(user_dir / "npy", ["1"])
    folder_options = ["--data-dir", str(data)]
    mmfw("features", "add", user_dir / "no", *folder_options, code=2)
    mmfw("features", "add", data, *folder_options, code=3)
    hostile_archives.truncate_file(folder / "1.npy")
    assert str(folder / "1.npy") in mmfw("features", "add", folder, *folder_options, code=3)


def test_printed_command_rebuilds_a_damaged_lmdb(user_dir: Path, data: Path, mmfw: MmfwRunner) -> None:
    folder = feature_files.write_pairs(user_dir / "npy", ["1", "2"])
    folder_options = ["--data-dir", str(data)]
    save = ["--save-dir", str(user_dir / "save")]
    mmfw("features", "add", folder, *folder_options)
    mmf_paths = MmfPaths.resolve(data)
    lmdb = mmf_paths.dataset.features / "detectron.lmdb"
    hostile_archives.truncate_file(lmdb / "data.mdb")
    mmfw("verify", "visual_bert", *folder_options, *save, code=3)
    hint = rebuild_features_hint(lmdb)
    assert hint in mmfw.err and "mmfw repair" not in mmfw.err
    assert hint in mmfw("repair", "visual_bert", *folder_options, *save, code=3)
    mmfw(*split_command(hint.removeprefix("run ").strip("`"))[1:])
    assert set(feature_files.read_records(lmdb)) == {"1", "2"}


def test_unreadable_manifest_is_replaced_by_following_the_hints(user_dir: Path, data: Path, mmfw: MmfwRunner) -> None:
    folder = feature_files.write_pairs(user_dir / "npy", ["1"])
    features = MmfPaths.resolve(data).dataset.features
    folder_options = ["--data-dir", str(data)]
    mmfw("features", "add", folder, *folder_options)
    archive = shutil.make_archive(str(user_dir / "features"), "gztar", features)
    placeholders = {"ARCHIVE": archive, "FOLDER": str(folder)}
    for subcommand in ("features add", "features extract"):
        (features / "SHA256SUMS").unlink()
        (features / "SHA256SUMS").mkdir()
        assert f"{features / 'SHA256SUMS'}: cannot be read" in mmfw("verify", "features", *folder_options, code=3)
        mmfw("repair", "features", *folder_options, code=3)
        commands = re.findall("`mmfw (.*?)`", mmfw.err)
        [command] = [command for command in commands if command.startswith(subcommand)]
        mmfw(*[placeholders.get(word, word) for word in split_command(command)])
        mmfw("verify", "features", *folder_options)

"""Features and weights with the real MMF: files that MMF accepts, problems that mmfw finds, and repairs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.dataset.annotations import read_annotations
from mmf_win.upstream.install import find_mmf
from tests.endtoend.conftest import Tool, logged_losses, probabilities
from tests.worlds import feature_files, hostile_archives, zoo
from tests.worlds.tiny_mmf import SPLIT_SIZES, build_features
from tests.worlds.tools import split_command
from tests.worlds.web_server import WebServer

# Downloads an entry of a zoo with MMF's own code and the patches of mmfw, as at the start of a run. If a largest size
# is given, the system kills the process when a file would exceed it, as ``kill -9`` does.
_MMF_DOWNLOAD = """\
import json, sys
from pathlib import Path
from mmf_win import compat
root, folder, entry, *largest = sys.argv[1:]
compat.install(Path(root))
from mmf.utils.download import download_resources
if largest:
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python turns the signal into an error
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest[0]),) * 2)
entry = json.loads(entry)
download_resources(entry["resources"], folder, entry["version"])
"""
_UPDATES = ("--updates", "1", "--seed", "1")


@dataclass
class FeatureDownload:
    """World without region features, and a server from which they can be downloaded.

    Attributes:
        tool: The tool with a copy of the world.
        server: Has the archive ``features.tar.gz``.
        data: Content of the LMDB.
        preset: Reads the features, and may download them.
    """

    tool: Tool
    server: WebServer
    data: bytes
    preset: str

    @property
    def features(self) -> Path:
        """Return MMF's folder of region features."""
        return self.tool.world.dataset / "features"

    @property
    def lmdb(self) -> Path:
        """Return the data file of the features' LMDB."""
        return self.features / "detectron.lmdb" / "data.mdb"


@pytest.fixture
def download(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FeatureDownload]:
    """Yield the tiny world without its features, which a server has."""
    tool_copy = tool.with_world_copy("a world without features")
    folder = tool_copy.world.dataset / "features"
    data = (folder / "detectron.lmdb" / "data.mdb").read_bytes()
    archive = tmp_path / "features.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder / "detectron.lmdb", "detectron.lmdb")
    shutil.rmtree(folder)
    with WebServer.serving(features_tar_gz=archive.read_bytes()) as server:
        variables = zoo.write_zoo_files(tmp_path, server, features=("features.tar.gz", "features.tar.gz"))
        variables |= {"MMF_CACHE_DIR": str(tool_copy.world.cache), "HF_HUB_OFFLINE": "1"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield FeatureDownload(tool_copy, server, data, tool_copy.write_preset("visual_bert", offline=False))


def run_mmf_download(download: FeatureDownload, largest: int | None = None) -> int:
    """Download the features with MMF's own downloader, and return the exit code."""
    datasets = json.loads((download.tool.folder / "datasets.yaml").read_text(encoding="utf-8"))
    entry = datasets["hateful_memes"]["defaults"]
    requested = json.dumps({"version": entry["version"], "resources": entry["resources"]["features"]})
    arguments = [str(find_mmf().root), str(download.features), requested, *([] if largest is None else [str(largest)])]
    command = [sys.executable, "-c", _MMF_DOWNLOAD, *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
def test_partial_extraction_that_mmf_accepts_is_found_and_repaired_without_download(download: FeatureDownload) -> None:
    archive = download.server.files["features.tar.gz"]
    partial_size = (len(archive) + len(download.data)) // 2
    assert run_mmf_download(download, largest=partial_size) < 0, "must be killed during the extraction"
    assert download.lmdb.stat().st_size == partial_size
    assert run_mmf_download(download) == 0, "MMF must accept its partial extraction"
    assert (download.features / ".built.json").is_file()
    assert download.lmdb.stat().st_size == partial_size

    download.server.files.clear()  # nothing can be downloaded from here on
    assert download.tool.run_for_exit_code("train", download.preset, *_UPDATES) == 3
    assert "unpacked from features.tar.gz by MMF" in download.tool.errors
    assert "mmfw repair" in download.tool.errors
    assert not download.tool.save_dir.exists(), "no run may exist"

    assert download.tool.run_for_exit_code("repair", download.preset) == 0
    assert download.lmdb.read_bytes() == download.data
    assert download.tool("train", download.preset, *_UPDATES)["state"] == "done"


def test_rows_without_features_are_excluded_only_with_allow_missing(download: FeatureDownload) -> None:
    rows = {
        split: read_annotations(download.tool.world.dataset / "annotations" / f"{split}.jsonl") for split in SPLIT_SIZES
    }
    removed_rows = [rows["train"][1], rows["train"][2], rows["test_unseen"][0]]
    stems = {Path(row.img).stem for split_rows in rows.values() for row in split_rows}
    build_features(download.lmdb.parent, sorted(stems - {Path(row.img).stem for row in removed_rows}))

    assert download.tool.run_for_exit_code("train", download.preset, *_UPDATES) == 3
    assert f"train 2 of {SPLIT_SIZES['train']} ({removed_rows[0].img}, {removed_rows[1].img})" in download.tool.errors
    assert "--allow-missing" in download.tool.errors
    result = download.tool("train", download.preset, *_UPDATES, "--allow-missing")
    assert result["state"] == "done"
    used_annotations = download.tool.get_run(result).path / "attempts" / "1" / "annotations" / "train.jsonl"
    assert len(read_annotations(used_annotations)) == SPLIT_SIZES["train"] - 2
    assert download.tool.run_for_exit_code("predict") == 3
    assert f"test_unseen 1 of {SPLIT_SIZES['test_unseen']} ({removed_rows[2].img})" in download.tool.errors
    assert "a prediction needs every row" in download.tool.errors


def test_mmf_downloads_nothing_after_features_and_overridden_weights_are_fetched(
    download: FeatureDownload, tmp_path: Path
) -> None:
    assert download.tool.run_for_exit_code("train", download.preset, *_UPDATES) == 3
    assert f"missing: {download.lmdb}" in download.tool.errors and "mmfw features fetch" in download.tool.errors
    assert download.tool.run_for_exit_code("features", "fetch", download.preset) == 0
    assert download.lmdb.read_bytes() == download.data
    download.server.requests.clear()
    assert run_mmf_download(download) == 0
    first_run = download.tool.train(download.preset, *_UPDATES)
    assert download.server.requests == []

    archive = tmp_path / "weights.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(next(first_run.checkpoints.glob("*_final.pth")), "model.pth")
        tar.add(first_run.checkpoints / "config.yaml", "config.yaml")
    download.server.files["weights.tar.gz"] = archive.read_bytes()
    zoo.write_zoo_files(
        tmp_path,
        download.server,
        features=("features.tar.gz", "features.tar.gz"),
        visual_bert__pretrained__own=("weights.tar.gz", "weights.tar.gz"),
    )
    override = "checkpoint.resume_zoo=visual_bert.pretrained.own"
    assert download.tool.run_for_exit_code("train", download.preset, *_UPDATES, override) == 3
    assert "weights visual_bert.pretrained.own: missing" in download.tool.errors
    [hint] = re.findall("^hint: run `mmfw (features fetch .*)`$", download.tool.errors, re.MULTILINE)
    assert main(split_command(hint)) == 0
    folder = download.tool.world.data / "models" / "visual_bert.pretrained.own"
    assert (folder / "model.pth").is_file()
    download.tool.read_output()  # discard the output of the command
    second_run = download.tool.train(download.preset, *_UPDATES, override, "--name", "second")
    assert "Checkpoint loaded" in second_run.log.read_text(encoding="utf-8")

    assert download.tool.run_for_exit_code("features", "status", download.preset, override) == 0
    assert "weights visual_bert.pretrained.own" in download.tool.output
    hostile_archives.truncate_file(folder / "model.pth")
    assert download.tool.run_for_exit_code("verify", download.preset, override) == 3
    [hint] = re.findall("^hint: run `mmfw (repair .*)`$", download.tool.errors, re.MULTILINE)
    assert main(split_command(hint)) == 0
    assert download.tool.run_for_exit_code("verify", download.preset, override) == 0

    assert download.tool.run_for_exit_code("train", "--resume", "last", "--updates", "2", override) == 2
    assert "checkpoint.resume_zoo" in download.tool.errors
    assert download.tool("train", "--resume", "last", "--updates", "2")["updates"] == 2


@pytest.mark.wide
@pytest.mark.parametrize("recipe", ["visual_bert", "vilbert"])
def test_added_features_give_the_same_results_as_their_lmdb_and_their_files(
    recipe: str, tool: Tool, tmp_path: Path
) -> None:
    tool_copy = tool.with_world_copy("без features 特征")
    features = tool_copy.world.dataset / "features"
    folder = feature_files.export_lmdb_pairs(features / "detectron.lmdb", tmp_path / "извлечено")
    shutil.rmtree(features)
    assert tool_copy.run_for_exit_code("train", tool_copy.write_preset(recipe), "--updates", "2") == 3
    assert main(["features", "add", str(folder), "--data-dir", str(tool_copy.world.data)]) == 0
    tool.read_output()  # discard the output of the command
    expected = _train_and_predict(tool, recipe)
    assert _train_and_predict(tool_copy, recipe) == expected

    overrides = [f"dataset_config.hateful_memes.features.{slot}[0]={folder}" for slot in ("train", "val", "test")]
    assert _train_and_predict(tool, recipe, *overrides) == expected
    shutil.rmtree(folder)
    assert tool.run_for_exit_code("train", tool.write_preset(recipe), "--updates", "2", *overrides) == 3
    assert str(folder) in tool.errors


def _train_and_predict(tool: Tool, recipe: str, *overrides: str) -> tuple[list[float], list[float]]:
    """Train a run with a tiny recipe, and return its losses and its predictions."""
    run = tool.train(tool.write_preset(recipe), "--updates", "3", "--seed", "1", *overrides)
    assert len(logged_losses(run)) == 3
    return logged_losses(run), probabilities(tool("predict", "--no-report"))

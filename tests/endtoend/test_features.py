"""Features and weights around the real MMF: what MMF accepts, what mmfw finds before a run, and repairs."""

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

# MMF's own downloader, with nothing of mmfw's in its way but the patches: it gets an entry of a zoo as when a
# run starts. With a largest size, the system kills it where a file would get longer, as ``kill -9`` does.
_MMF_DOWNLOAD = """\
import json, sys
from pathlib import Path
from mmf_win import compat
root, folder, entry, *largest = sys.argv[1:]
compat.install(Path(root))
from mmf.utils.download import download_resources
if largest:
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python has made an error of it
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest[0]),) * 2)
entry = json.loads(entry)
download_resources(entry["resources"], folder, entry["version"])
"""
_UPDATES = ("--updates", "1", "--seed", "1")


@dataclass
class Shop:
    """A world without region features, and the zoo to get them from."""

    tool: Tool
    server: WebServer  # has the archive ``features.tar.gz``
    data: bytes  # of the LMDB
    preset: str  # reads the features, and downloads where it may

    @property
    def features(self) -> Path:
        """MMF's folder of region features."""
        return self.tool.world.dataset / "features"

    @property
    def lmdb(self) -> Path:
        """The file that holds them."""
        return self.features / "detectron.lmdb" / "data.mdb"


@pytest.fixture
def shop(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The tiny world, whose features are still on the server."""
    own = tool.with_world_copy("a world without features")
    folder = own.world.dataset / "features"
    data = (folder / "detectron.lmdb" / "data.mdb").read_bytes()
    archive = tmp_path / "features.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(folder / "detectron.lmdb", "detectron.lmdb")
    shutil.rmtree(folder)
    with WebServer.serving(features_tar_gz=archive.read_bytes()) as server:
        variables = zoo.write_zoo_files(tmp_path, server, features=("features.tar.gz", "features.tar.gz"))
        variables |= {"MMF_CACHE_DIR": str(own.world.cache), "HF_HUB_OFFLINE": "1"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield Shop(own, server, data, own.preset("visual_bert", offline=False))


def mmf_alone(shop: Shop, largest: int | None = None) -> int:
    """Have MMF's own downloader get the features; the exit code."""
    entry = json.loads((shop.tool.folder / "datasets.yaml").read_text(encoding="utf-8"))
    listed = entry["hateful_memes"]["defaults"]
    wanted = json.dumps({"version": listed["version"], "resources": listed["resources"]["features"]})
    words = [str(find_mmf().root), str(shop.features), wanted, *([] if largest is None else [str(largest)])]
    command = [sys.executable, "-c", _MMF_DOWNLOAD, *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on a file's length to die at")
def test_mmf_believes_its_own_half_extraction_and_mmfw_finds_and_mends_it_without_a_download(shop: Shop) -> None:
    archive = shop.server.files["features.tar.gz"]
    half = (len(archive) + len(shop.data)) // 2
    assert mmf_alone(shop, largest=half) < 0, "it was not killed in the extraction"
    assert shop.lmdb.stat().st_size == half
    assert mmf_alone(shop) == 0, "it does not believe its own half extraction any more"
    assert (shop.features / ".built.json").is_file()
    assert shop.lmdb.stat().st_size == half

    shop.server.files.clear()  # from here on, nothing can be downloaded
    assert shop.tool.run_for_exit_code("train", shop.preset, *_UPDATES) == 3
    assert "unpacked from features.tar.gz by MMF" in shop.tool.errors
    assert "mmfw repair" in shop.tool.errors
    assert not shop.tool.save_dir.exists(), "there is a run"

    assert shop.tool.run_for_exit_code("repair", shop.preset) == 0
    assert shop.lmdb.read_bytes() == shop.data
    assert shop.tool("train", shop.preset, *_UPDATES)["state"] == "done"


def test_rows_without_features_are_left_out_only_when_that_is_allowed(shop: Shop) -> None:
    rows = {
        split: read_annotations(shop.tool.world.dataset / "annotations" / f"{split}.jsonl") for split in SPLIT_SIZES
    }
    gone = [rows["train"][1], rows["train"][2], rows["test_unseen"][0]]
    known = {Path(row.img).stem for of_split in rows.values() for row in of_split}
    build_features(shop.lmdb.parent, sorted(known - {Path(row.img).stem for row in gone}))

    assert shop.tool.run_for_exit_code("train", shop.preset, *_UPDATES) == 3
    assert f"train 2 of {SPLIT_SIZES['train']} ({gone[0].img}, {gone[1].img})" in shop.tool.errors
    assert "--allow-missing" in shop.tool.errors
    result = shop.tool("train", shop.preset, *_UPDATES, "--allow-missing")
    assert result["state"] == "done"
    own = shop.tool.get_run(result).path / "attempts" / "1" / "annotations" / "train.jsonl"
    assert len(read_annotations(own)) == SPLIT_SIZES["train"] - 2
    assert shop.tool.run_for_exit_code("predict") == 3
    assert f"test_unseen 1 of {SPLIT_SIZES['test_unseen']} ({gone[2].img})" in shop.tool.errors
    assert "a prediction needs every row" in shop.tool.errors


def test_mmf_downloads_nothing_after_mmfw_has_fetched_also_the_weights_that_a_word_names(
    shop: Shop, tmp_path: Path
) -> None:
    assert shop.tool.run_for_exit_code("train", shop.preset, *_UPDATES) == 3
    assert f"missing: {shop.lmdb}" in shop.tool.errors and "mmfw features fetch" in shop.tool.errors
    assert shop.tool.run_for_exit_code("features", "fetch", shop.preset) == 0
    assert shop.lmdb.read_bytes() == shop.data
    shop.server.requests.clear()
    assert mmf_alone(shop) == 0
    first = shop.tool.train(shop.preset, *_UPDATES)
    assert shop.server.requests == []

    archive = tmp_path / "weights.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(next(first.checkpoints.glob("*_final.pth")), "model.pth")
        packed.add(first.checkpoints / "config.yaml", "config.yaml")
    shop.server.files["weights.tar.gz"] = archive.read_bytes()
    zoo.write_zoo_files(
        tmp_path,
        shop.server,
        features=("features.tar.gz", "features.tar.gz"),
        visual_bert__pretrained__own=("weights.tar.gz", "weights.tar.gz"),
    )
    word = "checkpoint.resume_zoo=visual_bert.pretrained.own"
    assert shop.tool.run_for_exit_code("train", shop.preset, *_UPDATES, word) == 3
    assert "weights visual_bert.pretrained.own: missing" in shop.tool.errors
    [hint] = re.findall("^hint: run `mmfw (features fetch .*)`$", shop.tool.errors, re.MULTILINE)
    assert main(split_command(hint)) == 0
    folder = shop.tool.world.data / "models" / "visual_bert.pretrained.own"
    assert (folder / "model.pth").is_file()
    shop.tool.read_output()  # what the command printed
    second = shop.tool.train(shop.preset, *_UPDATES, word, "--name", "second")
    assert "Checkpoint loaded" in second.log.read_text(encoding="utf-8")

    assert shop.tool.run_for_exit_code("features", "status", shop.preset, word) == 0
    assert "weights visual_bert.pretrained.own" in shop.tool.output
    hostile_archives.truncate_file(folder / "model.pth")
    assert shop.tool.run_for_exit_code("verify", shop.preset, word) == 3
    [hint] = re.findall("^hint: run `mmfw (repair .*)`$", shop.tool.errors, re.MULTILINE)
    assert main(split_command(hint)) == 0
    assert shop.tool.run_for_exit_code("verify", shop.preset, word) == 0

    assert shop.tool.run_for_exit_code("train", "--resume", "last", "--updates", "2", word) == 2
    assert "checkpoint.resume_zoo" in shop.tool.errors
    assert shop.tool("train", "--resume", "last", "--updates", "2")["updates"] == 2


@pytest.mark.wide
@pytest.mark.parametrize("recipe", ["visual_bert", "vilbert"])
def test_on_added_features_it_trains_and_predicts_as_on_the_lmdb_that_the_files_came_from_and_as_on_the_files(
    recipe: str, tool: Tool, tmp_path: Path
) -> None:
    own = tool.with_world_copy("без features 特征")
    features = own.world.dataset / "features"
    folder = feature_files.export_lmdb_pairs(features / "detectron.lmdb", tmp_path / "извлечено")
    shutil.rmtree(features)
    assert own.run_for_exit_code("train", own.preset(recipe), "--updates", "2") == 3
    assert main(["features", "add", str(folder), "--data-dir", str(own.world.data)]) == 0
    tool.read_output()  # what it has printed
    on_lmdb = _trained(tool, recipe)
    assert _trained(own, recipe) == on_lmdb

    words = [f"dataset_config.hateful_memes.features.{slot}[0]={folder}" for slot in ("train", "val", "test")]
    assert _trained(tool, recipe, *words) == on_lmdb
    shutil.rmtree(folder)
    assert tool.run_for_exit_code("train", tool.preset(recipe), "--updates", "2", *words) == 3
    assert str(folder) in tool.errors


def _trained(tool: Tool, recipe: str, *words: str) -> tuple[list[float], list[float]]:
    """The losses of a training, and its predictions."""
    run = tool.train(tool.preset(recipe), "--updates", "3", "--seed", "1", *words)
    assert len(logged_losses(run)) == 3
    return logged_losses(run), probabilities(tool("predict", "--no-report"))

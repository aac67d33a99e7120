"""``mmfw features``."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mmf_win.console import format_command
from mmf_win.paths import MmfPaths
from mmf_win.runs.folder import Run
from tests.worlds import feature_files, hostile_archives, zoo
from tests.worlds.memes import RUN_SPLITS, tar_gz, write_tree
from tests.worlds.run_requests import make_run_request
from tests.worlds.tools import MmfwRunner, split_command
from tests.worlds.web_server import WebServer


def test_features_are_put_where_mmf_looks(user_dir: Path, mmfw: MmfwRunner) -> None:
    archive = user_dir / "features 特征.tar.gz"
    archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": b"x" * 5000}))
    data = user_dir / "data dir"
    for _ in range(2):
        mmfw("features", "extract", archive, "--data-dir", data)
    folder = MmfPaths.resolve(data).dataset.features / "detectron.lmdb"
    assert (folder / "data.mdb").read_bytes() == b"x" * 5000
    assert str(folder) in mmfw.err


def test_preset_that_needs_no_files(user_dir: Path, mmfw: MmfwRunner) -> None:
    preset = user_dir / "mine.yaml"
    preset.write_text(
        "model: mine\nconfig: projects/others/unimodal/configs/hateful_memes/image.yaml\nsettings: "
        "{dataset_config: {hateful_memes: {processors: {text_processor: {type: simple_sentence}}}}}\n",
        encoding="utf-8",
    )
    for command in ("status", "fetch"):
        mmfw("features", command, preset, "--data-dir", user_dir / "data", "--save-dir", user_dir / "save")
        assert mmfw.err == "no region features or pretrained weights are needed\n"


PRESET = """
model: mmbt
config: projects/mmbt/configs/hateful_memes/with_features.yaml
settings:
  model_config:
    mmbt: {{bert_model_name: '{bert}', text_encoder: {{params: {{bert_model_name: '{bert}'}}}}}}
  dataset_config:
    hateful_memes: {{processors: {{text_processor: {{params: {{tokenizer_config: {{type: '{bert}'}}}}}}}}}}
"""


@dataclass
class Shop:
    """Preset that reads region features and fc7, MMF's folders, and a server that has both files."""

    server: WebServer
    places: MmfPaths
    preset: Path
    mmfw: MmfwRunner

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run ``mmfw verify``, ``mmfw repair`` or a command of ``mmfw features``."""
        where = ("--data-dir", self.places.data_dir, "--save-dir", self.places.save_dir)
        command = [] if words[0] in ("verify", "repair") else ["features"]
        return self.mmfw(*command, *words, self.preset, *where, code=code)

    def states(self, command: str) -> dict[str, str]:
        """Return the states of the features, fc7 and the BERT."""
        results = json.loads(self(command, "--json"))
        return {kind: of["state"] for kind, of in zip(("features", "fc7", "bert"), results, strict=True)}


@pytest.fixture
def shop(user_dir: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner) -> Iterator[Shop]:
    """Make a folder that contains only a BERT, and a zoo."""
    names = ("config.json", "vocab.txt", "model.safetensors")
    bert = write_tree(dict.fromkeys(names, b"content"), user_dir / "my bert")
    preset = user_dir / "mine.yaml"
    preset.write_text(PRESET.format(bert=bert), encoding="utf-8")
    archives = {"features_tar_gz": zoo.features_archive(), "fc7_tar_gz": tar_gz(dict(zoo.FC7_FILES))}
    with WebServer.serving(**archives) as server:
        features, fc7 = ("features.tar.gz", "features.tar.gz"), ("fc7.tar.gz", "vmb_weights.tar.gz")
        variables = zoo.write_zoo_files(user_dir, server, features=features, detectron__defaults=fc7)
        for name, value in {"MMF_CACHE_DIR": str(user_dir / "cache"), **variables}.items():
            monkeypatch.setenv(name, value)
        yield Shop(server, MmfPaths.resolve(user_dir / "data dir", user_dir / "save"), preset, mmfw)


@pytest.mark.torch
def test_files_unpacked_by_mmf_are_repaired_without_a_preset_name(shop: Shop, mmfw: MmfwRunner) -> None:
    zoo.unpack_like_mmf(zoo.Zoo(shop.server, shop.places))
    where = ("features", "--data-dir", str(shop.places.data_dir))
    assert "unpacked from features.tar.gz by MMF" in mmfw("verify", *where, code=3)
    mmfw("repair", *where)
    assert mmfw.json("verify", *where)[0]["against"] == "the published archive features.tar.gz"


@pytest.mark.torch
def test_status_shows_folders_and_download_sizes(shop: Shop, mmfw: MmfwRunner) -> None:
    features, fc7, bert = json.loads(shop("status", "--json"))
    archive = shop.server.files["features.tar.gz"]
    assert features == {
        "what": "region features",
        "presets": [str(shop.preset)],
        "state": "missing",
        "folder": str(shop.places.dataset.features),
        "files": [str(shop.places.dataset.features / "detectron.lmdb" / "data.mdb")],
        "bytes": 0,
        "part": "features",
        "verified": None,
        "against": None,
        "repaired": [],
        "error": None,
        "hint": None,
        "problems": [f"missing: {shop.places.dataset.features / 'detectron.lmdb' / 'data.mdb'}"],
        "source": f"{shop.server.url}/features.tar.gz",
        "sha256": zoo.sha256(archive),
        "download_bytes": len(archive),
    }
    assert (fc7["state"], bert["state"]) == ("missing", "not verified")
    assert shop.server.content_requests == []
    assert "detectron fc7" in shop("status")
    assert "to download" in mmfw.err
    next_step = format_command("mmfw", "features", "fetch", shop.preset, "--data-dir", shop.places.data_dir)
    assert f"next: {next_step}\n" in mmfw.err


@pytest.mark.torch
def test_unpublished_features_must_be_provided_by_the_user(shop: Shop, user_dir: Path, mmfw: MmfwRunner) -> None:
    shop.preset.write_text(shop.preset.read_text(encoding="utf-8") + "offline: true\n", encoding="utf-8")
    shop("status")
    bring, fetch = [line for line in mmfw.err.splitlines() if line.startswith("next: ")]
    assert "--force" not in bring and "mmfw features fetch" in fetch, "fc7 is available from the zoo"
    assert bring.removeprefix("next: ") in mmfw(*split_command(fetch)[2:], code=3)
    shop("status")
    assert "fetch" not in mmfw.err
    archive = user_dir / "own.tar.gz"
    archive.write_bytes(zoo.features_archive())
    given = {"ARCHIVE": str(archive), "FOLDER": str(feature_files.write_pairs(user_dir / "npy", ["1"]))}
    for command in re.findall("`mmfw (.*?)`", bring):
        mmfw(*[given.get(word, word) for word in split_command(command)])
        assert shop.states("status")["features"] != "missing"
        shutil.rmtree(shop.places.dataset.features)


@pytest.mark.torch
def test_fetch_verify_and_repair_make_everything_intact(shop: Shop, mmfw: MmfwRunner) -> None:
    assert shop.states("fetch") == {"features": "intact", "fc7": "intact", "bert": "recorded"}
    assert "the published archive features.tar.gz" in shop("verify")
    hostile_archives.truncate_file(shop.places.dataset.features / "detectron.lmdb" / "data.mdb")
    shop("verify", code=3)
    assert " damaged " in mmfw.out
    assert "changed: detectron.lmdb/data.mdb" in mmfw.err
    assert f"mmfw repair {shop.preset}" in mmfw.err.replace("'", "").replace('"', "")
    shop.server.files.clear()
    assert shop.states("repair") == {"features": "intact", "fc7": "intact", "bert": "recorded"}


@pytest.mark.torch
def test_repair_does_not_download_files_that_were_never_there(shop: Shop) -> None:
    shop.places.data_dir.mkdir()
    assert shop.states("repair") == {"features": "missing", "fc7": "missing", "bert": "recorded"}
    assert shop.server.content_requests == []


@pytest.mark.torch
def test_newest_run_with_unknown_overrides_is_named_with_a_hint(shop: Shop, mmfw: MmfwRunner) -> None:
    run = Run.create(shop.places.save_dir, "other")
    data = str(shop.places.data_dir)
    of_run = {"model": "mmbt", "preset": "other", "mmf": "1.0.0rc12", "splits": RUN_SPLITS, "data_dir": data}
    run.save_request(make_run_request(overrides=["training.fp16=True"], **of_run))
    where = ["--data-dir", data, "--save-dir", shop.places.save_dir]
    mmfw("features", "status", *where, code=2)
    assert run.id in mmfw.err and "pass presets" in mmfw.err
    mmfw("features", "status", shop.preset, *where)


@pytest.mark.torch
def test_failed_download_names_the_source(shop: Shop) -> None:
    shop.server.files.clear()
    said = shop("fetch", code=6)
    assert f"{shop.server.url}/features.tar.gz" in said and "hint: " in said


@pytest.mark.torch
def test_unknown_preset_is_a_usage_error(mmfw: MmfwRunner) -> None:
    assert "did you mean mmbt_region?" in mmfw("features", "status", "mmbt_regoin", code=2)

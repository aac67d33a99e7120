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


def test_preset_without_files_needs_no_download(user_dir: Path, mmfw: MmfwRunner) -> None:
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
class FeatureZoo:
    """Preset that reads region features and fc7, MMF's folders, and a server that has both files."""

    server: WebServer
    mmf_paths: MmfPaths
    preset: Path
    mmfw: MmfwRunner

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run ``mmfw verify``, ``mmfw repair`` or a command of ``mmfw features``."""
        folder_options = ("--data-dir", self.mmf_paths.data_dir, "--save-dir", self.mmf_paths.save_dir)
        command = [] if arguments[0] in ("verify", "repair") else ["features"]
        return self.mmfw(*command, *arguments, self.preset, *folder_options, code=code)

    def states(self, command: str) -> dict[str, str]:
        """Return the states of the features, fc7 and the BERT."""
        results = json.loads(self(command, "--json"))
        return {kind: result["state"] for kind, result in zip(("features", "fc7", "bert"), results, strict=True)}


@pytest.fixture
def feature_zoo(user_dir: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner) -> Iterator[FeatureZoo]:
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
        yield FeatureZoo(server, MmfPaths.resolve(user_dir / "data dir", user_dir / "save"), preset, mmfw)


@pytest.mark.torch
def test_files_unpacked_by_mmf_are_repaired_without_a_preset_name(feature_zoo: FeatureZoo, mmfw: MmfwRunner) -> None:
    zoo.unpack_like_mmf(zoo.Zoo(feature_zoo.server, feature_zoo.mmf_paths))
    folder_options = ("features", "--data-dir", str(feature_zoo.mmf_paths.data_dir))
    assert "unpacked from features.tar.gz by MMF" in mmfw("verify", *folder_options, code=3)
    mmfw("repair", *folder_options)
    assert mmfw.json("verify", *folder_options)[0]["against"] == "the published archive features.tar.gz"


@pytest.mark.torch
def test_status_shows_folders_and_download_sizes(feature_zoo: FeatureZoo, mmfw: MmfwRunner) -> None:
    features, fc7, bert = json.loads(feature_zoo("status", "--json"))
    archive = feature_zoo.server.files["features.tar.gz"]
    assert features == {
        "what": "region features",
        "presets": [str(feature_zoo.preset)],
        "state": "missing",
        "folder": str(feature_zoo.mmf_paths.dataset.features),
        "files": [str(feature_zoo.mmf_paths.dataset.features / "detectron.lmdb" / "data.mdb")],
        "bytes": 0,
        "part": "features",
        "verified": None,
        "against": None,
        "repaired": [],
        "error": None,
        "hint": None,
        "problems": [f"missing: {feature_zoo.mmf_paths.dataset.features / 'detectron.lmdb' / 'data.mdb'}"],
        "source": f"{feature_zoo.server.url}/features.tar.gz",
        "sha256": zoo.sha256(archive),
        "download_bytes": len(archive),
    }
    assert (fc7["state"], bert["state"]) == ("missing", "not verified")
    assert feature_zoo.server.content_requests == []
    assert "detectron fc7" in feature_zoo("status")
    assert "to download" in mmfw.err
    next_step = format_command(
        "mmfw", "features", "fetch", feature_zoo.preset, "--data-dir", feature_zoo.mmf_paths.data_dir
    )
    assert f"next: {next_step}\n" in mmfw.err


@pytest.mark.torch
def test_unpublished_features_must_be_provided_by_the_user(
    feature_zoo: FeatureZoo, user_dir: Path, mmfw: MmfwRunner
) -> None:
    feature_zoo.preset.write_text(feature_zoo.preset.read_text(encoding="utf-8") + "offline: true\n", encoding="utf-8")
    feature_zoo("status")
    provide_hint, fetch_hint = [line for line in mmfw.err.splitlines() if line.startswith("next: ")]
    assert "--force" not in provide_hint and "mmfw features fetch" in fetch_hint, "fc7 must be fetched from the zoo"
    assert provide_hint.removeprefix("next: ") in mmfw(*split_command(fetch_hint)[2:], code=3)
    feature_zoo("status")
    assert "fetch" not in mmfw.err
    archive = user_dir / "own.tar.gz"
    archive.write_bytes(zoo.features_archive())
    placeholders = {"ARCHIVE": str(archive), "FOLDER": str(feature_files.write_pairs(user_dir / "npy", ["1"]))}
    for command in re.findall("`mmfw (.*?)`", provide_hint):
        mmfw(*[placeholders.get(word, word) for word in split_command(command)])
        assert feature_zoo.states("status")["features"] != "missing"
        shutil.rmtree(feature_zoo.mmf_paths.dataset.features)


@pytest.mark.torch
def test_fetch_verify_and_repair_make_everything_intact(feature_zoo: FeatureZoo, mmfw: MmfwRunner) -> None:
    assert feature_zoo.states("fetch") == {"features": "intact", "fc7": "intact", "bert": "recorded"}
    assert "the published archive features.tar.gz" in feature_zoo("verify")
    hostile_archives.truncate_file(feature_zoo.mmf_paths.dataset.features / "detectron.lmdb" / "data.mdb")
    feature_zoo("verify", code=3)
    assert " damaged " in mmfw.out
    assert "changed: detectron.lmdb/data.mdb" in mmfw.err
    assert f"mmfw repair {feature_zoo.preset}" in mmfw.err.replace("'", "").replace('"', "")
    feature_zoo.server.files.clear()
    assert feature_zoo.states("repair") == {"features": "intact", "fc7": "intact", "bert": "recorded"}


@pytest.mark.torch
def test_repair_does_not_download_files_that_were_never_there(feature_zoo: FeatureZoo) -> None:
    feature_zoo.mmf_paths.data_dir.mkdir()
    assert feature_zoo.states("repair") == {"features": "missing", "fc7": "missing", "bert": "recorded"}
    assert feature_zoo.server.content_requests == []


@pytest.mark.torch
def test_newest_run_with_unknown_overrides_is_named_with_a_hint(feature_zoo: FeatureZoo, mmfw: MmfwRunner) -> None:
    run = Run.create(feature_zoo.mmf_paths.save_dir, "other")
    data = str(feature_zoo.mmf_paths.data_dir)
    run_request = {
        "model": "mmbt",
        "preset": "other",
        "mmf_version": "1.0.0rc12",
        "splits": RUN_SPLITS,
        "data_dir": data,
    }
    run.save_request(make_run_request(overrides=["training.fp16=True"], **run_request))
    folder_options = ["--data-dir", data, "--save-dir", feature_zoo.mmf_paths.save_dir]
    mmfw("features", "status", *folder_options, code=2)
    assert run.id in mmfw.err and "pass presets" in mmfw.err
    mmfw("features", "status", feature_zoo.preset, *folder_options)


@pytest.mark.torch
def test_failed_download_names_the_source(feature_zoo: FeatureZoo) -> None:
    feature_zoo.server.files.clear()
    message = feature_zoo("fetch", code=6)
    assert f"{feature_zoo.server.url}/features.tar.gz" in message and "hint: " in message


@pytest.mark.torch
def test_unknown_preset_is_a_usage_error(mmfw: MmfwRunner) -> None:
    assert "did you mean mmbt_region?" in mmfw("features", "status", "mmbt_regoin", code=2)

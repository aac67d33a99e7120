"""Inputs of each preset with the real MMF, found without importing it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.inputs.discovery import list_config_inputs, list_dataset_paths
from mmf_win.paths import MmfPaths
from mmf_win.runs import presets
from mmf_win.upstream.config import merge_settings, resolve_config
from mmf_win.upstream.versions import read_version

pytestmark = pytest.mark.torch  # for MMF

NEEDS = {
    "clip_b32": {"CLIP"},
    "clip_l14_336": {"CLIP"},
    "concat_bert": {"ResNet-152", "BERT"},
    "demo": {"region", "BERT"},
    "demo_clip": {"CLIP"},
    "image_grid": {"vocabulary", "ResNet-152"},
    "image_region": {"region", "vocabulary", "detectron"},
    "late_fusion": {"ResNet-152", "BERT"},
    "mmbt_grid": {"ResNet-152", "BERT"},
    "mmbt_region": {"region", "detectron", "BERT"},
    "text_bert": {"BERT"},
    "vilbert": {"region", "BERT"},
    "vilbert_cc": {"region", "weights", "BERT"},
    "visual_bert": {"region", "BERT"},
    "visual_bert_coco": {"region", "weights", "BERT"},
}
# Archives and hashes as published by MMF; each version has different features.
FEATURES = {
    "1.0.0rc10": ("features.tar.gz", "1eb8e5379fcf8f91fda92aa8f5926a536f3788bf07fe0f72ea7efc2d8427f12d"),
    "1.0.0rc12": ("features_2020_10_01.tar.gz", "ed23243d17485f1c960c073d81420187ab62cbaec2bfa6bc3954ae0252216b73"),
}
ARCHIVES = {
    "vocabulary": "1bd88fa36b5c565234cd0bbc20189c85b51a283337bee574db91521be0364739",
    "detectron": "582d85748b2df60e3c6e045b8213c0fd7084054483a3388c55aed5b25bbc3c93",
}
WEIGHTS = {
    "vilbert_cc": "85e6354fcf2583e03def4dff02125e268b3732c152f87cfbd2ad34c0e4f47b53",
    "visual_bert_coco": "b051b49d35923032e26fcd4bfd64688042acabd2a90893ffa90595be8ce05b90",
}


def list_preset_inputs(
    mmf_root: Path, mmf_paths: MmfPaths, name: str, *overrides: str, **settings: Any
) -> dict[str, Any]:
    """Return the inputs of a preset by the first word of their titles."""
    preset = presets.load_preset(name)
    changed_preset = replace(preset, settings=merge_settings(preset.settings, settings))
    config = resolve_config(mmf_root, mmf_paths, changed_preset, overrides)
    return {item.title.split()[0]: item for item in list_config_inputs(mmf_root, mmf_paths, config)}


@pytest.mark.parametrize("name", presets.list_presets())
def test_preset_inputs_match_what_its_model_reads(mmf_root: Path, mmf_paths: MmfPaths, name: str) -> None:
    assert list_preset_inputs(mmf_root, mmf_paths, name).keys() == NEEDS[name]


def test_archives_match_those_published_by_mmf(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    inputs = list_preset_inputs(mmf_root, mmf_paths, "image_region")
    features = inputs["region"].entry
    assert features is not None
    assert (features.archive_names[0], features.sha256) == FEATURES[read_version(mmf_root)]
    assert features.url.startswith("https://dl.fbaipublicfiles.com/mmf/data/")
    for kind, sha256 in ARCHIVES.items():
        entry = inputs[kind].entry
        assert entry is not None
        assert entry.sha256 == sha256
    for name, sha256 in WEIGHTS.items():
        entry = list_preset_inputs(mmf_root, mmf_paths, name)["weights"].entry
        assert entry is not None
        assert entry.sha256 == sha256


def test_files_match_those_opened_by_mmf(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    inputs = list_preset_inputs(mmf_root, mmf_paths, "image_region")
    dataset = mmf_paths.data_dir / "datasets" / "hateful_memes" / "defaults"
    models = mmf_paths.data_dir / "models"
    assert inputs["region"].files() == [dataset / "features" / "detectron.lmdb" / "data.mdb"]
    assert inputs["vocabulary"].files() == [dataset / "extras" / "vocabs" / "vocabulary_100k.txt"]
    assert inputs["detectron"].files() == [models / "detectron.defaults" / f"fc7_{part}.pkl" for part in "wb"]


def test_overrides_change_the_inputs(mmf_root: Path, mmf_paths: MmfPaths, user_dir: Path) -> None:
    bert, weights = user_dir / "my bert", user_dir / "my weights.pth"
    bert.mkdir()
    weights.touch()
    inputs = list_preset_inputs(
        mmf_root,
        mmf_paths,
        "vilbert_cc",
        f"model_config.vilbert.bert_model_name={bert}",
        f"checkpoint.resume_zoo={weights}",
        "dataset_config.hateful_memes.features.train=mine/own.lmdb",
        "dataset_config.hateful_memes.features.val=mine/own.lmdb",
    )
    assert inputs["BERT"].folder == bert
    assert inputs["pretrained"].files() == [weights]
    assert inputs["region"].files() == [mmf_paths.data_dir / "datasets" / "mine" / "own.lmdb" / "data.mdb"]
    assert inputs["region"].entry is None
    # The text processor still reads the vocabulary of another BERT, but not its weights.
    assert inputs["tokenizer"].source == "bert-base-uncased"


def test_required_word_vectors_must_be_provided_by_the_user(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    key = "dataset_config.hateful_memes.processors.text_processor.params.vocab.type"
    glove = list_preset_inputs(mmf_root, mmf_paths, "image_grid", f"{key}=intersected")["GloVe"]
    assert glove.files() == [mmf_paths.cache_dir / "glove.6B.300d.txt"]
    error = glove.unrepairable_error(glove.quick_check())
    assert error is not None
    assert str(glove.files()[0]) in str(error)
    assert error.hint is not None and "to random" in error.hint


def test_checkpoint_to_resume_replaces_pretrained_weights(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    resumed = {"checkpoint": {"resume_file": "current.ckpt", "resume_zoo": None}}
    assert "weights" not in list_preset_inputs(mmf_root, mmf_paths, "visual_bert_coco", **resumed)


def test_unknown_zoo_key_is_reported_with_the_file_of_valid_keys(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    weights = list_preset_inputs(mmf_root, mmf_paths, "visual_bert_coco", "checkpoint.resume_zoo=no.such.key")[
        "weights"
    ]
    error = weights.unrepairable_error(weights.verify())
    assert "weights no.such.key: missing" in str(error)
    assert "no.such.key, which is neither a file nor a key of MMF's zoo (configs/zoo/models.yaml)" in error.hint


def test_many_comma_separated_paths_are_split(tmp_path: Path) -> None:
    names = [f"part_{number}.jsonl" for number in range(100)]
    dataset = {"data_dir": str(tmp_path), "annotations": {"train": ",".join(names)}}
    assert list_dataset_paths(dataset, "annotations", ["train"]) == [tmp_path / name for name in names]

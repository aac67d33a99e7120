"""Rejected overrides and preset settings; test_config_contract.py compares the accepted ones with MMF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mmf_win.console import format_command
from mmf_win.errors import UsageError
from mmf_win.paths import MmfPaths
from mmf_win.runs import presets
from mmf_win.upstream.config import ConfigSpec, compose_config, merge_settings, resolve_config
from mmf_win.upstream.install import find_mmf
from mmf_win.upstream.overrides import RESERVED_KEYS, apply_overrides, require_valid_settings
from mmf_win.upstream.versions import VERSION_SPECIFIC_KEYS, read_version, versions_with_key
from tests.worlds.mmf_configuration import iter_leaves
from tests.worlds.special_names import SPECIAL_NAMES
from tests.worlds.tools import NEWEST_MMF, requires_newest_mmf

pytestmark = pytest.mark.torch  # for MMF

MMBT = ("mmbt", "projects/mmbt/configs/hateful_memes/defaults.yaml")
DATASET = "dataset_config.hateful_memes"


def config_with_overrides(root: Path, mmf_paths: MmfPaths, *overrides: str) -> Any:
    """Return MMF's configuration with overrides."""
    _, config = compose_config(root, mmf_paths, ConfigSpec(*MMBT, offline=True))
    apply_overrides(config, overrides, version=read_version(root))
    return config


def test_existing_path_is_taken_literally(tmp_path: Path) -> None:
    for name in SPECIAL_NAMES:
        path = tmp_path / name
        path.mkdir()
        config = OmegaConf.create({"checkpoint": {"resume_file": None}})
        apply_overrides(config, [f"checkpoint.resume_file={path}"], version="1.0.0rc10")
        assert config.checkpoint.resume_file == str(path)


@requires_newest_mmf
def test_version_specific_keys_match_mmf() -> None:
    keys = {}
    for root in (find_mmf().root, Path(str(NEWEST_MMF))):
        defaults = OmegaConf.to_container(OmegaConf.load(root / "mmf" / "configs" / "defaults.yaml"))
        keys[read_version(root)] = {key for key, value in iter_leaves(defaults) if value != {}}
    assert keys.keys() == VERSION_SPECIFIC_KEYS.keys()
    for version, version_keys in keys.items():
        other_keys = set().union(*(keys[other_version] for other_version in keys if other_version != version))
        for key in version_keys | other_keys:
            only = (key in version_keys) != (key in other_keys)
            assert (version in versions_with_key(key)) == (only and key in version_keys), key


@pytest.mark.parametrize("word", ["training.fp16=True", "training.wandb.enabled=True", "trainer.type=mmf"])
def test_key_of_another_version_names_that_version(mmf_paths: MmfPaths, word: str) -> None:
    with pytest.raises(UsageError, match=r"1\.0\.0rc10 has no key .*; MMF 1\.0\.0rc12 has it") as caught:
        config_with_overrides(find_mmf().root, mmf_paths, word)
    assert caught.value.hint == "run `mmfw setup --mmf github`"


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("batch_size=8", "training.batch_size"),
        ("lr=1e-5", "optimizer.params.lr"),
        ("optimiser.params.lr=1", "optimizer.params.lr"),
    ],
)
def test_misspelt_key_suggests_the_nearest(mmf_root: Path, mmf_paths: MmfPaths, word: str, suggestion: str) -> None:
    with pytest.raises(UsageError) as caught:
        config_with_overrides(mmf_root, mmf_paths, word)
    assert f"did you mean {suggestion}" in str(caught.value.hint)
    with pytest.raises(UsageError) as caught:
        config_with_overrides(mmf_root, mmf_paths, "quite_another=1")
    assert caught.value.hint is None


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("training.early_stop=True", "training.early_stop.enabled"),
        ("training.seed[0]=3", "training.seed=VALUE"),
        (f"{DATASET}.annotations.test.0=x", f"{DATASET}.annotations.test[0]=VALUE"),
        (f"{DATASET}.annotations.test[7]=x", f"{DATASET}.annotations.test[0]"),
        ("training.lr_steps[0]=1", format_command("training.lr_steps=['VALUE']")),
    ],
)
def test_invalid_override_has_a_hint(mmf_root: Path, mmf_paths: MmfPaths, word: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        config_with_overrides(mmf_root, mmf_paths, word)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("training.early_stop.enabled=true", True),
        ("training.clip_gradients=off", False),
        ("training.log_format=null", None),
        ("training.log_format=", None),
        ("training.lr_steps=[1, 2]", [1, 2]),
        (f"{DATASET}.annotations.test=[/x/a.jsonl]", ["/x/a.jsonl"]),
        ("training.experiment_name=a=b", "a=b"),
        ("optimizer.params.lr=1e-5", 1e-5),
        ("optimizer.params.eps=1e-8", 1e-8),
    ],
)
def test_values_are_parsed_as_by_omegaconf(mmf_root: Path, mmf_paths: MmfPaths, word: str, value: object) -> None:
    assert OmegaConf.select(config_with_overrides(mmf_root, mmf_paths, word), word.partition("=")[0]) == value


def test_override_of_a_list_item_is_kept_as_the_full_list(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    overrides = [f"{DATASET}.annotations.test[0]=own.jsonl", "model_config.mmbt.losses[0].type=bce", "training.seed=1"]
    assert resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT), overrides)["typed"] == {
        "dataset_config": {"hateful_memes": {"annotations": {"test": ["own.jsonl"]}}},
        "model_config": {"mmbt": {"losses": [{"type": "bce"}]}},
        "training": {"seed": 1},
    }


def test_keys_of_user_code_are_not_checked(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    word = "model_config.my_own.layers=3"
    with pytest.raises(UsageError):
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT), [word])
    for overrides, settings in (((word, "env.user_dir=mine"), {}), ((word,), {"env": {"user_dir": "mine"}})):
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT, settings), overrides)
    settings_of_code = tree("env.user_dir=mine", "model_config.mmbt2.layers=3", "optimizer.type=mine")
    resolve_config(mmf_root, mmf_paths, ConfigSpec("mmbt2", MMBT[1], settings_of_code))
    with pytest.raises(UsageError):
        overrides = ("training.no_such_key=1", "env.user_dir=mine")
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT), overrides)


@pytest.mark.parametrize("key", ["env.data_dir", "env.cache_dir", "env.save_dir", "env.report_dir", "model"])
def test_reserved_key_in_a_preset_has_the_hint_of_the_override(mmf_root: Path, mmf_paths: MmfPaths, key: str) -> None:
    with pytest.raises(UsageError, match=f"{key} is set by mmfw") as caught:
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT, tree(f"{key}=x")))
    assert caught.value.hint == RESERVED_KEYS[key]


@pytest.mark.parametrize(
    "key",
    [
        "optimizer.params.new",
        "model_config.mmbt.new.below",
        f"{DATASET}.processors.text_processor.params.new",
        "checkpoint.pretrained_state_mapping.new",
        "training.new_group.new",
    ],
)
def test_new_key_is_accepted_in_class_parameters_and_preset_groups(
    mmf_root: Path, mmf_paths: MmfPaths, key: str
) -> None:
    spec = ConfigSpec(*MMBT, {"training": {"new_group": {"new": 1}}})
    config = compose_config(mmf_root, mmf_paths, spec)[1]
    apply_overrides(config, [f"{key}=3"], version=read_version(mmf_root))
    assert OmegaConf.select(config, key) == 3
    resolve_config(mmf_root, mmf_paths, spec, [f"{key}=3"])


def tree(*overrides: str) -> dict[str, Any]:
    """Return preset settings from arguments such as ``training.batch_size=3``."""
    return dict(OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides))))  # type: ignore[arg-type]


INVALID = [
    ("training.batchsize=4", "training.batch_size"),
    ("trainign.batch_size=4", "training.batch_size"),
    ("model_config.mmbt.num_label=2", "model_config.mmbt.num_labels"),
    ("dataset_config.hateful_meme.max_features=5", "dataset_config.hateful_memes.max_features"),
    ("training.batch_size=abc", ""),
    ("training.batch_size=0", "1 or more"),
    ("training.max_updates=1.5", "1 or more"),
    ("training.batch_size=4.0", "training.batch_size=4"),
    ("training.batch_size=null", "expected a number, got None"),
    ("training.num_workers=null", "4"),
    ("training.evaluation_interval=null", "1000"),
    ("training.seed=1.5", "-1 or more"),
    ("training.seed=4294967296", "4294967296 is not a whole number of -1 or more and below 4294967296"),
    ("optimizer.params.betas=[0.9, 1.0]", "betas: 1.0 is not a number of 0 or more and below 1"),
    ("optimizer.params.betas=[-0.1, 0.9]", "betas: -0.1 is not a number of 0 or more and below 1"),
    ("optimizer.params.betas=0.9", "[0.9,0.999]"),
    ("optimizer.params.betas=[0.9]", "expected a list of two numbers"),
    ("optimizer.params.weight_decay=-0.01", "weight_decay: -0.01 is not a number of 0 or more"),
    ("optimizer.params.weight_decay=.nan", "nan is not a number of 0 or more"),
    ("optimizer.params.weight_decay='1'", "'1' is not a number"),
    ("optimizer.params.eps=-1e-8", "0 or more"),
    ("optimizer.params.momentum=-1", "0 or more"),
    ("scheduler.params.num_warmup_steps=-1", "num_warmup_steps: -1 is not a whole number of 0 or more"),
    ("scheduler.params.num_warmup_steps=0.1", "whole number of 0 or more"),
    ("scheduler.params.num_training_steps=0", "1 or more"),
    ("training.warmup_iterations=-5", "warmup_iterations: -5 is not a whole number of 1 or more"),
    ("training.warmup_factor=-0.2", "0 or more"),
    ("training.lr_ratio=-0.1", "0 or more"),
    ("training.early_stop.patience=-1", "patience: -1 is not a whole number of 0 or more"),
    ("training.max_grad_l2_norm=-1", "max_grad_l2_norm: -1 is not a number of 0 or more"),
    ("training.batch_size=.nan", "1 or more"),
    ("training.batch_size=.inf", "1 or more"),
    ("optimizer.params.lr=null", "lr"),
    ("training.evaluation_interval=0", "1 or more"),
    ("training.num_workers=-1", "0 or more"),
    ("training.clip_gradients=5", "true"),
    ("training.early_stop=5", "training.early_stop.enabled"),
    ("training.early_stop=${training.seed}", "training.early_stop.enabled"),
    (f"{DATASET}.annotations.test=5", "[5]"),
    ("optimizer.params.lr=-1", "0 or more"),
    ("optimizer.params.lr=.inf", "0 or more"),
    ("run_type=tset", "test"),
    ("env=5", "env.user_dir"),
    ("datasets=vqa2", "only Hateful Memes"),
    ("model_config.mmbt.losses=cross_entropy", "['cross_entropy']"),
]


@pytest.mark.parametrize(("word", "suggestion"), INVALID, ids=[word for word, _ in INVALID])
def test_invalid_setting_of_a_preset_is_refused_with_a_suggestion(
    mmf_root: Path, mmf_paths: MmfPaths, word: str, suggestion: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT, tree(word)))
    assert suggestion in f"{caught.value} {caught.value.hint}"
    assert word.partition("=")[0].partition(".")[0] in str(caught.value)


def test_invalid_list_item_is_refused(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    betas = "optimizer.params.betas"
    config = config_with_overrides(mmf_root, mmf_paths, f"{betas}=[0.9, 0.98]", f"{betas}[0]=0.5")
    assert list(config.optimizer.params.betas) == [0.5, 0.98]
    with pytest.raises(UsageError, match="2 is not a number of 0 or more and below 1"):
        config_with_overrides(mmf_root, mmf_paths, f"{betas}=[0.9, 0.98]", f"{betas}[0]=2")


def test_ignored_key_does_not_prevent_resuming(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    spec = ConfigSpec(*MMBT, tree("training.batchsize=4"))
    resolve_config(mmf_root, mmf_paths, spec, checked_settings={})
    with pytest.raises(UsageError):
        resolve_config(mmf_root, mmf_paths, spec, ["training.batch_size=0"], checked_settings={})


def test_gradient_limit_can_be_overridden(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    key = "training.max_grad_l2_norm"
    assert config_with_overrides(mmf_root, mmf_paths, f"{key}=0.25").training.max_grad_l2_norm == 0.25
    with pytest.raises(UsageError, match=f"{key}: -1 is not a number of 0 or more"):
        config_with_overrides(mmf_root, mmf_paths, f"{key}=-1")


@pytest.mark.parametrize(
    "word",
    [
        "training.max_grad_l2_norm=0.25",  # MMF reads it, though its defaults lack it
        "optimizer.params.betas=[0.9, 0.98]",
        "optimizer.params.betas=[0, 0.98]",
        "training.max_grad_l2_norm=null",
        "scheduler.params.num_warmup_steps=0",
        "training.early_stop.patience=0",
        "optimizer.type=SGD",
        "training.max_updates=null",
        "checkpoint.pretrained_state_mapping.bert=bert",
        "model_config.mmbt.text_encoder.params.layer_norm_eps=0.1",
        "training.seed=${oc.env:SEED,3}",
        "training.tensorboard=1",
    ],
)
def test_settings_that_mmf_reads_are_accepted(mmf_root: Path, mmf_paths: MmfPaths, word: str) -> None:
    resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT, tree(word)))


@pytest.mark.parametrize("name", [name for name in presets.list_presets() if name != "demo"])
def test_settings_of_mmf_configurations_are_accepted(mmf_root: Path, mmf_paths: MmfPaths, name: str) -> None:
    preset = presets.load_preset(name)
    bare = OmegaConf.to_container(compose_config(mmf_root, mmf_paths, ConfigSpec(preset.model))[0])
    full = OmegaConf.to_container(compose_config(mmf_root, mmf_paths, preset)[1])
    require_valid_settings(bare, full, read_version(mmf_root))


def test_keys_chosen_by_the_user_are_accepted(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    user_settings = {
        "training": {"wandb": {"tags": ["first"]}},
        "checkpoint": {"pretrained_state_mapping": {"model.bert": "model.bert"}},
    }
    for name in ("mmbt_grid", "visual_bert_coco"):
        preset = presets.load_preset(name)
        settings = merge_settings(preset.settings, user_settings)
        resolve_config(mmf_root, mmf_paths, ConfigSpec(preset.model, preset.config, settings))

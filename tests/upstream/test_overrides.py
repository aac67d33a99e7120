"""What is refused of overrides and of the settings of presets; test_config_contract.py compares with MMF."""

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
from tests.worlds.odd_names import ODD_NAMES
from tests.worlds.tools import NEWEST_MMF, requires_newest_mmf

pytestmark = pytest.mark.torch  # for MMF

MMBT = ("mmbt", "projects/mmbt/configs/hateful_memes/defaults.yaml")
DATASET = "dataset_config.hateful_memes"


def assigned(root: Path, places: MmfPaths, *overrides: str) -> Any:
    """Our own configuration with overrides."""
    _, config = compose_config(root, places, ConfigSpec(*MMBT, offline=True))
    apply_overrides(config, overrides, version=read_version(root))
    return config


def test_a_path_that_is_there_is_taken_as_it_is_typed(tmp_path: Path) -> None:
    for name in ODD_NAMES:
        path = tmp_path / name
        path.mkdir()
        config = OmegaConf.create({"checkpoint": {"resume_file": None}})
        apply_overrides(config, [f"checkpoint.resume_file={path}"], version="1.0.0rc10")
        assert config.checkpoint.resume_file == str(path)


@requires_newest_mmf
def test_keys_of_one_version_alone_are_known() -> None:
    keys = {}
    for root in (find_mmf().root, Path(str(NEWEST_MMF))):
        defaults = OmegaConf.to_container(OmegaConf.load(root / "mmf" / "configs" / "defaults.yaml"))
        keys[read_version(root)] = {key for key, value in iter_leaves(defaults) if value != {}}
    assert keys.keys() == VERSION_SPECIFIC_KEYS.keys()
    for version, own in keys.items():
        others = set().union(*(keys[other] for other in keys if other != version))
        for key in own | others:
            only = (key in own) != (key in others)
            assert (version in versions_with_key(key)) == (only and key in own), key


@pytest.mark.parametrize("word", ["training.fp16=True", "training.wandb.enabled=True", "trainer.type=mmf"])
def test_a_key_of_another_version_is_told_so(mmf_paths: MmfPaths, word: str) -> None:
    with pytest.raises(UsageError, match=r"1\.0\.0rc10 has no key .*; 1\.0\.0rc12 has") as caught:
        assigned(find_mmf().root, mmf_paths, word)
    assert caught.value.hint == "run `mmfw setup --mmf github`"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("batch_size=8", "training.batch_size"),
        ("lr=1e-5", "optimizer.params.lr"),
        ("optimiser.params.lr=1", "optimizer.params.lr"),
    ],
)
def test_a_misspelt_key_names_the_nearest(mmf_root: Path, mmf_paths: MmfPaths, word: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        assigned(mmf_root, mmf_paths, word)
    assert f"did you mean {meant}" in str(caught.value.hint)
    with pytest.raises(UsageError) as caught:
        assigned(mmf_root, mmf_paths, "quite_another=1")
    assert caught.value.hint is None


@pytest.mark.parametrize(
    ("word", "hinted"),
    [
        ("training.early_stop=True", "training.early_stop.enabled"),
        ("training.seed[0]=3", "training.seed=VALUE"),
        (f"{DATASET}.annotations.test.0=x", f"{DATASET}.annotations.test[0]=VALUE"),
        (f"{DATASET}.annotations.test[7]=x", f"{DATASET}.annotations.test[0]"),
        ("training.lr_steps[0]=1", format_command("training.lr_steps=['VALUE']")),
    ],
)
def test_the_hint_says_how_it_is_done(mmf_root: Path, mmf_paths: MmfPaths, word: str, hinted: str) -> None:
    with pytest.raises(UsageError) as caught:
        assigned(mmf_root, mmf_paths, word)
    assert hinted in str(caught.value.hint)


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
def test_values_are_read_as_omegaconf_reads_a_list_of_them(
    mmf_root: Path, mmf_paths: MmfPaths, word: str, value: object
) -> None:
    assert OmegaConf.select(assigned(mmf_root, mmf_paths, word), word.partition("=")[0]) == value


def test_an_item_of_a_list_is_kept_as_its_whole_list(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    words = [
        f"{DATASET}.annotations.test[0]=own.jsonl",
        "model_config.mmbt.losses[0].type=bce",
        "training.seed=1",
    ]
    assert resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT), words)["typed"] == {
        "dataset_config": {"hateful_memes": {"annotations": {"test": ["own.jsonl"]}}},
        "model_config": {"mmbt": {"losses": [{"type": "bce"}]}},
        "training": {"seed": 1},
    }


def test_keys_of_the_users_own_code_are_left_to_mmf(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    word = "model_config.my_own.layers=3"
    with pytest.raises(UsageError):
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT), [word])
    for words, settings in (((word, "env.user_dir=mine"), {}), ((word,), {"env": {"user_dir": "mine"}})):
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT, settings), words)
    own = tree("env.user_dir=mine", "model_config.mmbt2.layers=3", "optimizer.type=mine")
    resolve_config(mmf_root, mmf_paths, ConfigSpec("mmbt2", MMBT[1], own))
    with pytest.raises(UsageError):
        words = ("training.no_such_key=1", "env.user_dir=mine")
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT), words)


@pytest.mark.parametrize("key", ["env.data_dir", "env.cache_dir", "env.save_dir", "env.report_dir", "model"])
def test_a_key_that_a_preset_may_not_set_has_the_hint_of_the_override(
    mmf_root: Path, mmf_paths: MmfPaths, key: str
) -> None:
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
def test_a_new_key_is_taken_where_a_class_may_read_it_or_a_preset_has_one(
    mmf_root: Path, mmf_paths: MmfPaths, key: str
) -> None:
    asked = ConfigSpec(*MMBT, {"training": {"new_group": {"new": 1}}})
    config = compose_config(mmf_root, mmf_paths, asked)[1]
    apply_overrides(config, [f"{key}=3"], version=read_version(mmf_root))
    assert OmegaConf.select(config, key) == 3
    resolve_config(mmf_root, mmf_paths, asked, [f"{key}=3"])


def tree(*words: str) -> dict[str, Any]:
    """The settings of a preset, of words such as ``training.batch_size=3``."""
    return dict(OmegaConf.to_container(OmegaConf.from_dotlist(list(words))))  # type: ignore[arg-type]


WRONG = [
    ("training.batchsize=4", "training.batch_size"),
    ("trainign.batch_size=4", "training.batch_size"),
    ("model_config.mmbt.num_label=2", "model_config.mmbt.num_labels"),
    ("dataset_config.hateful_meme.max_features=5", "dataset_config.hateful_memes.max_features"),
    ("training.batch_size=abc", ""),
    ("training.batch_size=0", "1 or more"),
    ("training.max_updates=1.5", "1 or more"),
    ("training.batch_size=4.0", "training.batch_size=4"),
    ("training.batch_size=null", "no number"),
    ("training.num_workers=null", "4"),
    ("training.evaluation_interval=null", "1000"),
    ("training.seed=1.5", "-1 or more"),
    ("training.seed=4294967296", "4294967296 is not a whole number of -1 or more and below 4294967296"),
    ("optimizer.params.betas=[0.9, 1.0]", "betas: 1.0 is not a number of 0 or more and below 1"),
    ("optimizer.params.betas=[-0.1, 0.9]", "betas: -0.1 is not a number of 0 or more and below 1"),
    ("optimizer.params.betas=0.9", "[0.9,0.999]"),
    ("optimizer.params.betas=[0.9]", "not a list of two numbers"),
    ("optimizer.params.weight_decay=-0.01", "weight_decay: -0.01 is not a number of 0 or more"),
    ("optimizer.params.weight_decay=.nan", "nan is not a number of 0 or more"),
    ("optimizer.params.weight_decay='1'", "'1' is no"),
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
    ("datasets=vqa2", "Hateful Memes only"),
    ("model_config.mmbt.losses=cross_entropy", "['cross_entropy']"),
]


@pytest.mark.parametrize(("word", "meant"), WRONG, ids=[word for word, _ in WRONG])
def test_what_a_preset_sets_wrongly_is_refused_with_what_is_meant(
    mmf_root: Path, mmf_paths: MmfPaths, word: str, meant: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT, tree(word)))
    assert meant in f"{caught.value} {caught.value.hint}"
    assert word.partition("=")[0].partition(".")[0] in str(caught.value)


def test_a_number_of_a_list_is_refused_by_itself(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    betas = "optimizer.params.betas"
    config = assigned(mmf_root, mmf_paths, f"{betas}=[0.9, 0.98]", f"{betas}[0]=0.5")
    assert list(config.optimizer.params.betas) == [0.5, 0.98]
    with pytest.raises(UsageError, match="2 is not a number of 0 or more and below 1"):
        assigned(mmf_root, mmf_paths, f"{betas}=[0.9, 0.98]", f"{betas}[0]=2")


def test_a_key_that_mmf_dropped_does_not_keep_a_run_that_trained_from_going_on(
    mmf_root: Path, mmf_paths: MmfPaths
) -> None:
    asked = ConfigSpec(*MMBT, tree("training.batchsize=4"))
    resolve_config(mmf_root, mmf_paths, asked, checked_settings={})
    with pytest.raises(UsageError):
        resolve_config(mmf_root, mmf_paths, asked, ["training.batch_size=0"], checked_settings={})


def test_the_limit_of_gradients_is_taken_from_the_command_line(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    key = "training.max_grad_l2_norm"
    assert assigned(mmf_root, mmf_paths, f"{key}=0.25").training.max_grad_l2_norm == 0.25
    with pytest.raises(UsageError, match=f"{key}: -1 is not a number of 0 or more"):
        assigned(mmf_root, mmf_paths, f"{key}=-1")


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
def test_what_mmf_reads_is_taken(mmf_root: Path, mmf_paths: MmfPaths, word: str) -> None:
    resolve_config(mmf_root, mmf_paths, ConfigSpec(*MMBT, tree(word)))


@pytest.mark.parametrize("name", [name for name in presets.names() if name != "demo"])
def test_nothing_that_mmfs_configurations_set_is_refused(
    mmf_root: Path, mmf_paths: MmfPaths, name: str
) -> None:
    preset = presets.load(name)
    bare = OmegaConf.to_container(compose_config(mmf_root, mmf_paths, ConfigSpec(preset.model))[0])
    whole = OmegaConf.to_container(compose_config(mmf_root, mmf_paths, preset)[1])
    require_valid_settings(bare, whole, read_version(mmf_root))


def test_names_that_are_the_users_to_choose_are_not_refused(mmf_root: Path, mmf_paths: MmfPaths) -> None:
    chosen = {
        "training": {"wandb": {"tags": ["first"]}},
        "checkpoint": {"pretrained_state_mapping": {"model.bert": "model.bert"}},
    }
    for name in ("mmbt_grid", "visual_bert_coco"):
        preset = presets.load(name)
        settings = merge_settings(preset.settings, chosen)
        resolve_config(mmf_root, mmf_paths, ConfigSpec(preset.model, preset.config, settings))

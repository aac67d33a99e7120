"""What MMF would find only after a minute of loading, or drop: wrong keys, names and values are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mmf_win.commands.hints import hint_for
from mmf_win.errors import UsageError
from mmf_win.paths import Places
from mmf_win.runs import presets
from mmf_win.upstream.config import ConfigParts, compose, resolve
from mmf_win.upstream.refused import require_usable
from mmf_win.upstream.versions import read_version
from tests.worlds.mmf_configuration import leaves

pytestmark = pytest.mark.torch  # for MMF

CONFIG = "projects/mmbt/configs/hateful_memes/defaults.yaml"
PROCESSORS = "dataset_config.hateful_memes.processors"


@pytest.fixture
def places(user_dir: Path) -> Places:
    """Empty folders."""
    return Places.resolve(user_dir / "data", user_dir / "save", {"MMF_CACHE_DIR": str(user_dir / "cache")})


def tree(*words: str) -> dict[str, Any]:
    """The settings of a preset, of words such as ``training.batch_size=3``."""
    return dict(OmegaConf.to_container(OmegaConf.from_dotlist(list(words))))  # type: ignore[arg-type]


WRONG = [
    ("training.batchsize=4", "training.batch_size"),
    ("trainign.batch_size=4", "training.batch_size"),
    ("model_config.mmbt.num_label=2", "model_config.mmbt.num_labels"),
    ("model_config.vilbert.num_labels=2", "model_config.mmbt.num_labels"),
    ("dataset_config.hateful_meme.max_features=5", "dataset_config.hateful_memes.max_features"),
    ("training.batch_size=abc", ""),
    ("training.batch_size=0", "1 or more"),
    ("training.max_updates=1.5", "1 or more"),
    ("training.batch_size=4.0", "training.batch_size=4"),
    ("training.batch_size=null", "no number"),
    ("training.num_workers=null", "4"),
    ("training.evaluation_interval=null", "1000"),
    ("training.seed=1.5", "-1 or more"),
    ("optimizer.params.lr=null", "lr"),
    ("training.evaluation_interval=0", "1 or more"),
    ("training.num_workers=-1", "0 or more"),
    ("training.clip_gradients=5", "true"),
    ("training.early_stop=5", "training.early_stop.enabled"),
    ("optimizer.params.lr=-1", "0 or more"),
    ("optimizer.params.lr=.inf", "0 or more"),
    ("optimizer.type=adamww", "adam_w"),
    ("optimizer.type=sgd", "SGD"),
    ("optimizer.type=F821", "SGD"),
    ("optimizer.type=Optimizer", "SGD"),
    ("evaluation.metrics=[auroc]", "did you mean roc_auc"),
    ("model_config.mmbt.losses=[custom]", "cross_entropy"),
    ("scheduler.type=warmup_liner", "warmup_linear"),
    ("evaluation.metrics=[acuracy]", "accuracy"),
    ("model_config.mmbt.losses=[{type: cross_entrop}]", "cross_entropy"),
    (f"{PROCESSORS}.text_processor.type=bert_tokeniser", "bert_tokenizer"),
    ("run_type=tset", "test"),
    ("env=5", "env.user_dir"),
    ("datasets=vqa2", "Hateful Memes only"),
    ("optimizer.name=adam_w", "optimizer.type"),
    ("model_config.mmbt.losses=cross_entropy", "[cross_entropy]"),
]


@pytest.mark.parametrize(("word", "meant"), WRONG, ids=[word for word, _ in WRONG])
def test_what_a_preset_sets_wrongly_is_refused_with_what_is_meant(
    mmf_root: Path, places: Places, word: str, meant: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(mmf_root, places, ConfigParts("mmbt", CONFIG, tree(word)))
    assert meant in f"{caught.value} {hint_for(caught.value)}"
    assert word.partition("=")[0].partition(".")[0] in str(caught.value)


def test_a_key_that_mmf_dropped_does_not_keep_a_run_that_trained_from_going_on(
    mmf_root: Path, places: Places
) -> None:
    asked = ConfigParts("mmbt", CONFIG, tree("training.batchsize=4"))
    resolve(mmf_root, places, asked, trained=True)
    with pytest.raises(UsageError):
        resolve(mmf_root, places, asked, ["training.batch_size=0"], trained=True)


@pytest.mark.parametrize(
    "word", ["training.batch_size=0", "training.batch_size=None", "optimizer.type=adamww", "run_type=tset"]
)
def test_the_same_holds_for_overrides(mmf_root: Path, places: Places, word: str) -> None:
    with pytest.raises(UsageError):
        resolve(mmf_root, places, ConfigParts("mmbt", CONFIG), [word])


def test_a_model_that_mmf_has_not_is_refused_but_for_ones_own(mmf_root: Path, places: Places) -> None:
    with pytest.raises(UsageError, match="mmbtt") as caught:
        resolve(mmf_root, places, ConfigParts("mmbtt", CONFIG))
    assert "mmbt" in str(hint_for(caught.value))
    own = tree("env.user_dir=mine", "model_config.mmbtt.layers=3", "optimizer.type=mine")
    resolve(mmf_root, places, ConfigParts("mmbtt", CONFIG, own))


@pytest.mark.parametrize(
    "word",
    [
        "training.max_grad_l2_norm=0.25",  # MMF reads it, though its defaults lack it
        "optimizer.params.betas=[0.9, 0.98]",
        "optimizer.type=SGD",
        "training.max_updates=null",
        "checkpoint.pretrained_state_mapping.bert=bert",
        "model_config.mmbt.text_encoder.params.layer_norm_eps=0.1",
        "training.seed=${oc.env:SEED,3}",
        "training.tensorboard=1",
    ],
)
def test_what_mmf_reads_is_taken(mmf_root: Path, places: Places, word: str) -> None:
    resolve(mmf_root, places, ConfigParts("mmbt", CONFIG, tree(word)))


@pytest.mark.parametrize("name", [name for name in presets.names() if name != "demo"])
def test_nothing_that_mmfs_configurations_set_is_refused(mmf_root: Path, places: Places, name: str) -> None:
    preset = presets.load(name)
    bare = OmegaConf.to_container(compose(mmf_root, places, ConfigParts(preset.model))[0])
    whole = OmegaConf.to_container(compose(mmf_root, places, preset)[1])
    require_usable(mmf_root, bare, {"model": preset.model, **dict(leaves(whole))}, read_version(mmf_root))


def test_names_that_are_the_users_to_choose_are_not_refused(mmf_root: Path, places: Places) -> None:
    chosen = {
        "training": {"wandb": {"tags": ["first"]}},
        "checkpoint": {"pretrained_state_mapping": {"model.bert": "model.bert"}},
    }
    for name in ("mmbt_grid", "visual_bert_coco"):
        preset = presets.load(name)
        settings = presets.merge(preset.settings, chosen)
        resolve(mmf_root, places, ConfigParts(preset.model, preset.config, settings))

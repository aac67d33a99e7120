"""What is said of overrides that are refused; test_config_contract.py compares what is set with MMF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mmf_win.commands.hints import hint_for
from mmf_win.console import shell_line
from mmf_win.errors import UsageError
from mmf_win.paths import Places
from mmf_win.upstream.config import ConfigParts, compose, resolve
from mmf_win.upstream.install import find_mmf
from mmf_win.upstream.overrides import assign
from mmf_win.upstream.versions import ONLY_IN, read_version, versions_with
from tests.worlds.mmf_configuration import leaves
from tests.worlds.tools import NEWEST_MMF, requires_newest_mmf

pytestmark = pytest.mark.torch  # for MMF

MMBT = ("mmbt", "projects/mmbt/configs/hateful_memes/defaults.yaml")
DATASET = "dataset_config.hateful_memes"


@pytest.fixture
def places(user_dir: Path) -> Places:
    """Empty folders."""
    return Places.resolve(user_dir / "data", user_dir / "save", {"MMF_CACHE_DIR": str(user_dir / "cache")})


def assigned(root: Path, places: Places, *overrides: str) -> Any:
    """Our own configuration with overrides."""
    _, config = compose(root, places, ConfigParts(*MMBT, offline=True))
    assign(config, overrides, version=read_version(root))
    return config


@requires_newest_mmf
def test_keys_of_one_version_alone_are_known() -> None:
    keys = {}
    for root in (find_mmf().root, Path(str(NEWEST_MMF))):
        defaults = OmegaConf.to_container(OmegaConf.load(root / "mmf" / "configs" / "defaults.yaml"))
        keys[read_version(root)] = {key for key, value in leaves(defaults) if value != {}}
    assert keys.keys() == ONLY_IN.keys()
    for version, own in keys.items():
        others = set().union(*(keys[other] for other in keys if other != version))
        for key in own | others:
            only = (key in own) != (key in others)
            assert (version in versions_with(key)) == (only and key in own), key


@pytest.mark.parametrize("word", ["training.fp16=True", "training.wandb.enabled=True", "trainer.type=mmf"])
def test_a_key_of_another_version_is_told_so(places: Places, word: str) -> None:
    with pytest.raises(UsageError, match=r"1\.0\.0rc10 has no key .*; 1\.0\.0rc12 has") as caught:
        assigned(find_mmf().root, places, word)
    assert hint_for(caught.value) == "run `mmfw setup --mmf github`"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("batch_size=8", "training.batch_size"),
        ("lr=1e-5", "optimizer.params.lr"),
        ("training.batchsize=8", "training.batch_size"),
        ("optimiser.params.lr=1", "optimizer.params.lr"),
        ("model_config.mmbt.num_label=2", "model_config.mmbt.num_labels"),
    ],
)
def test_a_misspelt_key_names_the_nearest(mmf_root: Path, places: Places, word: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        assigned(mmf_root, places, word)
    assert f"did you mean {meant}" in str(hint_for(caught.value))
    with pytest.raises(UsageError) as caught:
        assigned(mmf_root, places, "quite_another=1")
    assert hint_for(caught.value) is None


@pytest.mark.parametrize(
    ("word", "hinted"),
    [
        ("training.early_stop=True", "training.early_stop.enabled"),
        ("training.seed[0]=3", "training.seed=VALUE"),
        (f"{DATASET}.annotations.test.0=x", f"{DATASET}.annotations.test[0]=VALUE"),
        (f"{DATASET}.annotations.test[7]=x", f"{DATASET}.annotations.test[0]"),
        ("training.lr_steps[0]=1", shell_line("training.lr_steps=['VALUE']")),
    ],
)
def test_the_hint_says_how_it_is_done(mmf_root: Path, places: Places, word: str, hinted: str) -> None:
    with pytest.raises(UsageError) as caught:
        assigned(mmf_root, places, word)
    assert hinted in str(hint_for(caught.value))


@pytest.mark.parametrize(
    "word",
    ["training.early_stop.enabled=true", "training.clip_gradients=off", "training.log_format=null"],
)
def test_the_value_that_a_hint_names_is_taken(mmf_root: Path, places: Places, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        assigned(mmf_root, places, word)
    config = assigned(mmf_root, places, str(hint_for(caught.value)))
    assert OmegaConf.select(config, word.partition("=")[0]) in (True, False, None)


def test_keys_of_the_users_own_code_are_left_to_mmf(mmf_root: Path, places: Places) -> None:
    word = "model_config.my_own.layers=3"
    with pytest.raises(UsageError):
        resolve(mmf_root, places, ConfigParts(*MMBT), [word])
    for words, settings in (((word, "env.user_dir=mine"), {}), ((word,), {"env": {"user_dir": "mine"}})):
        resolve(mmf_root, places, ConfigParts(*MMBT, settings), words)
    with pytest.raises(UsageError):
        words = ("training.no_such_key=1", "env.user_dir=mine")
        resolve(mmf_root, places, ConfigParts(*MMBT), words)


def test_a_preset_of_the_users_own_adds_the_key_that_the_hint_puts_there(
    mmf_root: Path, places: Places
) -> None:
    word = "optimizer.params.no_such_key=1"
    with pytest.raises(UsageError) as caught:
        assigned(mmf_root, places, word)
    settings = OmegaConf.create(str(hint_for(caught.value)).partition("settings: ")[2].replace("VALUE", "1"))
    _, config = compose(mmf_root, places, ConfigParts(*MMBT, OmegaConf.to_container(settings), offline=True))
    assert config.optimizer.params.no_such_key == 1


def test_a_list_and_one_of_its_items_are_refused_beside_each_other(mmf_root: Path, places: Places) -> None:
    item, whole = f"{DATASET}.annotations.test[0]=a.jsonl", f"{DATASET}.annotations.test=['b.jsonl']"
    for words in ((item, whole), (whole, item)):
        with pytest.raises(UsageError, match="same list"):
            assigned(mmf_root, places, *words)

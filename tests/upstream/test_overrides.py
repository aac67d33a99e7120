"""``KEY=VALUE`` overrides, beside what the real MMF makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mmf_win.commands.hints import hint_for
from mmf_win.console import as_typed
from mmf_win.errors import UsageError
from mmf_win.paths import Places
from mmf_win.runs import presets
from mmf_win.upstream.config import merge, resolve
from mmf_win.upstream.install import find
from mmf_win.upstream.overrides import assign
from mmf_win.upstream.versions import ONLY_IN, read_version, versions_with
from tests.worlds import mmf_words
from tests.worlds.mmf_words import leaves

pytestmark = pytest.mark.torch  # for MMF

_CHECKOUT = os.environ.get("MMFW_TEST_MMF")
_WITHOUT = pytest.mark.skipif(_CHECKOUT is None, reason="MMFW_TEST_MMF names no checkout of MMF 1.0.0rc12")
_ROOT = Path(mmf_words.__file__).parents[2]

MMBT = ("mmbt", "projects/mmbt/configs/hateful_memes/defaults.yaml")
DATASET = "dataset_config.hateful_memes"

# What each sets, as it says.
HONOURED = {
    "training.seed=7": {"training.seed": 7},
    "training.max_epochs=3": {"training.max_epochs": 3},
    "training.experiment_name=a=b": {"training.experiment_name": "a=b"},
    "training.seed=None": {"training.seed": None},
    "training.log_format=": {"training.log_format": ""},
    "training.lr_steps=[1,2]": {"training.lr_steps": [1, 2]},
    "optimizer.params.lr=2e-5": {"optimizer.params.lr": 2e-5},
    "checkpoint.resume_zoo=visual_bert.pretrained.coco": {
        "checkpoint.resume_zoo": "visual_bert.pretrained.coco"
    },
    "checkpoint.reset.optimizer=True": {"checkpoint.reset.optimizer": True},
    "model_config.mmbt.num_labels=3": {"model_config.mmbt.num_labels": 3},
    "distributed.world_size=1": {"distributed.world_size": 1},
    "env.log_dir=logs": {"env.log_dir": "logs"},
    f"{DATASET}.annotations.test[0]=own.jsonl": {f"{DATASET}.annotations.test": ["own.jsonl"]},
    f"{DATASET}.annotations.test=['own.jsonl']": {f"{DATASET}.annotations.test": ["own.jsonl"]},
    f"{DATASET}.annotations.test=own.jsonl": {f"{DATASET}.annotations.test": "own.jsonl"},
    "model_config.mmbt.losses[0].type=bce": {"model_config.mmbt.losses": [{"type": "bce"}]},
    "evaluation.metrics=['accuracy']": {"evaluation.metrics": ["accuracy"]},
}
REFUSED_BY_MMF = [
    "learning_rate=1",
    "seed=1",
    "+training.seed=1",
    " training.seed=1",
    "training..seed=1",
    ".training.seed=1",
    "training.seed.x=1",
    "training.no_such_key=1",
    "optimizer.params.no_such_key=1",
    "model_config.vilbert.num_labels=3",
    "checkpoint.pretrained_state_mapping.a=b",
    "training.lr_steps[0]=1",
    f"{DATASET}.annotations.test[5]=x",
    f"{DATASET}.annotations.test.0=x",
    f"{DATASET}.annotations[test]=x",
    "training.seed={1,2}",
    "training.seed=[1",
    "training.seed=%x",
    "training.seed=${",
]
# MMF takes these, and does nothing, or something else than they say.
REFUSED_BY_US_ALONE = [
    "training=3",
    "training.early_stop=True",
    "training.early_stop={'enabled': True}",
    "optimizer.params={'lr': 3}",
    "checkpoint.pretrained_state_mapping={'a': 'b'}",
    "training[0].seed=1",
    "training.seed[0]=1",
    f"{DATASET}.annotations.test[-1]=x",
    "training.early_stop.enabled=true",
    "training.clip_gradients=off",
    "training.log_format=null",
    "training.num_workers=abc",
    "training.batch_size='8'",
    "optimizer.params.lr=1e",
    f"{DATASET}.annotations.train=[/x/a.jsonl]",
]


@pytest.fixture(scope="module", params=["rc10", pytest.param("rc12", marks=_WITHOUT)])
def root(request: pytest.FixtureRequest) -> Path:
    """The MMF that ``mmfw setup`` installed, or the checkout."""
    return find().root if request.param == "rc10" else Path(str(_CHECKOUT))


@pytest.fixture
def places(user_dir: Path) -> Places:
    """Empty folders."""
    return Places.resolve(user_dir / "data", user_dir / "save", {"MMF_CACHE_DIR": str(user_dir / "cache")})


def ask(root: Path, questions: list[tuple[str, str | None, list[str]]]) -> list[Any]:
    """What the real MMF answers."""
    done = subprocess.run(
        [sys.executable, "-m", mmf_words.__name__, str(root)],
        input=json.dumps(questions),
        cwd=_ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def answers(root: Path) -> dict[str, Any]:
    """Override → what MMF makes of it; an empty one → its configuration without."""
    words = ["", *HONOURED, *REFUSED_BY_MMF, *REFUSED_BY_US_ALONE]
    return dict(zip(words, ask(root, [(*MMBT, [w] if w else []) for w in words]), strict=True))


def assigned(root: Path, places: Places, *words: str) -> Any:
    """Our own configuration with overrides."""
    config = merge(root, places, model=MMBT[0], config=MMBT[1], settings={}, offline=True)
    assign(config, words, version=read_version(root))
    return config


def test_what_mmf_sets_is_set(root: Path, places: Places, answers: dict[str, Any]) -> None:
    before = answers[""]
    for word, wanted in HONOURED.items():
        by_mmf = {key: value for key, value in answers[word].items() if value != before.get(key)}
        assert {key: by_mmf.get(key, before[key]) for key in wanted} == wanted, word
        assert by_mmf.keys() <= {*wanted, "training.wandb.name"}, word  # which is the experiment's name
        ours = assigned(root, places, word)
        for key, value in wanted.items():
            node = OmegaConf.select(ours, key)
            assert (OmegaConf.to_container(node) if OmegaConf.is_config(node) else node) == value, word


def test_what_mmf_refuses_is_refused(root: Path, places: Places, answers: dict[str, Any]) -> None:
    for word in REFUSED_BY_MMF:
        assert isinstance(answers[word], str), word
        with pytest.raises(UsageError) as caught:
            assigned(root, places, word)
        assert hint_for(caught.value), word


def test_what_mmf_would_drop_is_refused(root: Path, places: Places, answers: dict[str, Any]) -> None:
    for word in REFUSED_BY_US_ALONE:
        assert not isinstance(answers[word], str), word
        with pytest.raises(UsageError) as caught:
            assigned(root, places, word)
        assert hint_for(caught.value), word


def test_no_key_that_mmf_has_is_unknown_here(root: Path, places: Places) -> None:
    loaded = [presets.load(name) for name in presets.names()]
    found = ask(root, [(preset.model, preset.config, []) for preset in loaded])
    for preset, by_mmf in zip(loaded, found, strict=True):
        ours = merge(root, places, model=preset.model, config=preset.config, settings={}, offline=True)
        container = OmegaConf.to_container(ours, resolve=False)
        # MMF notes its own options, too.
        assert by_mmf.keys() - {"config", "model", "datasets"} <= dict(leaves(container)).keys(), preset.name


def test_keys_of_one_version_alone_are_known() -> None:
    if _CHECKOUT is None:
        pytest.skip("MMFW_TEST_MMF names no checkout of MMF 1.0.0rc12")
    keys = {}
    for root in (find().root, Path(_CHECKOUT)):
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
        assigned(find().root, places, word)
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
def test_a_misspelt_key_names_the_nearest(root: Path, places: Places, word: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        assigned(root, places, word)
    assert f"did you mean {meant}" in str(hint_for(caught.value))


@pytest.mark.parametrize(
    ("word", "hinted"),
    [
        ("training.early_stop=True", "training.early_stop.enabled"),
        ("training.seed[0]=3", "training.seed=VALUE"),
        (f"{DATASET}.annotations.test.0=x", f"{DATASET}.annotations.test[0]=VALUE"),
        (f"{DATASET}.annotations.test[7]=x", f"{DATASET}.annotations.test[0]"),
        ("training.lr_steps[0]=1", as_typed("training.lr_steps=['VALUE']")),
    ],
)
def test_the_hint_says_how_it_is_done(root: Path, places: Places, word: str, hinted: str) -> None:
    with pytest.raises(UsageError) as caught:
        assigned(root, places, word)
    assert hinted in str(hint_for(caught.value))


@pytest.mark.parametrize(
    "word",
    ["training.early_stop.enabled=true", "training.clip_gradients=off", "training.log_format=null"],
)
def test_the_value_that_a_hint_names_is_taken(root: Path, places: Places, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        assigned(root, places, word)
    config = assigned(root, places, str(hint_for(caught.value)))
    assert OmegaConf.select(config, word.partition("=")[0]) in (True, False, None)


def test_keys_of_the_users_own_code_are_left_to_mmf(root: Path, places: Places) -> None:
    word = "model_config.my_own.layers=3"
    with pytest.raises(UsageError):
        resolve(root, places, model=MMBT[0], config=MMBT[1], settings={}, overrides=[word])
    for words, settings in (((word, "env.user_dir=mine"), {}), ((word,), {"env": {"user_dir": "mine"}})):
        resolve(root, places, model=MMBT[0], config=MMBT[1], settings=settings, overrides=words)
    with pytest.raises(UsageError):
        words = ("training.no_such_key=1", "env.user_dir=mine")
        resolve(root, places, model=MMBT[0], config=MMBT[1], settings={}, overrides=words)


def test_a_preset_of_the_users_own_adds_the_key_that_the_hint_puts_there(root: Path, places: Places) -> None:
    word = "optimizer.params.no_such_key=1"
    with pytest.raises(UsageError) as caught:
        assigned(root, places, word)
    settings = OmegaConf.create(str(hint_for(caught.value)).partition("settings: ")[2].replace("VALUE", "1"))
    config = merge(
        root, places, model=MMBT[0], config=MMBT[1], settings=OmegaConf.to_container(settings), offline=True
    )
    assert config.optimizer.params.no_such_key == 1


def test_a_list_and_one_of_its_items_are_refused_beside_each_other(root: Path, places: Places) -> None:
    item, whole = f"{DATASET}.annotations.test[0]=a.jsonl", f"{DATASET}.annotations.test=['b.jsonl']"
    for words in ((item, whole), (whole, item)):
        with pytest.raises(UsageError, match="same list"):
            assigned(root, places, *words)

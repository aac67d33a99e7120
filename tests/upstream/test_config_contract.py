"""The contract: what mmfw reads of MMF's configuration without importing it is what MMF makes of it.

For every preset and every configuration of Hateful Memes in MMF's tree, with and without overrides, the whole
configuration is compared with that of MMF's own ``Configuration``; then each entry of MMF's zoo.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mmf_win.errors import UsageError
from mmf_win.inputs.discovery import list_dataset_paths
from mmf_win.paths import MmfPaths, empty_zoo_file
from mmf_win.runs import presets
from mmf_win.upstream.config import (
    ConfigSpec,
    compose_config,
    find_model_config,
    load_yaml,
    merge_settings,
    resolve_config,
)
from mmf_win.upstream.default_settings import resume_settings, settings_for_all_splits
from mmf_win.upstream.zoo import DATASET_ZOO_FILE, MODEL_ZOO_FILE, Zoo
from tests.worlds.memes import write_tree
from tests.worlds.mmf_configuration import ConfigQuery, iter_leaves, query_mmf
from tests.worlds.odd_names import ODD_NAMES
from tests.worlds.tools import is_wine, mark_wide

pytestmark = pytest.mark.torch  # for MMF

MMBT = ("mmbt", "projects/mmbt/configs/hateful_memes/defaults.yaml")
DATASET = "dataset_config.hateful_memes"

# What any of the configurations takes.
OVERRIDES = (
    "training.seed=7",
    "training.max_epochs=3",
    "training.max_updates=null",
    "training.experiment_name=a=b",
    "training.log_format=",
    "training.lr_steps=[1,2]",
    "training.early_stop.enabled=true",
    "training.clip_gradients=on",
    "training.clip_norm_mode='x y'",
    "training.device=cpu",
    "optimizer.params.lr=2e-5",
    "checkpoint.resume_zoo=visual_bert.pretrained.coco",
    "checkpoint.resume_file=/a/путь/b.ckpt",
    "checkpoint.reset.optimizer=True",
    "distributed.world_size=1",
    "env.log_dir=logs",
    "env.model_zoo=own.yaml",
    "evaluation.metrics=['accuracy']",
    f"{DATASET}.data_dir=${{env.cache_dir}}",
    f"{DATASET}.annotations.test[0]=own.jsonl",
    f"{DATASET}.annotations.train=[/x/own.jsonl, 'b.jsonl']",
    f"{DATASET}.images.val=own",
)
# What these of MMBT takes beside.
OF_MMBT = (
    "model_config.mmbt.num_labels=3",
    "model_config.mmbt.losses[0].type=bce",
    "model_config.mmbt.bert_model_name=my/bert",
    f"{DATASET}.processors.text_processor.params.max_seq_length=20",
    f"{DATASET}.annotations.val=own.jsonl",
)
# MMF has no such key, or it would do something else than they say.
REFUSED = (
    "learning_rate=1",
    "seed=1",
    "+training.seed=1",
    " training.seed=1",
    "training..seed=1",
    ".training.seed=1",
    "training.seed.x=1",
    "training.no_such_key=1",
    "model_config.vilbert.num_labels=3",
    f"{DATASET}.annotations[test]=x",
    "training.seed={1,2}",
    "training.seed=[1",
    "training.seed=%x",
    "training.seed=${",
    "training=3",
    "training.early_stop={'enabled': True}",
    "optimizer.params={'lr': 3}",
    "checkpoint.pretrained_state_mapping={'a': 'b'}",
    "training[0].seed=1",
    f"{DATASET}.annotations.test[-1]=x",
    f"{DATASET}.annotations.test[0][1]=x",
    "training.max_updates=None",
    "training.lr_steps=[None, 1]",
    "training.num_workers=abc",
    "training.batch_size='8'",
    "run_type=tset",
    "optimizer.params.lr=1e",
)
# Settings of presets of the user's own.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"new": {"key": [1, {"a": None}]}, "a": 1.0, "b": "1e-5", "c": "yes"},
    {"model_config": None},
    {"model_config": {"mmbt": None}},
    {"checkpoint": None},
    {"training": {"batch_size": "${training.max_updates}", "device": "cpu"}},
    {"training": {"callbacks": [{"type": "mine", "params": {}}], "lr_steps": [1]}},
    {"dataset_config": {"hateful_memes": {"annotations": {"train": "x"}, "data_dir": "${env.cache_dir}/x"}}},
    {"env": {"user_dir": None, "dataset_zoo": "own.yaml", "log_dir": "logs"}},
)
# MMF would read other folders than mmfw checked, or would let an old name win over the new one.
REFUSED_SETTINGS: tuple[dict[str, Any], ...] = (
    {"env": {"data_dir": "x"}},
    {"env": {"cache_dir": "x"}},
    {"learning_rate": 0.1},
    {"training": {"resume_file": "x"}},
    {"training": {"run_type": "val"}},
)
# Keys whose values name one that is overridden.
FOLLOWING = {
    "training.wandb.name",
    "model_config.mmbt.text_encoder.params.bert_model_name",
    "scheduler.params.num_training_steps",
}
ENVIRONMENT = {"MMF_REPORT_DIR": "отчёты", "MMF_DATASET_ZOO": str(empty_zoo_file()), "MMF_USER_DIR": ""}
# What MMF notes of its own options, and what it sets by the machine that it runs on.
NOT_COMPARED = {"config", "model", "datasets", "training.device", "distributed.world_size"}


def places_in(folder: Path) -> MmfPaths:
    return MmfPaths(folder / "cache", folder / "data", folder / "save")


def overridden(root: Path, folder: Path, asked: ConfigQuery, overrides: Sequence[str]) -> ConfigQuery:
    """The same with overrides in its settings, as an attempt has them."""
    parts = ConfigSpec(asked.model, asked.config, asked.settings)
    typed = resolve_config(root, places_in(folder), parts, overrides)["typed"]
    return replace(asked, settings=merge_settings(asked.settings, typed))


def questions_of(root: Path, folder: Path, *, of_mmf: bool) -> Iterator[tuple[str, ConfigQuery]]:
    """Yield the name and the question of each preset, and with ``of_mmf`` of each configuration of MMF."""
    loaded = [presets.load(name) for name in presets.names()]
    configurations = {f"preset {p.name}": (p.model, p.config, p.settings) for p in loaded}
    areas = ("projects", "mmf") if of_mmf else ()
    files = [path for area in areas for path in sorted((root / area).rglob("*.yaml"))]
    for path in sorted({path.resolve() for path in files if "hateful_memes" in path.parts}):
        models = list((load_yaml(root, path).get("model_config") or {}).keys())
        configurations[str(path)] = (models[0] if models else "mmbt", str(path), {})
    for name, (model, config, settings) in configurations.items():
        yield name, ConfigQuery(model, config, settings)
        if name.startswith("preset"):
            yield (
                f"{name}, overridden",
                overridden(root, folder, ConfigQuery(model, config, settings), OVERRIDES),
            )
    yield "", ConfigQuery(*MMBT)
    yield "MMBT, overridden", overridden(root, folder, ConfigQuery(*MMBT), (*OVERRIDES, *OF_MMBT))
    for tree in (*SETTINGS, *REFUSED_SETTINGS):
        yield json.dumps(tree), ConfigQuery(*MMBT, tree)
    (folder / "beside.yaml").write_text("training: {seed: 1, max_updates: 3}\n", encoding="utf-8")
    own = folder / "own.yaml"
    includes = f"includes: [./beside.yaml, {MMBT[1]}]" if (root / "mmf" / MMBT[1]).is_file() else ""
    own.write_text(f"{includes}\ntraining: {{seed: 2}}\n", encoding="utf-8")
    yield "the user's own configuration", ConfigQuery("mmbt", str(own))
    yield "no configuration", ConfigQuery("mmbt", None, {"training": {"seed": 3}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the configurations and MMF's folders."""
    return tmp_path_factory.mktemp("настройки")


@pytest.fixture(
    scope="module", params=mark_wide(["presets", "presets and MMF's own"], except_for=["presets"])
)
def asked(mmf_root: Path, folder: Path, request: pytest.FixtureRequest) -> dict[str, ConfigQuery]:
    """Return the questions by name."""
    return dict(questions_of(mmf_root, folder, of_mmf=request.param != "presets"))


@pytest.fixture(scope="module")
def zoo_keys(mmf_root: Path) -> list[str]:
    """Every key of MMF's zoo of models, groups of keys included."""
    zoo = load_yaml(mmf_root, mmf_root / "mmf" / "configs" / "zoo" / "models.yaml")
    keys = {key.removesuffix(".version") for key, _ in iter_leaves(zoo) if key.endswith(".version")}
    return sorted(keys | {key.removesuffix(".defaults") for key in keys})


@pytest.fixture(scope="module")
def answers(
    mmf_root: Path, folder: Path, asked: dict[str, ConfigQuery], zoo_keys: list[str]
) -> dict[str, Any]:
    """What the real MMF answers, all in one process."""
    places = places_in(folder)
    environment = {**os.environ, **ENVIRONMENT}
    environment |= {"MMF_CACHE_DIR": str(places.cache_dir), "MMF_DATA_DIR": str(places.data_dir)}
    return query_mmf(mmf_root, list(asked.values()), zoo_keys, environment)


@pytest.fixture
def by_mmf(asked: dict[str, ConfigQuery], answers: dict[str, Any]) -> dict[str, Any]:
    """Name of a question → MMF's configuration, or its error."""
    return dict(zip(asked, answers["configurations"], strict=True))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@cache
def merged(root: Path, folder: Path, model: str, config: str | None, settings: str) -> Any:
    """Before the overrides."""
    return compose_config(root, places_in(folder), ConfigSpec(model, config, json.loads(settings)))[1]


def ours(root: Path, folder: Path, question: ConfigQuery) -> dict[str, Any]:
    """The whole configuration as mmfw reads it, by its leaves."""
    settings = json.dumps(question.settings)
    config = deepcopy(merged(root, folder, question.model, question.config, settings))
    config.distributed.world_size = None  # MMF counts devices
    return dict(iter_leaves(OmegaConf.to_container(config, resolve=True)))


@pytest.mark.wide
def test_paths_of_any_name_are_what_mmf_reads(mmf_root: Path, tmp_path: Path) -> None:
    asked = {}
    for name in ODD_NAMES:
        own = tmp_path / name
        features, config = own / "x.lmdb", own / "own.yaml"
        features.mkdir(parents=True)
        config.write_text("training: {seed: 2}\n", encoding="utf-8")
        tree = merge_settings(resume_settings(own / "a.ckpt"), settings_for_all_splits(features=features))
        asked[own] = ConfigQuery("mmbt", str(config), tree, folder=str(own))
    for (own, question), theirs in zip(
        asked.items(), query_mmf(mmf_root, list(asked.values()))["configurations"], strict=True
    ):
        read = resolve_config(
            mmf_root, places_in(own), ConfigSpec("mmbt", question.config, question.settings)
        )
        assert theirs["training"]["seed"] == 2, own
        assert theirs["checkpoint"]["resume_file"] == str(own / "a.ckpt") == read["checkpoint"]["resume_file"]
        assert theirs["dataset_config"]["hateful_memes"]["features"] == read["dataset"]["features"]
        assert list_dataset_paths(read["dataset"], "features", ["train"]) == [own / "x.lmdb"]
        assert read["env"]["data_dir"] == str(own / "data")


@pytest.mark.skipif(is_wine(), reason="MMF makes the same of them everywhere, and Wine is slow")
def test_every_configuration_is_the_one_that_mmf_makes(
    mmf_root: Path, folder: Path, asked: dict[str, ConfigQuery], by_mmf: dict[str, Any]
) -> None:
    assert len(asked) > 2 * len(presets.names())
    for name in asked.keys() - set(map(json.dumps, REFUSED_SETTINGS)):
        assert isinstance(by_mmf[name], dict), (name, by_mmf[name])
        theirs, read = dict(iter_leaves(by_mmf[name])), ours(mmf_root, folder, asked[name])
        different = {key for key in theirs.keys() | read.keys() if theirs.get(key, ...) != read.get(key, ...)}
        assert different <= NOT_COMPARED, name


def test_an_override_sets_what_it_says(by_mmf: dict[str, Any]) -> None:
    before, after = (dict(iter_leaves(by_mmf[name])) for name in ("", "MMBT, overridden"))
    set_by_them = {override.partition("=")[0].partition("[")[0] for override in (*OVERRIDES, *OF_MMBT)}
    changed = {key for key in after if after[key] != before[key]}
    assert changed - FOLLOWING - NOT_COMPARED == set_by_them - NOT_COMPARED


def test_what_mmf_would_not_take_for_what_it_says_is_refused(
    mmf_root: Path, folder: Path, by_mmf: dict[str, Any]
) -> None:
    for override in REFUSED:
        with pytest.raises(UsageError) as caught:
            resolve_config(mmf_root, places_in(folder), ConfigSpec(*MMBT), [override])
        assert caught.value.hint, override
    for tree in REFUSED_SETTINGS:
        assert isinstance(by_mmf[json.dumps(tree)], dict), tree
        with pytest.raises(UsageError) as caught:
            resolve_config(mmf_root, places_in(folder), ConfigSpec(*MMBT, tree))
        assert caught.value.hint, tree


def test_what_is_read_of_it_are_its_parts(mmf_root: Path, folder: Path, by_mmf: dict[str, Any]) -> None:
    read = resolve_config(mmf_root, places_in(folder), ConfigSpec(*MMBT))
    theirs = by_mmf[""]
    training = OmegaConf.create(theirs["training"])
    assert read == {
        "env": theirs["env"],
        "checkpoint": theirs["checkpoint"],
        "dataset": theirs["dataset_config"]["hateful_memes"],
        "model": theirs["model_config"]["mmbt"],
        "training": {key: OmegaConf.select(training, key) for key in read["training"]},
        "user_dir": None,
        "typed": {},
    }


def test_every_model_has_the_configuration_that_its_class_names(
    mmf_root: Path, answers: dict[str, Any]
) -> None:
    assert len(answers["models"]) > 15
    for model, config in answers["models"].items():
        assert find_model_config(mmf_root, model) == config, model


def test_every_entry_of_the_zoo_is_the_one_that_mmf_reads(
    mmf_root: Path, folder: Path, zoo_keys: list[str], answers: dict[str, Any]
) -> None:
    zoo = Zoo(mmf_root, places_in(folder), DATASET_ZOO_FILE, MODEL_ZOO_FILE)
    found = {key: zoo.model_entry(key) for key in zoo_keys} | {"hateful_memes": zoo.dataset_entry("features")}
    assert len(answers["zoo"]) == len(found) > 30
    for key, (version, resources) in answers["zoo"].items():
        listed = resources["features"] if isinstance(resources, dict) else resources
        entry = found[key]
        if entry is None:
            assert not listed or len(listed) > 1 or not listed[0].get("compressed", True), key
        else:
            wanted = (version, listed[0]["file_name"])
            assert (entry.version, entry.file_name) == wanted, key
            sha256 = listed[0].get("hashcode") or ""
            # One hash of MMF's is a digit short; nothing can have it.
            assert entry.sha256 == (sha256 if len(sha256) == 64 else None), key


def test_a_class_in_a_package_of_its_own_is_found(tmp_path: Path) -> None:
    """As that of UniT in 1.0.0rc12."""
    code = [
        '@registry.register_model("unit")',
        "class UniT:",
        "  def config_path(cls):",
        '    return "own.yaml"',
    ]
    write_tree({"mmf/models/unit/unit.py": "\n".join(code).encode()}, tmp_path)
    assert find_model_config(tmp_path, "unit") == "own.yaml"

"""The contract: mmfw composes MMF's configuration, without importing MMF, exactly as MMF does.

For every preset and every configuration of Hateful Memes in MMF's tree, with and without overrides, the whole
configuration is compared with the result of MMF's ``Configuration``, and so is each entry of MMF's zoo.
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
from tests.worlds.special_names import SPECIAL_NAMES
from tests.worlds.tools import is_wine, mark_wide

pytestmark = pytest.mark.torch  # for MMF

MMBT = ("mmbt", "projects/mmbt/configs/hateful_memes/defaults.yaml")
DATASET = "dataset_config.hateful_memes"

# Overrides that every configuration accepts.
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
# Overrides that the configurations of MMBT accept in addition.
OF_MMBT = (
    "model_config.mmbt.num_labels=3",
    "model_config.mmbt.losses[0].type=bce",
    "model_config.mmbt.bert_model_name=my/bert",
    f"{DATASET}.processors.text_processor.params.max_seq_length=20",
    f"{DATASET}.annotations.val=own.jsonl",
)
# MMF has no such key, or would misinterpret the override.
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
# Settings of user presets.
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
# With these, MMF would read other folders than mmfw verified, or a deprecated key would replace the new one.
REFUSED_SETTINGS: tuple[dict[str, Any], ...] = (
    {"env": {"data_dir": "x"}},
    {"env": {"cache_dir": "x"}},
    {"learning_rate": 0.1},
    {"training": {"resume_file": "x"}},
    {"training": {"run_type": "val"}},
)
# Keys whose values refer to an overridden key.
FOLLOWING = {
    "training.wandb.name",
    "model_config.mmbt.text_encoder.params.bert_model_name",
    "scheduler.params.num_training_steps",
}
ENVIRONMENT = {"MMF_REPORT_DIR": "отчёты", "MMF_DATASET_ZOO": str(empty_zoo_file()), "MMF_USER_DIR": ""}
# Keys in which MMF records its command-line options, and keys that depend on the machine.
NOT_COMPARED = {"config", "model", "datasets", "training.device", "distributed.world_size"}


def mmf_paths_in(folder: Path) -> MmfPaths:
    return MmfPaths(folder / "cache", folder / "data", folder / "save")


def apply_overrides(root: Path, folder: Path, query: ConfigQuery, overrides: Sequence[str]) -> ConfigQuery:
    """Return the query with overrides in its settings, as an attempt has them."""
    parts = ConfigSpec(query.model, query.config, query.settings)
    settings = resolve_config(root, mmf_paths_in(folder), parts, overrides)["typed"]
    return replace(query, settings=merge_settings(query.settings, settings))


def list_queries(root: Path, folder: Path, *, include_mmf: bool) -> Iterator[tuple[str, ConfigQuery]]:
    """Yield the name and query of each preset and, with ``include_mmf``, of each configuration of MMF."""
    loaded = [presets.load_preset(name) for name in presets.list_presets()]
    configurations = {f"preset {p.name}": (p.model, p.config, p.settings) for p in loaded}
    areas = ("projects", "mmf") if include_mmf else ()
    files = [path for area in areas for path in sorted((root / area).rglob("*.yaml"))]
    for path in sorted({path.resolve() for path in files if "hateful_memes" in path.parts}):
        models = list((load_yaml(root, path).get("model_config") or {}).keys())
        configurations[str(path)] = (models[0] if models else "mmbt", str(path), {})
    for name, (model, config, settings) in configurations.items():
        yield name, ConfigQuery(model, config, settings)
        if name.startswith("preset"):
            yield (
                f"{name}, overridden",
                apply_overrides(root, folder, ConfigQuery(model, config, settings), OVERRIDES),
            )
    yield "", ConfigQuery(*MMBT)
    yield "MMBT, overridden", apply_overrides(root, folder, ConfigQuery(*MMBT), (*OVERRIDES, *OF_MMBT))
    for tree in (*SETTINGS, *REFUSED_SETTINGS):
        yield json.dumps(tree), ConfigQuery(*MMBT, tree)
    (folder / "beside.yaml").write_text("training: {seed: 1, max_updates: 3}\n", encoding="utf-8")
    config_file = folder / "own.yaml"
    includes = f"includes: [./beside.yaml, {MMBT[1]}]" if (root / "mmf" / MMBT[1]).is_file() else ""
    config_file.write_text(f"{includes}\ntraining: {{seed: 2}}\n", encoding="utf-8")
    yield "a user configuration", ConfigQuery("mmbt", str(config_file))
    yield "no configuration", ConfigQuery("mmbt", None, {"training": {"seed": 3}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the configurations and for MMF's folders."""
    return tmp_path_factory.mktemp("настройки")


@pytest.fixture(
    scope="module", params=mark_wide(["presets", "presets and MMF's configurations"], except_for=["presets"])
)
def queries(mmf_root: Path, folder: Path, request: pytest.FixtureRequest) -> dict[str, ConfigQuery]:
    """Return the queries by name."""
    return dict(list_queries(mmf_root, folder, include_mmf=request.param != "presets"))


@pytest.fixture(scope="module")
def zoo_keys(mmf_root: Path) -> list[str]:
    """Return every key of MMF's model zoo, including groups of keys."""
    zoo = load_yaml(mmf_root, mmf_root / "mmf" / "configs" / "zoo" / "models.yaml")
    keys = {key.removesuffix(".version") for key, _ in iter_leaves(zoo) if key.endswith(".version")}
    return sorted(keys | {key.removesuffix(".defaults") for key in keys})


@pytest.fixture(scope="module")
def mmf_results(mmf_root: Path, folder: Path, queries: dict[str, ConfigQuery], zoo_keys: list[str]) -> dict[str, Any]:
    """Return the results of the real MMF, all from one process."""
    mmf_paths = mmf_paths_in(folder)
    environment = {**os.environ, **ENVIRONMENT}
    environment |= {"MMF_CACHE_DIR": str(mmf_paths.cache_dir), "MMF_DATA_DIR": str(mmf_paths.data_dir)}
    return query_mmf(mmf_root, list(queries.values()), zoo_keys, environment)


@pytest.fixture
def mmf_configs(queries: dict[str, ConfigQuery], mmf_results: dict[str, Any]) -> dict[str, Any]:
    """Return MMF's configuration, or its error, by query name."""
    return dict(zip(queries, mmf_results["configurations"], strict=True))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@cache
def merged(root: Path, folder: Path, model: str, config: str | None, settings: str) -> Any:
    """Return the configuration before the overrides."""
    return compose_config(root, mmf_paths_in(folder), ConfigSpec(model, config, json.loads(settings)))[1]


def read_leaves(root: Path, folder: Path, query: ConfigQuery) -> dict[str, Any]:
    """Return the leaves of the configuration as mmfw composes it."""
    settings = json.dumps(query.settings)
    config = deepcopy(merged(root, folder, query.model, query.config, settings))
    config.distributed.world_size = None  # MMF counts the devices
    return dict(iter_leaves(OmegaConf.to_container(config, resolve=True)))


@pytest.mark.wide
def test_paths_with_special_names_are_read_as_in_mmf(mmf_root: Path, tmp_path: Path) -> None:
    by_folder = {}
    for name in SPECIAL_NAMES:
        folder = tmp_path / name
        features, config = folder / "x.lmdb", folder / "own.yaml"
        features.mkdir(parents=True)
        config.write_text("training: {seed: 2}\n", encoding="utf-8")
        tree = merge_settings(resume_settings(folder / "a.ckpt"), settings_for_all_splits(features=features))
        by_folder[folder] = ConfigQuery("mmbt", str(config), tree, folder=str(folder))
    for (folder, query), mmf_config in zip(
        by_folder.items(), query_mmf(mmf_root, list(by_folder.values()))["configurations"], strict=True
    ):
        read = resolve_config(mmf_root, mmf_paths_in(folder), ConfigSpec("mmbt", query.config, query.settings))
        assert mmf_config["training"]["seed"] == 2, folder
        assert mmf_config["checkpoint"]["resume_file"] == str(folder / "a.ckpt") == read["checkpoint"]["resume_file"]
        assert mmf_config["dataset_config"]["hateful_memes"]["features"] == read["dataset"]["features"]
        assert list_dataset_paths(read["dataset"], "features", ["train"]) == [folder / "x.lmdb"]
        assert read["env"]["data_dir"] == str(folder / "data")


@pytest.mark.skipif(is_wine(), reason="the result does not depend on Windows; Wine is slow")
def test_every_configuration_equals_that_of_mmf(
    mmf_root: Path, folder: Path, queries: dict[str, ConfigQuery], mmf_configs: dict[str, Any]
) -> None:
    assert len(queries) > 2 * len(presets.list_presets())
    for name in queries.keys() - set(map(json.dumps, REFUSED_SETTINGS)):
        assert isinstance(mmf_configs[name], dict), (name, mmf_configs[name])
        mmf_config, read = dict(iter_leaves(mmf_configs[name])), read_leaves(mmf_root, folder, queries[name])
        different = {key for key in mmf_config.keys() | read.keys() if mmf_config.get(key, ...) != read.get(key, ...)}
        assert different <= NOT_COMPARED, name


def test_overrides_change_only_the_named_keys(mmf_configs: dict[str, Any]) -> None:
    before, after = (dict(iter_leaves(mmf_configs[name])) for name in ("", "MMBT, overridden"))
    named_keys = {override.partition("=")[0].partition("[")[0] for override in (*OVERRIDES, *OF_MMBT)}
    changed = {key for key in after if after[key] != before[key]}
    assert changed - FOLLOWING - NOT_COMPARED == named_keys - NOT_COMPARED


def test_overrides_and_settings_that_mmf_misinterprets_are_refused(
    mmf_root: Path, folder: Path, mmf_configs: dict[str, Any]
) -> None:
    for override in REFUSED:
        with pytest.raises(UsageError) as caught:
            resolve_config(mmf_root, mmf_paths_in(folder), ConfigSpec(*MMBT), [override])
        assert caught.value.hint, override
    for tree in REFUSED_SETTINGS:
        assert isinstance(mmf_configs[json.dumps(tree)], dict), tree
        with pytest.raises(UsageError) as caught:
            resolve_config(mmf_root, mmf_paths_in(folder), ConfigSpec(*MMBT, tree))
        assert caught.value.hint, tree


def test_resolved_configuration_contains_the_expected_parts(
    mmf_root: Path, folder: Path, mmf_configs: dict[str, Any]
) -> None:
    read = resolve_config(mmf_root, mmf_paths_in(folder), ConfigSpec(*MMBT))
    mmf_config = mmf_configs[""]
    training = OmegaConf.create(mmf_config["training"])
    assert read == {
        "env": mmf_config["env"],
        "checkpoint": mmf_config["checkpoint"],
        "dataset": mmf_config["dataset_config"]["hateful_memes"],
        "model": mmf_config["model_config"]["mmbt"],
        "training": {key: OmegaConf.select(training, key) for key in read["training"]},
        "user_dir": None,
        "typed": {},
    }


def test_every_model_has_the_configuration_that_its_class_names(mmf_root: Path, mmf_results: dict[str, Any]) -> None:
    assert len(mmf_results["models"]) > 15
    for model, config in mmf_results["models"].items():
        assert find_model_config(mmf_root, model) == config, model


def test_every_zoo_entry_equals_that_of_mmf(
    mmf_root: Path, folder: Path, zoo_keys: list[str], mmf_results: dict[str, Any]
) -> None:
    zoo = Zoo(mmf_root, mmf_paths_in(folder), DATASET_ZOO_FILE, MODEL_ZOO_FILE)
    entries = {key: zoo.model_entry(key) for key in zoo_keys} | {"hateful_memes": zoo.dataset_entry("features")}
    assert len(mmf_results["zoo"]) == len(entries) > 30
    for key, (version, resources) in mmf_results["zoo"].items():
        files = resources["features"] if isinstance(resources, dict) else resources
        entry = entries[key]
        if entry is None:
            assert not files or len(files) > 1 or not files[0].get("compressed", True), key
        else:
            expected = (version, files[0]["file_name"])
            assert (entry.version, entry.file_name) == expected, key
            sha256 = files[0].get("hashcode") or ""
            # One of MMF's hashes is a digit too short to match any file.
            assert entry.sha256 == (sha256 if len(sha256) == 64 else None), key


def test_model_class_in_its_own_package_is_found(tmp_path: Path) -> None:
    """UniT in 1.0.0rc12 is such a class."""
    code = ['@registry.register_model("unit")', "class UniT:", "  def config_path(cls):", '    return "own.yaml"']
    write_tree({"mmf/models/unit/unit.py": "\n".join(code).encode()}, tmp_path)
    assert find_model_config(tmp_path, "unit") == "own.yaml"

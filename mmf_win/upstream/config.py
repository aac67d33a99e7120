"""The configuration that MMF would make of a preset, read without importing MMF.

The order is that of ``mmf.utils.configuration``: MMF's defaults, the model's and the dataset's own
configuration, then the one that the run names with its includes, and the run's settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.paths import MmfPaths, empty_zoo_file
from mmf_win.upstream.overrides import RESERVED, assign, literal, require_usable
from mmf_win.upstream.versions import config_path, follow_text_links, read_version

Tree = dict[str, Any]

DATASET = "hateful_memes"
#: The group of settings that MMF has no keys for; it never gets them.
OURS = "mmfw"
_DEFAULTS = Path("mmf", "configs", "defaults.yaml")
_DATASET_CONFIG = "configs/datasets/hateful_memes/defaults.yaml"
# 1.0.0rc10 calls the resolver by an older name, and OmegaConf warns of an empty default without quotes.
_ENVIRONMENT = re.compile(r"\$\{(?:oc\.)?env:(\w+), *([^'}]*)\}")
_DEEPEST = 100
_LENGTH = (
    *("max_updates", "max_epochs", "batch_size", "update_frequency"),
    *("early_stop.enabled", "early_stop.patience", "checkpoint_interval", "evaluation_interval"),
)
_USER_DIR = "MMF_USER_DIR"
_FOLDERS = ("cache_dir", "data_dir", "save_dir", "report_dir")
_NAMED_BESIDE = {"config", "model", "dataset", "datasets"}  # what MMF gets on its command line
# mmf.utils.configuration.Configuration.upgrade and ._update_specific
_RENAMED = {
    "learning_rate": "optimizer.params.lr",
    "training.resume_file": "checkpoint.resume_file",
    "training.resume": "checkpoint.resume",
    "training.resume_best": "checkpoint.resume_best",
    "training.load_pretrained": "checkpoint.resume_pretrained",
    "training.pretrained_state_mapping": "checkpoint.pretrained_state_mapping",
    "training.run_type": "run_type",
}


@dataclass(frozen=True)
class ConfigParts:
    """What MMF's configuration is made of.

    Attributes:
        model: MMF's name of the model.
        config: MMF configuration to start from, as :func:`mmf_win.upstream.versions.config_path` takes it.
        settings: a tree of MMF's keys, merged over it.
        offline: MMF must download nothing.
    """

    model: str = ""
    config: str | None = None
    settings: Tree = field(default_factory=dict)
    offline: bool = False

    @property
    def of_mmf(self) -> Tree:
        """The settings that MMF has keys for."""
        return {key: value for key, value in self.settings.items() if key != OURS}


def resolve(
    root: Path,
    places: MmfPaths,
    asked: ConfigParts,
    overrides: Sequence[str] = (),
    *,
    checked: Tree | None = None,
) -> Tree:
    """The parts of MMF's configuration that name files: ``env``, ``checkpoint``, ``dataset`` and ``model``;
    of ``training``, how long it lasts and when it saves and validates; as ``user_dir`` the folder of the
    user's own code, as it is named; as ``typed`` the tree that the overrides stand for.

    Overrides are merged last. Of the settings, MMF must know those that are ``checked``, or all. Raises
    UsageError where it cannot be put together, or MMF would refuse or drop a part of it, and MmfError where a
    file of MMF is missing.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        version = read_version(root)
        of_mmf, merged = compose(root, places, asked)
        own_code = bool(merged.env.user_dir) or any(word.startswith("env.user_dir=") for word in overrides)
        checked = asked.of_mmf if checked is None else checked
        require_usable(OmegaConf.to_container(of_mmf), checked, version, own_code=own_code)
        assign(merged, overrides, version=version, own_code=own_code)
        unresolved: Any = OmegaConf.to_container(merged)

        def part(path: str) -> Any:
            node = OmegaConf.select(merged, path)
            return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node or {}

        return {
            "env": part("env"),
            "checkpoint": part("checkpoint"),
            "dataset": part(f"dataset_config.{DATASET}"),
            "model": part(f"model_config.{asked.model}"),
            "training": {key: OmegaConf.select(merged, f"training.{key}") for key in _LENGTH},
            "user_dir": _user_dir(unresolved["env"]["user_dir"], merged.env.user_dir),
            "typed": _typed(overrides, unresolved),
        }
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the configuration of {asked.model} cannot be put together: {reason}") from None


def _user_dir(named: Any, configured: Any) -> str | None:
    """The folder of code that MMF imports: the configuration's, or where that is empty ``MMF_USER_DIR``.

    What is ``named`` in the configuration stands here for what is ``configured``. It is None where nothing
    names a folder, and empty where what names one stands for nothing here.
    """
    folder = configured or os.environ.get(_USER_DIR)
    is_named = named is not None and _USER_DIR not in str(named)  # MMF's own names the variable
    return str(folder) if folder else "" if is_named else None


def _typed(overrides: Sequence[str], config: Any) -> Tree:
    """The tree that overrides stand for, taken from ``config``, which has them; of a list, all items."""
    typed: Tree = {}
    for override in overrides:
        key = override.partition("=")[0].partition("[")[0]
        value = config
        for name in key.split("."):
            value = value[name]
        put(typed, key, value)
    return typed


def put(tree: Tree, key: str, value: Any) -> None:
    """Set a key such as ``training.seed`` in a tree of settings."""
    *groups, last = key.split(".")
    for name in groups:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    tree[last] = value


def merge(*trees: Mapping[str, Any]) -> Tree:
    """Settings merged key by key; later ones win."""
    from omegaconf import OmegaConf

    merged: Any = OmegaConf.to_container(OmegaConf.merge(*(OmegaConf.create(dict(tree)) for tree in trees)))
    return dict(merged)


def compose(root: Path, places: MmfPaths, asked: ConfigParts) -> tuple[Any, Any]:
    """MMF's own configuration of the experiment, and with its settings.

    Arguments and errors are as for :func:`resolve`.
    """
    from omegaconf import OmegaConf

    own = model_config(root, asked.model)
    named = [root / "mmf" / own] if own else []
    named += [root / "mmf" / _DATASET_CONFIG]
    named += [config_path(root, asked.config)] if asked.config else []
    defaults = load_yaml(root, root / _DEFAULTS)
    of_mmf = OmegaConf.merge(defaults, *(load_yaml(root, path) for path in named))
    for key in _NAMED_BESIDE & asked.of_mmf.keys():
        raise UsageError(f"{key} is set by mmfw", hint=RESERVED[key])
    _require_group(asked.of_mmf.get("env", {}))  # OmegaConf 2.3 names no key of a list that it cannot merge
    merged: Any = OmegaConf.merge(of_mmf, asked.of_mmf)
    whole: Any = OmegaConf.to_container(merged)
    env = whole["env"]
    _require_group(env)
    env_of_mmf: Any = OmegaConf.to_container(defaults.env)
    for key in _FOLDERS:
        if env[key] != env_of_mmf[key]:
            raise UsageError(f"env.{key} is set by mmfw", hint=RESERVED[f"env.{key}"])
    for old, new in _RENAMED.items():
        if OmegaConf.select(merged, old) is not None:
            raise UsageError(f"{old} is an old key, which MMF lets win over {new}", hint=f"write {new}")
    merged.env.cache_dir, merged.env.data_dir = literal(places.cache_dir), literal(places.data_dir)
    if asked.offline:
        merged.env.dataset_zoo = literal(empty_zoo_file())
    return of_mmf, merged


def _require_group(env: object) -> None:
    if not isinstance(env, dict):  # as an interpolation it may be another one in the worker
        raise UsageError(f"env: {env!r} in place of a group of keys", hint="set a key in it: env.user_dir")


def model_config(root: Path, model: str) -> str | None:
    """Return the configuration that MMF's class of a model names as its own, or None where it names none."""
    for path in sorted((root / "mmf" / "models").rglob("*.py")):
        _, registered, code = path.read_text(encoding="utf-8").partition(f'.register_model("{model}")')
        if registered:
            named = re.search(r'def config_path\(\w+\).*:\s+return "(.+)"', code.split("\nclass ")[1])
            return named[1] if named else None
    return None


def parse_yaml(text: str) -> Any:
    """A YAML text as OmegaConf reads it.

    Raises ValueError where it is none, or nested so deeply that libyaml's loader would crash.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    depth = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise yaml.YAMLError(f"it is nested more than {_DEEPEST} levels deep")
        return OmegaConf.load(StringIO(text))
    except OSError:  # OmegaConf says so of one number
        raise ValueError("a mapping of keys is expected") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"not valid YAML ({' '.join(str(error).split())})") from None


def load_yaml(root: Path, path: Path) -> Any:
    """A YAML file of MMF's with its ``includes``, relative to the package ``mmf`` or to the file."""
    from omegaconf import OmegaConf

    path = follow_text_links(path)
    try:
        text = path.read_text(encoding="utf-8")
        own: Any = parse_yaml(_ENVIRONMENT.sub(r"${oc.env:\1,'\2'}", text))
    except OSError as error:
        raise MmfEnvironmentError(
            f"{path} cannot be read: {error.strerror}", hint="run `mmfw setup`"
        ) from None
    included = []
    for name in own.pop("includes", None) or []:
        of_mmf = follow_text_links(root / "mmf" / name)
        included.append(load_yaml(root, of_mmf if of_mmf.is_file() else path.parent / name))
    return OmegaConf.merge(*included, own)

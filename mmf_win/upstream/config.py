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
from mmf_win.upstream.overrides import (
    RESERVED_KEYS,
    apply_overrides,
    escape_interpolation,
    require_valid_settings,
)
from mmf_win.upstream.versions import config_path, follow_text_links, read_version

Settings = dict[str, Any]

DATASET = "hateful_memes"
#: The group of settings that MMF has no keys for; it never gets them.
MMFW_GROUP = "mmfw"
_DEFAULTS_FILE = Path("mmf", "configs", "defaults.yaml")
_DATASET_CONFIG = "configs/datasets/hateful_memes/defaults.yaml"
# 1.0.0rc10 calls the resolver by an older name, and OmegaConf warns of an empty default without quotes.
_ENV_INTERPOLATION = re.compile(r"\$\{(?:oc\.)?env:(\w+), *([^'}]*)\}")
_MAX_YAML_DEPTH = 100
_TRAINING_KEYS = (
    *("max_updates", "max_epochs", "batch_size", "update_frequency"),
    *("early_stop.enabled", "early_stop.patience", "checkpoint_interval", "evaluation_interval"),
)
_USER_DIR_VARIABLE = "MMF_USER_DIR"
_FOLDER_KEYS = ("cache_dir", "data_dir", "save_dir", "report_dir")
_COMMAND_LINE_KEYS = {"config", "model", "dataset", "datasets"}  # what MMF gets on its command line
# mmf.utils.configuration.Configuration.upgrade and ._update_specific
_RENAMED_KEYS = {
    "learning_rate": "optimizer.params.lr",
    "training.resume_file": "checkpoint.resume_file",
    "training.resume": "checkpoint.resume",
    "training.resume_best": "checkpoint.resume_best",
    "training.load_pretrained": "checkpoint.resume_pretrained",
    "training.pretrained_state_mapping": "checkpoint.pretrained_state_mapping",
    "training.run_type": "run_type",
}


@dataclass(frozen=True)
class ConfigSpec:
    """What MMF's configuration is made of.

    Attributes:
        model: MMF's name of the model.
        config: MMF configuration to start from, as :func:`mmf_win.upstream.versions.config_path` takes it.
        settings: a tree of MMF's keys, merged over it.
        offline: MMF must download nothing.
    """

    model: str = ""
    config: str | None = None
    settings: Settings = field(default_factory=dict)
    offline: bool = False

    @property
    def mmf_settings(self) -> Settings:
        """The settings that MMF has keys for."""
        return {key: value for key, value in self.settings.items() if key != MMFW_GROUP}


def resolve_config(
    root: Path,
    mmf_paths: MmfPaths,
    config_spec: ConfigSpec,
    overrides: Sequence[str] = (),
    *,
    checked_settings: Settings | None = None,
) -> Settings:
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
        of_mmf, merged = compose_config(root, mmf_paths, config_spec)
        own_code = bool(merged.env.user_dir) or any(word.startswith("env.user_dir=") for word in overrides)
        checked_settings = config_spec.mmf_settings if checked_settings is None else checked_settings
        require_valid_settings(
            OmegaConf.to_container(of_mmf), checked_settings, version, has_user_code=own_code
        )
        apply_overrides(merged, overrides, version=version, has_user_code=own_code)
        unresolved: Any = OmegaConf.to_container(merged)

        def select_part(path: str) -> Any:
            node = OmegaConf.select(merged, path)
            return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node or {}

        return {
            "env": select_part("env"),
            "checkpoint": select_part("checkpoint"),
            "dataset": select_part(f"dataset_config.{DATASET}"),
            "model": select_part(f"model_config.{config_spec.model}"),
            "training": {key: OmegaConf.select(merged, f"training.{key}") for key in _TRAINING_KEYS},
            "user_dir": _find_user_dir(unresolved["env"]["user_dir"], merged.env.user_dir),
            "typed": _settings_from_overrides(overrides, unresolved),
        }
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"the configuration of {config_spec.model} cannot be put together: {reason}"
        ) from None


def _find_user_dir(raw_value: Any, resolved_value: Any) -> str | None:
    """The folder of code that MMF imports: the configuration's, or where that is empty ``MMF_USER_DIR``.

    What is ``named`` in the configuration stands here for what is ``configured``. It is None where nothing
    names a folder, and empty where what names one stands for nothing here.
    """
    folder = resolved_value or os.environ.get(_USER_DIR_VARIABLE)
    is_named = raw_value is not None and _USER_DIR_VARIABLE not in str(
        raw_value
    )  # MMF's own names the variable
    return str(folder) if folder else "" if is_named else None


def _settings_from_overrides(overrides: Sequence[str], config: Any) -> Settings:
    """The tree that overrides stand for, taken from ``config``, which has them; of a list, all items."""
    typed: Settings = {}
    for override in overrides:
        key = override.partition("=")[0].partition("[")[0]
        value = config
        for name in key.split("."):
            value = value[name]
        set_nested_value(typed, key, value)
    return typed


def set_nested_value(settings: Settings, key: str, value: Any) -> None:
    """Set a key such as ``training.seed`` in a tree of settings."""
    *groups, last = key.split(".")
    for name in groups:
        if not isinstance(settings.get(name), dict):
            settings[name] = {}
        settings = settings[name]
    settings[last] = value


def merge_settings(*trees: Mapping[str, Any]) -> Settings:
    """Settings merged key by key; later ones win."""
    from omegaconf import OmegaConf

    merged: Any = OmegaConf.to_container(OmegaConf.merge(*(OmegaConf.create(dict(tree)) for tree in trees)))
    return dict(merged)


def compose_config(root: Path, mmf_paths: MmfPaths, config_spec: ConfigSpec) -> tuple[Any, Any]:
    """MMF's own configuration of the experiment, and with its settings.

    Arguments and errors are as for :func:`resolve_config`.
    """
    from omegaconf import OmegaConf

    own = find_model_config(root, config_spec.model)
    named = [root / "mmf" / own] if own else []
    named += [root / "mmf" / _DATASET_CONFIG]
    named += [config_path(root, config_spec.config)] if config_spec.config else []
    defaults = load_yaml(root, root / _DEFAULTS_FILE)
    of_mmf = OmegaConf.merge(defaults, *(load_yaml(root, path) for path in named))
    for key in _COMMAND_LINE_KEYS & config_spec.mmf_settings.keys():
        raise UsageError(f"{key} is set by mmfw", hint=RESERVED_KEYS[key])
    _require_group(
        config_spec.mmf_settings.get("env", {})
    )  # OmegaConf 2.3 names no key of a list that it cannot merge
    merged: Any = OmegaConf.merge(of_mmf, config_spec.mmf_settings)
    whole: Any = OmegaConf.to_container(merged)
    env = whole["env"]
    _require_group(env)
    env_of_mmf: Any = OmegaConf.to_container(defaults.env)
    for key in _FOLDER_KEYS:
        if env[key] != env_of_mmf[key]:
            raise UsageError(f"env.{key} is set by mmfw", hint=RESERVED_KEYS[f"env.{key}"])
    for old, new in _RENAMED_KEYS.items():
        if OmegaConf.select(merged, old) is not None:
            raise UsageError(f"{old} is an old key, which MMF lets win over {new}", hint=f"write {new}")
    merged.env.cache_dir, merged.env.data_dir = (
        escape_interpolation(mmf_paths.cache_dir),
        escape_interpolation(mmf_paths.data_dir),
    )
    if config_spec.offline:
        merged.env.dataset_zoo = escape_interpolation(empty_zoo_file())
    return of_mmf, merged


def _require_group(env: object) -> None:
    if not isinstance(env, dict):  # as an interpolation it may be another one in the worker
        raise UsageError(f"env: {env!r} in place of a group of keys", hint="set a key in it: env.user_dir")


def find_model_config(root: Path, model: str) -> str | None:
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
            if depth > _MAX_YAML_DEPTH:
                raise yaml.YAMLError(f"it is nested more than {_MAX_YAML_DEPTH} levels deep")
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
        own: Any = parse_yaml(_ENV_INTERPOLATION.sub(r"${oc.env:\1,'\2'}", text))
    except OSError as error:
        raise MmfEnvironmentError(
            f"{path} cannot be read: {error.strerror}", hint="run `mmfw setup`"
        ) from None
    included = []
    for name in own.pop("includes", None) or []:
        of_mmf = follow_text_links(root / "mmf" / name)
        included.append(load_yaml(root, of_mmf if of_mmf.is_file() else path.parent / name))
    return OmegaConf.merge(*included, own)

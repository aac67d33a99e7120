"""The configuration that MMF would compose for a preset, computed without importing MMF.

The order is that of ``mmf.utils.configuration``: MMF's defaults, the defaults of the model and the dataset,
the configuration file with its includes, and the settings of the run.
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
from mmf_win.upstream.overrides import RESERVED_KEYS, apply_overrides, escape_interpolation, require_valid_settings
from mmf_win.upstream.versions import config_path, follow_text_links, read_version

Settings = dict[str, Any]

DATASET = "hateful_memes"
#: Group of the settings for which MMF has no key. It is not passed to MMF.
MMFW_GROUP = "mmfw"
_DEFAULTS_FILE = Path("mmf", "configs", "defaults.yaml")
_DATASET_CONFIG = "configs/datasets/hateful_memes/defaults.yaml"
# 1.0.0rc10 uses an older name of the resolver, and OmegaConf warns about an unquoted empty default.
_ENV_INTERPOLATION = re.compile(r"\$\{(?:oc\.)?env:(\w+), *([^'}]*)\}")
_MAX_YAML_DEPTH = 100  # libyaml's loader crashes on very deep nesting
_TRAINING_KEYS = (
    *("max_updates", "max_epochs", "batch_size", "update_frequency"),
    *("early_stop.enabled", "early_stop.patience", "checkpoint_interval", "evaluation_interval"),
)
_USER_DIR_VARIABLE = "MMF_USER_DIR"
_FOLDER_KEYS = ("cache_dir", "data_dir", "save_dir", "report_dir")
_COMMAND_LINE_KEYS = {"config", "model", "dataset", "datasets"}  # passed to MMF on its command line
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
    """Inputs of an MMF configuration.

    Attributes:
        model: MMF's name of the model.
        config: MMF configuration file, as :func:`mmf_win.upstream.versions.config_path` takes it.
        settings: Settings tree that is merged over it.
        offline: MMF must download nothing.
    """

    model: str = ""
    config: str | None = None
    settings: Settings = field(default_factory=dict)
    offline: bool = False

    @property
    def mmf_settings(self) -> Settings:
        """Settings that MMF has keys for."""
        return {key: value for key, value in self.settings.items() if key != MMFW_GROUP}


def resolve_config(
    root: Path,
    mmf_paths: MmfPaths,
    config_spec: ConfigSpec,
    overrides: Sequence[str] = (),
    *,
    checked_settings: Settings | None = None,
) -> Settings:
    """Resolve the parts of MMF's configuration that name files.

    Args:
        root: Folder of the packages ``mmf`` and ``mmf_cli``.
        mmf_paths: MMF's folders.
        config_spec: Model, configuration file and settings.
        overrides: Overrides, merged last.
        checked_settings: Settings that must be valid MMF keys; ``None`` for all settings.

    Returns:
        The groups ``env``, ``checkpoint``, ``dataset`` and ``model``; the keys of ``training`` about its
        length and its saves and validations; ``user_dir``, the folder of user code as given; ``typed``, the
        settings from the overrides.

    Raises:
        UsageError: The configuration cannot be composed, or MMF would reject or ignore a part of it.
        MmfEnvironmentError: A file of MMF is missing.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        version = read_version(root)
        mmf_config, merged = compose_config(root, mmf_paths, config_spec)
        has_user_code = bool(merged.env.user_dir) or any(override.startswith("env.user_dir=") for override in overrides)
        settings = config_spec.mmf_settings if checked_settings is None else checked_settings
        require_valid_settings(OmegaConf.to_container(mmf_config), settings, version, has_user_code=has_user_code)
        apply_overrides(merged, overrides, version=version, has_user_code=has_user_code)
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
        raise UsageError(f"cannot compose the configuration of {config_spec.model}: {reason}") from None


def _find_user_dir(raw_value: Any, resolved_value: Any) -> str | None:
    """Return the folder of user code: that of the configuration or, if empty, of ``MMF_USER_DIR``.

    Args:
        raw_value: ``env.user_dir`` with interpolations.
        resolved_value: ``env.user_dir`` as resolved on this machine.

    Returns:
        The folder; ``None`` if none is configured, and ``""`` if the configured value resolves to nothing
        here.
    """
    folder = resolved_value or os.environ.get(_USER_DIR_VARIABLE)
    # MMF's default refers to the variable.
    is_named = raw_value is not None and _USER_DIR_VARIABLE not in str(raw_value)
    return str(folder) if folder else "" if is_named else None


def _settings_from_overrides(overrides: Sequence[str], config: Any) -> Settings:
    """Return the settings tree of the overrides, taken from ``config``; lists are taken as a whole."""
    settings: Settings = {}
    for override in overrides:
        key = override.partition("=")[0].partition("[")[0]
        value = config
        for name in key.split("."):
            value = value[name]
        set_nested_value(settings, key, value)
    return settings


def set_nested_value(settings: Settings, key: str, value: Any) -> None:
    """Set a key such as ``training.seed`` in a settings tree."""
    *groups, last = key.split(".")
    for name in groups:
        if not isinstance(settings.get(name), dict):
            settings[name] = {}
        settings = settings[name]
    settings[last] = value


def merge_settings(*trees: Mapping[str, Any]) -> Settings:
    """Merge settings trees key by key; later trees take precedence."""
    from omegaconf import OmegaConf

    merged: Any = OmegaConf.to_container(OmegaConf.merge(*(OmegaConf.create(dict(tree)) for tree in trees)))
    return dict(merged)


def compose_config(root: Path, mmf_paths: MmfPaths, config_spec: ConfigSpec) -> tuple[Any, Any]:
    """Return MMF's own configuration of an experiment, and the same with the settings of the run.

    Args:
        root: As for :func:`resolve_config`.
        mmf_paths: As for :func:`resolve_config`.
        config_spec: As for :func:`resolve_config`.

    Raises:
        UsageError: As for :func:`resolve_config`.
        MmfEnvironmentError: As for :func:`resolve_config`.
    """
    from omegaconf import OmegaConf

    model_config = find_model_config(root, config_spec.model)
    config_files = [root / "mmf" / model_config] if model_config else []
    config_files += [root / "mmf" / _DATASET_CONFIG]
    config_files += [config_path(root, config_spec.config)] if config_spec.config else []
    defaults = load_yaml(root, root / _DEFAULTS_FILE)
    mmf_config = OmegaConf.merge(defaults, *(load_yaml(root, path) for path in config_files))
    for key in _COMMAND_LINE_KEYS & config_spec.mmf_settings.keys():
        raise UsageError(f"{key} is set by mmfw", hint=RESERVED_KEYS[key])
    # Checked first, because OmegaConf 2.3 does not name the key of a list that it cannot merge.
    _require_group(config_spec.mmf_settings.get("env", {}))
    merged: Any = OmegaConf.merge(mmf_config, config_spec.mmf_settings)
    plain_config: Any = OmegaConf.to_container(merged)
    env = plain_config["env"]
    _require_group(env)
    default_env: Any = OmegaConf.to_container(defaults.env)
    for key in _FOLDER_KEYS:
        if env[key] != default_env[key]:
            raise UsageError(f"env.{key} is set by mmfw", hint=RESERVED_KEYS[f"env.{key}"])
    for old, new in _RENAMED_KEYS.items():
        if OmegaConf.select(merged, old) is not None:
            raise UsageError(f"{old} is a deprecated key that replaces {new} in MMF", hint=f"use {new}")
    merged.env.cache_dir = escape_interpolation(mmf_paths.cache_dir)
    merged.env.data_dir = escape_interpolation(mmf_paths.data_dir)
    if config_spec.offline:
        merged.env.dataset_zoo = escape_interpolation(empty_zoo_file())
    return mmf_config, merged


def _require_group(env: object) -> None:
    if not isinstance(env, dict):  # an interpolation could have another value in the worker
        raise UsageError(f"env: expected a group of keys, got {env!r}", hint="set a key in it: env.user_dir")


def find_model_config(root: Path, model: str) -> str | None:
    """Return the configuration file that MMF's class of a model names, or ``None`` if there is none."""
    for path in sorted((root / "mmf" / "models").rglob("*.py")):
        _, registered, code = path.read_text(encoding="utf-8").partition(f'.register_model("{model}")')
        if registered:
            match = re.search(r'def config_path\(\w+\).*:\s+return "(.+)"', code.split("\nclass ")[1])
            return match[1] if match else None
    return None


def parse_yaml(text: str) -> Any:
    """Parse a YAML text as OmegaConf does; raise ``ValueError`` if it is invalid or nested too deeply."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    depth = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_YAML_DEPTH:
                raise yaml.YAMLError(f"nested more than {_MAX_YAML_DEPTH} levels deep")
        return OmegaConf.load(StringIO(text))
    except OSError:  # raised by OmegaConf for a single number
        raise ValueError("expected a mapping of keys") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"not valid YAML ({' '.join(str(error).split())})") from None


def load_yaml(root: Path, path: Path) -> Any:
    """Load an MMF YAML file and its ``includes``, which are relative to ``mmf`` or to the file."""
    from omegaconf import OmegaConf

    path = follow_text_links(path)
    try:
        text = path.read_text(encoding="utf-8")
        config: Any = parse_yaml(_ENV_INTERPOLATION.sub(r"${oc.env:\1,'\2'}", text))
    except OSError as error:
        raise MmfEnvironmentError(f"{path}: cannot be read ({error.strerror})", hint="run `mmfw setup`") from None
    included = []
    for name in config.pop("includes", None) or []:
        mmf_file = follow_text_links(root / "mmf" / name)
        included.append(load_yaml(root, mmf_file if mmf_file.is_file() else path.parent / name))
    return OmegaConf.merge(*included, config)

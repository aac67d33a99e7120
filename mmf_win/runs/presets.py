"""Presets: small YAML files that name an MMF configuration and what to change in it.

A preset holds

``title``      one line for people,
``model``      MMF's name of the model,
``config``     MMF's configuration to start from, as a path in MMF's tree or beside the preset,
``settings``   a tree of MMF's keys, merged over that configuration,
``extends``    another preset (a name, or a file beside this one) to start from,
``offline``    true when MMF must download nothing,
``zoo``        the key of its published fine-tuned weights in MMF's zoo,
``published``  what the paper reports, in percent; see :mod:`mmf_win.dataset.published_results`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from mmf_win.console import format_command, suggestion_hint
from mmf_win.dataset.coverage import is_user_dataset
from mmf_win.errors import UsageError
from mmf_win.paths import MmfPaths, expand_home, presets_dir, short_portable_name
from mmf_win.runs.request import RunRequest
from mmf_win.upstream.config import MMFW_GROUP, ConfigSpec, merge_settings, parse_yaml
from mmf_win.upstream.overrides import escape_interpolation

#: What helps where a preset is not there, or lacks something.
LIST_HINT = "`mmfw train --list` shows the presets, and which have published weights"

_KEY_TYPES: dict[str, type] = {
    **dict.fromkeys(("title", "model", "config", "extends", "zoo"), str),
    **dict.fromkeys(("settings", "published"), dict),
    "offline": bool,
}
_TYPE_NAMES = {str: "a text", bool: "true or false", dict: "a mapping of keys"}
_MMF_GROUPS = (
    "includes",
    "model_config",
    "dataset_config",
    "optimizer",
    "scheduler",
    "training",
    "evaluation",
)


@dataclass(frozen=True)
class Preset(ConfigSpec):
    """An experiment to run; the attributes are those of the file, and ``name`` is the file's stem.

    ``file`` is where the user's own lies.
    """

    name: str = ""
    file: str | None = None
    title: str = ""
    zoo: str | None = None
    published: dict[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    """The presets that come with mmfw, sorted."""
    return sorted(path.stem for path in presets_dir().glob("*.yaml"))


def load(name: str) -> Preset:
    """A preset by its name, or the user's own by its path. Raises UsageError where that is none."""
    path = _find_preset_file(name)
    values = _read_preset(path)
    if "model" not in values:
        hint = "a file in MMF's own format goes into a preset's 'config:', beside 'model:'"
        raise UsageError(f"{path}: a preset needs the key 'model'", hint=hint)
    values.pop("extends", None)
    file = None if path.parent == presets_dir() else str(path)
    return Preset(name=short_portable_name(path.stem), file=file, **values)


def build_request(preset: Preset, splits: dict[str, str], mmf_paths: MmfPaths) -> RunRequest:
    """What a run of a preset is asked for, before any option; ``splits`` as in :class:`RunRequest`."""
    return RunRequest(
        preset=preset.name,
        preset_file=preset.file,
        model=preset.model,
        config=preset.config,
        settings=preset.settings,
        preset_settings=preset.settings,
        splits=splits,
        data_dir=str(mmf_paths.data_dir),
        offline=preset.offline,
        published={} if is_user_dataset(mmf_paths.dataset) else preset.published,  # of such a set, nothing is
    )


def _find_preset_file(name: str) -> Path:
    shipped = presets_dir() / f"{name}.yaml"
    if shipped.parent == presets_dir() and shipped.is_file():
        return shipped
    path = expand_home(name)
    if path.is_file():
        return path.absolute()
    if (path / "request.json").is_file():
        resume = format_command("mmfw", "train", "--resume", name)
        raise UsageError(f"{name} is a run, not a preset", hint=f"`{resume}`")
    if path.is_dir():
        raise UsageError(f"{name} is a folder, not a preset", hint=LIST_HINT)
    is_file = path.suffix in (".yaml", ".yml")
    message = f"{name}: there is no such file" if is_file else f"there is no preset named {name}"
    raise UsageError(message, hint=suggestion_hint(path.stem, names(), 0.4) + LIST_HINT)


def _read_preset(path: Path, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The keys of a preset and of those that it extends; ``below`` are the presets that extend it."""
    if path in extended_by:
        raise UsageError(f"{path}: the preset extends itself")
    values = _load_yaml(path)
    if not isinstance(values, dict):
        raise UsageError(f"{path}: a preset is a mapping of keys")
    preset = {str(key): value for key, value in values.items()}
    for key, value in preset.items():
        if key not in _KEY_TYPES:
            raise UsageError(f"{path}: unknown key '{key}'", hint=_unknown_key_hint(path, preset, key))
        if not isinstance(value, (_KEY_TYPES[key], NoneType)):
            raise UsageError(f"{path}: '{key}' must be {_TYPE_NAMES[_KEY_TYPES[key]]}")
    for key in ("settings", "published"):
        preset[key] = preset.get(key) or {}
    if MMFW_GROUP in preset["settings"]:
        message = f"{path}: '{MMFW_GROUP}' in 'settings' is no group of MMF's keys"
        raise UsageError(message, hint="options set those")
    dotted_key = next((key for key in preset["settings"] if "." in str(key)), None)
    if dotted_key is not None:
        raise UsageError(f"{path}: 'settings' is a tree; write {dotted_key} as nested keys")
    group = next(
        (k for k in _MMF_GROUPS if not isinstance(preset["settings"].get(k, {}), (dict, list))), None
    )
    if group is not None:
        raise UsageError(f"{path}: '{group}' in 'settings' must be a mapping of keys")
    config = preset.get("config")
    if config and (path.parent / config).is_file():
        preset["config"] = str((path.parent / config).absolute())
    env = preset["settings"].get("env")
    user_dir = env.get("user_dir") if isinstance(env, dict) else None
    if isinstance(user_dir, str) and user_dir and (path.parent / user_dir).exists():
        env["user_dir"] = escape_interpolation((path.parent / user_dir).absolute())
    if "extends" not in preset:
        return preset
    base_name = str(preset["extends"])
    base_path = path.parent / base_name
    base = _read_preset(
        base_path if base_path.is_file() else _find_preset_file(base_name), (*extended_by, path)
    )
    preset = {key: value for key, value in preset.items() if value not in (None, {})}
    try:
        settings = merge_settings(base["settings"], preset.get("settings", {}))
    except TypeError as error:
        raise UsageError(f"{path}: 'settings' do not fit those of {base_name}: {error}") from None
    return {**base, **preset, "settings": settings}


def _unknown_key_hint(path: Path, values: Mapping[str, Any], key: str) -> str:
    """What to write instead of an unknown key."""
    if values.keys() & set(_MMF_GROUPS):
        if values.keys() & {"model", "extends"}:
            return f"MMF's keys stand below 'settings', as in settings: {{ {key}: ... }}"
        models = values.get("model_config")
        model = next(iter(models), "MODEL") if isinstance(models, Mapping) else "MODEL"
        return (
            "this is a configuration of MMF's own; a preset is a file of its own that names it, with the "
            f"lines\n  model: {model}\n  config: {path}"
        )
    return f"{suggestion_hint(key, _KEY_TYPES)}a preset has the keys {', '.join(_KEY_TYPES)}"


def _load_yaml(path: Path) -> Any:
    from omegaconf import OmegaConf

    try:
        return OmegaConf.to_container(parse_yaml(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        message = f"{path}: not a text file, and a preset is one in YAML"
        hint = "`mmfw train --list` shows the presets; `mmfw convert --zip FILE` takes the archive"
        raise UsageError(message, hint=hint) from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None

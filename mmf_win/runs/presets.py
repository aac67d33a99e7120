"""Presets: small YAML files that name an MMF configuration and the settings to change in it.

Keys of a preset:

``title``      one-line description,
``model``      MMF's name of the model,
``config``     MMF configuration to start from: a path in MMF's tree, or relative to the preset,
``settings``   MMF settings, merged into that configuration,
``extends``    preset to start from: a name, or a file in the same folder,
``offline``    ``true`` to forbid downloads,
``zoo``        key of the published fine-tuned weights in MMF's zoo,
``published``  results reported in the paper, in percent; see :mod:`mmf_win.dataset.published_results`.
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

#: Hint for a missing or incomplete preset.
LIST_HINT = "list presets and published weights with `mmfw train --list`"

_KEY_TYPES: dict[str, type] = {
    **dict.fromkeys(("title", "model", "config", "extends", "zoo"), str),
    **dict.fromkeys(("settings", "published"), dict),
    "offline": bool,
}
_TYPE_NAMES = {str: "a string", bool: "true or false", dict: "a mapping"}
_MMF_GROUPS = ("includes", "model_config", "dataset_config", "optimizer", "scheduler", "training", "evaluation")


@dataclass(frozen=True)
class Preset(ConfigSpec):
    """An experiment to run; the attributes are those of the file.

    Attributes:
        name: Stem of the file, shortened to a portable name.
        file: Path of a user's preset; ``None`` for one of mmfw's.
        title: One-line description.
        zoo: Key of the published weights in MMF's zoo.
        published: Results of the paper, in percent.
    """

    name: str = ""
    file: str | None = None
    title: str = ""
    zoo: str | None = None
    published: dict[str, Any] = field(default_factory=dict)


def list_presets() -> list[str]:
    """Return the names of mmfw's presets, sorted."""
    return sorted(path.stem for path in presets_dir().glob("*.yaml"))


def load_preset(name: str) -> Preset:
    """Load one of mmfw's presets by name, or a user's preset by path.

    Returns:
        The preset.

    Raises:
        UsageError: There is no such preset, or the file is invalid.
    """
    path = _find_preset_file(name)
    values = _read_preset(path)
    if "model" not in values:
        hint = "write a preset with 'model: NAME'; a configuration of MMF goes under 'config:' in it"
        raise UsageError(f"{path}: the key 'model' is missing", hint=hint)
    values.pop("extends", None)
    file = None if path.parent == presets_dir() else str(path)
    return Preset(name=short_portable_name(path.stem), file=file, **values)


def build_request(preset: Preset, splits: dict[str, str], mmf_paths: MmfPaths) -> RunRequest:
    """Create the request of a run of a preset, before options are applied.

    Args:
        preset: The preset.
        splits: Annotation files by slot (see :class:`RunRequest`).
        mmf_paths: Folders of MMF.

    Returns:
        The request.
    """
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
        published_scores={} if is_user_dataset(mmf_paths.dataset) else preset.published,  # not of such datasets
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
        raise UsageError(f"{name} is a run, not a preset", hint=f"resume it with `{resume}`")
    if path.is_dir():
        raise UsageError(f"{name} is a folder, not a preset", hint=LIST_HINT)
    is_file = path.suffix in (".yaml", ".yml")
    message = f"{name}: file not found" if is_file else f"no preset named {name}"
    raise UsageError(message, hint=suggestion_hint(path.stem, list_presets(), 0.4) + LIST_HINT)


def _read_preset(path: Path, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read the keys of a preset, merged with those of the presets that it extends.

    Args:
        path: File of the preset.
        extended_by: Presets that extend this one.

    Returns:
        The keys.

    Raises:
        UsageError: The file is invalid, or the preset extends itself.
    """
    if path in extended_by:
        raise UsageError(f"{path}: the preset extends itself")
    preset = _read_own_keys(path)
    if "extends" not in preset:
        return preset
    base_name = str(preset["extends"])
    base_path = path.parent / base_name
    base = _read_preset(base_path if base_path.is_file() else _find_preset_file(base_name), (*extended_by, path))
    preset = {key: value for key, value in preset.items() if value not in (None, {})}
    try:
        settings = merge_settings(base["settings"], preset.get("settings", {}))
    except TypeError as error:
        raise UsageError(f"{path}: 'settings' cannot be merged into those of {base_name}: {error}") from None
    return {**base, **preset, "settings": settings}


def _read_own_keys(path: Path) -> dict[str, Any]:
    """Read and check the keys of a preset file; raise ``UsageError`` if it is invalid."""
    values = _load_yaml(path)
    if not isinstance(values, dict):
        raise UsageError(f"{path}: a preset must be a mapping")
    preset = {str(key): value for key, value in values.items()}
    for key, value in preset.items():
        if key not in _KEY_TYPES:
            raise UsageError(f"{path}: unknown key '{key}'", hint=_unknown_key_hint(path, preset, key))
        if not isinstance(value, (_KEY_TYPES[key], NoneType)):
            raise UsageError(f"{path}: '{key}' must be {_TYPE_NAMES[_KEY_TYPES[key]]}")
    for key in ("settings", "published"):
        preset[key] = preset.get(key) or {}
    if MMFW_GROUP in preset["settings"]:
        message = f"{path}: '{MMFW_GROUP}' in 'settings' is not a group of MMF"
        raise UsageError(message, hint="use the options of `mmfw train`")
    dotted_key = next((key for key in preset["settings"] if "." in str(key)), None)
    if dotted_key is not None:
        raise UsageError(f"{path}: 'settings' is a tree; write {dotted_key} as nested keys")
    group = next((k for k in _MMF_GROUPS if not isinstance(preset["settings"].get(k, {}), (dict, list))), None)
    if group is not None:
        raise UsageError(f"{path}: '{group}' in 'settings' must be a mapping")
    config = preset.get("config")
    if config and (path.parent / config).is_file():
        preset["config"] = str((path.parent / config).absolute())
    env = preset["settings"].get("env")
    user_dir = env.get("user_dir") if isinstance(env, dict) else None
    if isinstance(user_dir, str) and user_dir and (path.parent / user_dir).exists():
        env["user_dir"] = escape_interpolation((path.parent / user_dir).absolute())
    return preset


def _unknown_key_hint(path: Path, values: Mapping[str, Any], key: str) -> str:
    """Return the hint for an unknown key."""
    if values.keys() & set(_MMF_GROUPS):
        if values.keys() & {"model", "extends"}:
            return f"put keys of MMF under 'settings', as in settings: {{ {key}: ... }}"
        models = values.get("model_config")
        model = next(iter(models), "MODEL") if isinstance(models, Mapping) else "MODEL"
        return (
            "the file is a configuration of MMF; write a preset that names it, with the "
            f"lines\n  model: {model}\n  config: {path}"
        )
    return f"{suggestion_hint(key, _KEY_TYPES)}valid keys: {', '.join(_KEY_TYPES)}"


def _load_yaml(path: Path) -> Any:
    from omegaconf import OmegaConf

    try:
        return OmegaConf.to_container(parse_yaml(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        message = f"{path}: not a YAML file"
        hint = "list the presets with `mmfw train --list`, or convert an archive with `mmfw convert --zip FILE`"
        raise UsageError(message, hint=hint) from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None

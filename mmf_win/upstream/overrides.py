"""Apply ``KEY=VALUE`` overrides and preset settings to MMF's configuration, or reject them.

MMF reports a wrong key or value only after a minute of loading, or ignores it silently. So a key must exist
in its configuration, and the value must match the existing one. Paths are escaped so that the configuration
keeps them unchanged, whatever characters they contain.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mmf_win.console import format_command, summarize_list
from mmf_win.errors import UsageError
from mmf_win.upstream.versions import versions_with_key

_PRESET_HINT = "choose a preset instead; `mmfw train --list` shows them"
#: Keys and groups of keys that mmfw sets itself or does not support, with the hint what to use instead.
RESERVED_KEYS = {
    "config": _PRESET_HINT,
    "model": _PRESET_HINT,
    "dataset": "remove this key; mmfw supports only Hateful Memes",
    "datasets": "remove this key; mmfw supports only Hateful Memes",
    "dataset_config.hateful_memes.data_dir": "use --data-dir",
    "env.cache_dir": "set the environment variable MMF_CACHE_DIR",
    "env.save_dir": "use --save-dir; each run has its own folder in it",
    "env.data_dir": "use --data-dir",
    "env.report_dir": "remove this key; reports are saved in the run's folder",
    "training.trainer": "remove this key; mmfw uses its own trainer",
    "training.callbacks": "set it in a preset, where mmfw adds its own callbacks",
    "training.exit_on_nan_losses": "remove this key; a NaN loss always ends the run",
    "trainer": "remove this key; it is only used by PyTorch Lightning, which mmfw does not support",
    "mmfw.teacher": "use `mmfw train --teacher FILE`",
    "mmfw.teacher_weight": "use `mmfw train --teacher-weight SHARE`",
    "checkpoint.max_to_keep": "use `mmfw train --keep-checkpoints N`",
}

_BETAS_KEY = "optimizer.params.betas"
_INTERVAL_KEYS = ("checkpoint_interval", "evaluation_interval", "log_interval", "update_frequency")
_COUNT_KEYS = ("batch_size", "max_updates", "max_epochs", "warmup_iterations")
# Minimum, exclusive maximum, and whether only integers are valid.
_NON_NEGATIVE, _NON_NEGATIVE_INT, _POSITIVE_INT = ((0, math.inf, False), (0, math.inf, True), (1, math.inf, True))
_RANGES: dict[str, tuple[float, float, bool]] = {
    **{f"optimizer.params.{name}": _NON_NEGATIVE for name in ("lr", "eps", "weight_decay", "momentum")},
    _BETAS_KEY: (0, 1, False),
    "scheduler.params.num_warmup_steps": _NON_NEGATIVE_INT,
    "scheduler.params.num_training_steps": _POSITIVE_INT,
    **{f"training.{name}": _NON_NEGATIVE for name in ("max_grad_l2_norm", "lr_ratio", "warmup_factor")},
    **{f"training.{name}": _NON_NEGATIVE_INT for name in ("num_workers", "early_stop.patience")},
    **{f"training.{name}": _POSITIVE_INT for name in (*_INTERVAL_KEYS, *_COUNT_KEYS)},
    "training.seed": (-1, 2**32, True),  # -1 means a random seed; the upper limit is numpy's
}
_NULLABLE_KEYS = {"training.max_updates", "training.max_epochs", "training.seed", "training.max_grad_l2_norm"}
_RUN_TYPES = {"train", "val", "test", "inference"}
# Groups to which user code adds keys, and groups whose keys the user chooses.
_USER_CODE_GROUPS = ("model_config.", "dataset_config.")
_OPEN_GROUPS = {"checkpoint.pretrained_state_mapping", "training.wandb"}
#: Keys that MMF reads although its own configuration does not contain them.
_KEYS_WITHOUT_DEFAULT = {"training.max_grad_l2_norm"}
_INTERPOLATION = re.compile(r"(\\*)\$\{")
_MIN_SIMILARITY = 0.85  # of a key and its misspelling


def apply_overrides(config: Any, overrides: Sequence[str], *, version: str, has_user_code: bool = False) -> None:
    """Apply ``KEY=VALUE`` overrides to an OmegaConf configuration.

    Args:
        config: Configuration, changed in place.
        overrides: Overrides, in order.
        version: MMF's version.
        has_user_code: User code may add models and datasets whose keys mmfw cannot check.

    Raises:
        UsageError: MMF would reject an override, or would not do what it says.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    for override in overrides:
        plain: Any = OmegaConf.to_container(config)  # includes earlier overrides
        key, _, text = override.partition("=")
        value: Any = text
        may_be_new = has_user_code and key.startswith(_USER_CODE_GROUPS)
        try:
            # An existing path is taken literally, even if YAML would read it as something else.
            is_path = Path(text).is_absolute() and Path(text).exists()
            yaml_text = to_yaml_scalar(escape_interpolation(text)) if is_path else text
            parsed: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={yaml_text}"]))
            value = parsed["value"]
            current = _current_value(plain, key, version, may_be_new=may_be_new)
            if "None" in (value if isinstance(value, list) else [value]):
                null = re.sub(r"\bNone\b", "null", text)
                raise UsageError(f"{override}: None is read as text", hint=_format_hint(key, null))
            _require_valid_value(key, current, value)
            OmegaConf.update(config, key, value, merge=False, force_add=True)
        except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"{override}: invalid value ({reason})", hint=_format_hint(key, repr(value))) from None


def require_valid_settings(config: Any, settings: Any, version: str, *, has_user_code: bool = False) -> None:
    """Check the settings of a preset; it may add keys that code reads.

    Args:
        config: MMF's own configuration of the experiment, as plain values.
        settings: Settings, as plain values.
        version: MMF's version.
        has_user_code: User code may add keys that mmfw cannot check.

    Raises:
        UsageError: MMF would reject or ignore a key; the message names it.
    """
    for key, value in iter_leaves(settings) if settings else ():
        current = _current_value(config, key, version, in_preset=True, may_be_new=has_user_code)
        if not (isinstance(current, Mapping) and (value is None or isinstance(value, Mapping) or not current)):
            _require_valid_value(key, current, value)


def _current_value(config: Any, key: str, version: str, *, in_preset: bool = False, may_be_new: bool = False) -> Any:
    """Return the value of a key in a configuration, or ``None`` for a new key that may be added."""
    path, node = "", config
    for field in key.replace("[", ".[").split("."):
        if isinstance(node, list):
            node = _list_item(key, path, field, node)
        elif isinstance(node, Mapping):
            if field not in node:
                similar = get_close_matches(field, map(str, node), n=1, cutoff=_MIN_SIMILARITY)
                may_be_added = in_preset or (_can_add_keys(path, node) and not field.startswith("["))
                may_be_added = may_be_added or key in _KEYS_WITHOUT_DEFAULT
                if versions_with_key(key) and not key.startswith(tuple(_OPEN_GROUPS)):  # of another version
                    may_be_added = False
                if may_be_new or (may_be_added and not similar):
                    return None
                raise _unknown_key_error(config, key, version)
            node = node[field]
        elif (in_preset and node is None) or "${" in str(node):
            return None
        else:
            raise UsageError(f"{key}: {path} has no keys", hint=f"set {path}=VALUE")
        path += field if field.startswith("[") or not path else f".{field}"
    return node


def _format_hint(key: str, value: str) -> str:
    """Return the hint to set a key to a value, quoted for the shell."""
    return f"write `{format_command(f'{key}={value}')}`"


def _list_item(key: str, list_key: str, field: str, items: Sequence[Any]) -> Any:
    """Return the list item that a key such as ``train[0]`` names.

    Raises:
        UsageError: There is no such item.
    """
    index = field[1:-1] if field.startswith("[") else ""
    if index.isdecimal() and int(index) < len(items):
        return items[int(index)]
    first_item_hint = f"set the first item with `{list_key}[0]=VALUE`, or " if items else ""
    message = f"{key}: {list_key} has no item {field.strip('[]')!r} ({len(items)} items)"
    list_hint = "set the whole list with `" + format_command(f"{list_key}=['VALUE']") + "`"
    raise UsageError(message, hint=first_item_hint + list_hint)


def _can_add_keys(group: str, members: Mapping[str, Any]) -> bool:
    """Return whether a group may get keys that MMF's configuration does not list.

    Such keys are passed to a class, or the group is meant for names that the user chooses.
    """
    are_parameters = "params" in group.split(".") or group.startswith(_USER_CODE_GROUPS)
    return are_parameters or group in _OPEN_GROUPS or (bool(group) and not members)


def _require_valid_value(key: str, current: Any, value: Any) -> None:
    """Reject a value whose type differs from the current one, and a number out of range.

    Raises:
        UsageError: The value is invalid.
    """
    if isinstance(current, Mapping):
        keys = summarize_list([f"{key}.{name}" for name in current], 5) or f"{key}.NAME"
        raise UsageError(f"{key}: expected a group of keys, got {value!r}", hint=f"set a key in it: {keys}")
    if isinstance(value, str) and "${" in value:
        return
    if key == "run_type" and not set(re.split(r"[_+]", str(value))) <= _RUN_TYPES:
        run_types = ", ".join(sorted(_RUN_TYPES))
        raise UsageError(f"run_type: invalid value {value!r}", hint=f"join some of {run_types} with _")
    allowed = _RANGES.get(key.partition("[")[0])
    if value is None and (allowed is None or key in _NULLABLE_KEYS):
        return
    # Instead of a list of the dataset's files, MMF accepts a single path.
    is_path = isinstance(value, str) and key.startswith("dataset_config.")
    if isinstance(current, list) and not isinstance(value, list) and not is_path:
        raise UsageError(f"{key}: expected a list, got {value!r}", hint=f"write `{key}=[{value!r}]`")
    if isinstance(current, bool) and value not in (0, 1):
        raise UsageError(f"{key}: expected true or false, got {value!r}", hint=f"write `{key}=true` or `{key}=false`")
    if _is_number(current) and not _is_number(value):
        raise UsageError(f"{key}: expected a number, got {value!r}", hint=f"write `{key}=NUMBER`; it is now {current}")
    if key == _BETAS_KEY and not (isinstance(value, list) and len(value) == 2):
        betas_hint = _format_hint(key, "[0.9,0.999]")
        raise UsageError(f"{key}: expected a list of two numbers, got {value!r}", hint=betas_hint)
    for number in value if key == _BETAS_KEY else [value]:
        if allowed and not _is_in_range(number, *allowed):
            minimum, limit, integer = allowed
            is_whole = isinstance(number, float) and number.is_integer() and _is_in_range(int(number), *allowed)
            hint = _format_hint(key, str(int(number))) if is_whole else None
            expected = f"a {'whole ' * integer}number of {minimum} or more"
            upper_limit = f" and below {limit}" * (limit < math.inf)
            raise UsageError(f"{key}: {number!r} is not {expected}{upper_limit}", hint=hint)


def _is_in_range(value: Any, minimum: float, limit: float, must_be_whole: bool) -> bool:
    return _is_number(value) and minimum <= value < limit and (isinstance(value, int) or not must_be_whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unknown_key_error(config: Any, key: str, version: str) -> UsageError:
    """Return the error for a key that MMF's configuration does not have, with suggestions."""
    from mmf_win.upstream.sources import SOURCES

    message = f"MMF {version} has no key {key}"
    other = next((source for source in SOURCES if source.version in versions_with_key(key)), None)
    if other and other.version != version:
        hint = f"run `{format_command('mmfw', 'setup', '--mmf', other.name)}`"
        return UsageError(f"{message}; MMF {other.version} has it", hint=hint)
    known_keys = [other for other, _ in iter_leaves(config)]
    name = key.rpartition(".")[2]
    similar = [other for other in known_keys if other.rpartition(".")[2] == name]
    similar += get_close_matches(key, known_keys, n=3)
    return UsageError(message, hint=f"did you mean {', '.join(dict.fromkeys(similar[:3]))}?" if similar else None)


def iter_leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a settings tree with keys such as ``training.seed``; an empty group is a value."""
    if not isinstance(node, Mapping) or not node:
        yield prefix, node
        return
    for name, value in node.items():
        yield from iter_leaves(value, f"{prefix}.{name}" if prefix else str(name))


def escape_interpolation(value: Any) -> Any:
    """Escape OmegaConf interpolations (``${...}``) in a string or path, or in all values of a tree."""
    if isinstance(value, dict):
        return {key: escape_interpolation(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape_interpolation(item) for item in value]
    return _INTERPOLATION.sub(r"\1\1\\${", str(value)) if isinstance(value, (Path, str)) else value


def to_yaml_scalar(value: object) -> str:
    """Return a value as JSON that is also valid YAML and, for a string, a valid Python literal.

    YAML rejects some characters that JSON allows, and escapes those above 16 bits differently.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[^ -~]", lambda match: f"\\U{ord(match[0]):08x}", text)


def split_paths(text: str, base: Path | str = "") -> list[str]:
    """Split a text at the commas between paths, unless the whole text is an existing path."""
    with suppress(OSError):  # several paths together may exceed the length limit of a path
        if Path(base, text).exists():
            return [text]
    return text.split(",")

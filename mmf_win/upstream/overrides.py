"""``KEY=VALUE`` overrides and the settings of presets, set in MMF's configuration or refused.

MMF finds a wrong key or value only after a minute of loading, or drops it without a word. So a key must be in
its configuration, and the value fit the one that is there. Paths are written so that the configuration means
them, whatever characters they have.
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

_PRESET_HINT = "a preset names it; `mmfw train --list` shows the presets"
#: Keys, and groups of keys, that mmfw sets itself or does not support → what to use instead.
RESERVED_KEYS = {
    "config": _PRESET_HINT,
    "model": _PRESET_HINT,
    "dataset": "mmfw knows Hateful Memes only",
    "datasets": "mmfw knows Hateful Memes only",
    "dataset_config.hateful_memes.data_dir": "use --data-dir",
    "env.cache_dir": "use the variable MMF_CACHE_DIR",
    "env.save_dir": "every run is kept in a folder of its own; use --save-dir",
    "env.data_dir": "use --data-dir",
    "env.report_dir": "the reports lie in the run's folder",
    "training.trainer": "mmfw's own trainer watches over the run",
    "training.callbacks": "put them into a preset's settings, where mmfw adds its own to them",
    "training.exit_on_nan_losses": "a loss that is not a number always ends the run",
    "trainer": "only PyTorch Lightning reads it, which mmfw does not use",
    "mmfw.teacher": "use mmfw train --teacher FILE",
    "mmfw.teacher_weight": "use mmfw train --teacher-weight SHARE",
    "checkpoint.max_to_keep": "use mmfw train --keep-checkpoints N",
}

_BETAS_KEY = "optimizer.params.betas"
_INTERVAL_KEYS = ("checkpoint_interval", "evaluation_interval", "log_interval", "update_frequency")
_COUNT_KEYS = ("batch_size", "max_updates", "max_epochs", "warmup_iterations")
# The least of each, what is too much, and whether only whole numbers are meant.
_NON_NEGATIVE, _NON_NEGATIVE_INT, _POSITIVE_INT = (
    (0, math.inf, False),
    (0, math.inf, True),
    (1, math.inf, True),
)
_RANGES: dict[str, tuple[float, float, bool]] = {
    **{f"optimizer.params.{name}": _NON_NEGATIVE for name in ("lr", "eps", "weight_decay", "momentum")},
    _BETAS_KEY: (0, 1, False),
    "scheduler.params.num_warmup_steps": _NON_NEGATIVE_INT,
    "scheduler.params.num_training_steps": _POSITIVE_INT,
    **{f"training.{name}": _NON_NEGATIVE for name in ("max_grad_l2_norm", "lr_ratio", "warmup_factor")},
    **{f"training.{name}": _NON_NEGATIVE_INT for name in ("num_workers", "early_stop.patience")},
    **{f"training.{name}": _POSITIVE_INT for name in (*_INTERVAL_KEYS, *_COUNT_KEYS)},
    "training.seed": (-1, 2**32, True),  # -1 stands for any, and numpy takes no more
}
_NULLABLE_KEYS = {"training.max_updates", "training.max_epochs", "training.seed", "training.max_grad_l2_norm"}
_RUN_TYPES = {"train", "val", "test", "inference"}
# What the user's own code adds keys to, and groups whose keys are the user's to name.
_USER_CODE_GROUPS = ("model_config.", "dataset_config.")
_OPEN_GROUPS = {"checkpoint.pretrained_state_mapping", "training.wandb"}
#: The keys that MMF reads and that are not in its own configuration.
_KEYS_WITHOUT_DEFAULT = {"training.max_grad_l2_norm"}
_INTERPOLATION = re.compile(r"(\\*)\$\{")
_MIN_SIMILARITY = 0.85  # how much a key and its misspelling have in common


def apply_overrides(
    config: Any, overrides: Sequence[str], *, version: str, has_user_code: bool = False
) -> None:
    """Set what the overrides ``KEY=VALUE`` say in OmegaConf's ``config``, for MMF of a version.

    With ``own_code``, the user's own may bring models and datasets whose keys nobody knows here. Raises
    UsageError where MMF would refuse an override, or would not do what it says.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    for override in overrides:
        plain: Any = OmegaConf.to_container(config)  # with what earlier ones have set
        key, _, text = override.partition("=")
        value: Any = text
        may_be_new = has_user_code and key.startswith(_USER_CODE_GROUPS)
        try:
            # A path that is there means itself, whatever YAML makes of its name.
            is_path = Path(text).is_absolute() and Path(text).exists()
            word = to_yaml_scalar(escape_interpolation(text)) if is_path else text
            read: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={word}"]))
            value = read["value"]
            before = _current_value(plain, key, version, may_be_new=may_be_new)
            if "None" in (value if isinstance(value, list) else [value]):
                null = re.sub(r"\bNone\b", "null", text)
                raise UsageError(f"{override}: None is read as a text", hint=f"write {key}={null}")
            _require_valid_value(key, before, value)
            OmegaConf.update(config, key, value, merge=False, force_add=True)
        except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            quoted = format_command(f"{key}={value!r}")
            raise UsageError(f"{override}: not a value that MMF can read ({reason})", hint=quoted) from None


def require_valid_settings(config: Any, settings: Any, version: str, *, has_user_code: bool = False) -> None:
    """Refuse settings of a preset that MMF would refuse or drop; it may add keys that code reads.

    Both trees are plain values; ``config`` is MMF's own of the experiment. The UsageError names the key.
    """
    for key, value in iter_leaves(settings) if settings else ():
        before = _current_value(config, key, version, in_preset=True, may_be_new=has_user_code)
        if not (isinstance(before, Mapping) and (value is None or isinstance(value, Mapping) or not before)):
            _require_valid_value(key, before, value)


def _current_value(
    config: Any, key: str, version: str, *, in_preset: bool = False, may_be_new: bool = False
) -> Any:
    """The value of a key in a configuration; None for a new one that may be added, and is no misspelling."""
    here, node = "", config
    for field in key.replace("[", ".[").split("."):
        if isinstance(node, list):
            node = _list_item(key, here, field, node)
        elif isinstance(node, Mapping):
            if field not in node:
                near = get_close_matches(field, map(str, node), n=1, cutoff=_MIN_SIMILARITY)
                may_be_added = in_preset or (_can_add_keys(here, node) and not field.startswith("["))
                may_be_added = may_be_added or key in _KEYS_WITHOUT_DEFAULT
                if versions_with_key(key) and not key.startswith(tuple(_OPEN_GROUPS)):  # of another MMF
                    may_be_added = False
                if may_be_new or (may_be_added and not near):
                    return None
                raise _unknown_key_error(config, key, version)
            node = node[field]
        elif (in_preset and node is None) or "${" in str(node):
            return None
        else:
            raise UsageError(f"{key}: {here} has no keys below it", hint=f"{here}=VALUE")
        here += field if field.startswith("[") or not here else f".{field}"
    return node


def _list_item(key: str, list_key: str, field: str, items: Sequence[Any]) -> Any:
    """The item of a list that a key names, as in ``train[0]``."""
    index = field[1:-1] if field.startswith("[") else ""
    if index.isdecimal() and int(index) < len(items):
        return items[int(index)]
    first = f"{list_key}[0]=VALUE sets the first; " if items else ""
    message = f"{key}: {list_key} has {len(items)} items and none numbered {field.strip('[]')!r}"
    raise UsageError(message, hint=f"{first}the whole list: " + format_command(f"{list_key}=['VALUE']"))


def _can_add_keys(group: str, members: Mapping[str, Any]) -> bool:
    """Whether a group's keys go to a class of which MMF's configuration need not name all."""
    of_class = "params" in group.split(".") or group.startswith(_USER_CODE_GROUPS)
    return of_class or group in _OPEN_GROUPS or (bool(group) and not members)


def _require_valid_value(key: str, current: Any, value: Any) -> None:
    """Refuse a value of another kind than the one before, and a number that cannot be meant."""
    if isinstance(current, Mapping):
        below = summarize_list([f"{key}.{name}" for name in current], 5) or f"{key}.NAME"
        raise UsageError(f"{key}: {value!r} in place of a group of keys", hint=f"set a key in it: {below}")
    if isinstance(value, str) and "${" in value:
        return
    if key == "run_type" and not set(re.split(r"[_+]", str(value))) <= _RUN_TYPES:
        made_of = ", ".join(sorted(_RUN_TYPES))
        raise UsageError(f"run_type: MMF knows no {value!r}", hint=f"it is made of {made_of}")
    allowed = _RANGES.get(key.partition("[")[0])
    if value is None and (allowed is None or key in _NULLABLE_KEYS):
        return
    # For a list of files of the dataset, MMF takes the path of one.
    is_path = isinstance(value, str) and key.startswith("dataset_config.")
    if isinstance(current, list) and not isinstance(value, list) and not is_path:
        raise UsageError(f"{key}: {value!r} in place of a list", hint=f"write [{value!r}]")
    if isinstance(current, bool) and value not in (0, 1):
        raise UsageError(f"{key}: {value!r} is neither true nor false", hint=f"MMF's own is {current}")
    if _is_number(current) and not _is_number(value):
        raise UsageError(f"{key}: {value!r} is no number", hint=f"MMF's own is {current}")
    if key == _BETAS_KEY and not (isinstance(value, list) and len(value) == 2):
        raise UsageError(f"{key}: {value!r} is not a list of two numbers", hint=f"write {key}=[0.9,0.999]")
    for number in value if key == _BETAS_KEY else [value]:
        if allowed and not _is_in_range(number, *allowed):
            least, end, whole = allowed
            is_whole = (
                isinstance(number, float) and number.is_integer() and _is_in_range(int(number), *allowed)
            )
            hint = f"write {key}={int(number)}" if is_whole else None
            what = f"a {'whole ' * whole}number of {least} or more" + f" and below {end}" * (end < math.inf)
            raise UsageError(f"{key}: {number!r} is not {what}", hint=hint)


def _is_in_range(value: Any, minimum: float, limit: float, must_be_whole: bool) -> bool:
    return _is_number(value) and minimum <= value < limit and (isinstance(value, int) or not must_be_whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unknown_key_error(config: Any, key: str, version: str) -> UsageError:
    """The error that MMF's configuration has no such key, with what may be meant."""
    from mmf_win.upstream.sources import SOURCES

    message = f"MMF {version} has no key {key}"
    other = next((source for source in SOURCES if source.version in versions_with_key(key)), None)
    if other and other.version != version:
        hint = f"run `{format_command('mmfw', 'setup', '--mmf', other.name)}`"
        return UsageError(f"{message}; {other.version} has", hint=hint)
    known = [other for other, _ in iter_leaves(config)]
    name = key.rpartition(".")[2]
    near = [other for other in known if other.rpartition(".")[2] == name]
    near += get_close_matches(key, known, n=3)
    return UsageError(message, hint=f"did you mean {', '.join(dict.fromkeys(near[:3]))}?" if near else None)


def iter_leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a tree by their keys, as ``training.seed``; a group without keys is one, too."""
    if not isinstance(node, Mapping) or not node:
        yield prefix, node
        return
    for name, value in node.items():
        yield from iter_leaves(value, f"{prefix}.{name}" if prefix else str(name))


def escape_interpolation(value: Any) -> Any:
    """A path or text as OmegaConf's, which takes ``${x}`` for the value of a key; of a tree, each in it."""
    if isinstance(value, dict):
        return {key: escape_interpolation(each) for key, each in value.items()}
    if isinstance(value, list):
        return [escape_interpolation(each) for each in value]
    return _INTERPOLATION.sub(r"\1\1\\${", str(value)) if isinstance(value, (Path, str)) else value


def to_yaml_scalar(value: object) -> str:
    """A value as JSON that is read alike as YAML, and of a text as Python.

    YAML refuses some characters that JSON takes, and has other escapes for those beyond 16 bits.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", text)


def split_paths(text: str, base: Path | str = "") -> list[str]:
    """The paths in a text, which MMF sets apart with commas; they may be in one path's name as well."""
    with suppress(OSError):  # many names in a row are longer than one may be
        if Path(base, text).exists():
            return [text]
    return text.split(",")

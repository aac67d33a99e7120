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
from mmf_win.upstream.versions import versions_with

_IN_THE_PRESET = "a preset names it; `mmfw train --list` shows the presets"
#: Keys, and groups of keys, that mmfw sets itself or does not support → what to use instead.
RESERVED = {
    "config": _IN_THE_PRESET,
    "model": _IN_THE_PRESET,
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

_BETAS = "optimizer.params.betas"
_INTERVALS = ("checkpoint_interval", "evaluation_interval", "log_interval", "update_frequency")
_COUNTS = ("batch_size", "max_updates", "max_epochs", "warmup_iterations")
# The least of each, what is too much, and whether only whole numbers are meant.
_FROM_0, _WHOLE, _COUNT = (0, math.inf, False), (0, math.inf, True), (1, math.inf, True)
_RANGES: dict[str, tuple[float, float, bool]] = {
    **{f"optimizer.params.{name}": _FROM_0 for name in ("lr", "eps", "weight_decay", "momentum")},
    _BETAS: (0, 1, False),
    "scheduler.params.num_warmup_steps": _WHOLE,
    "scheduler.params.num_training_steps": _COUNT,
    **{f"training.{name}": _FROM_0 for name in ("max_grad_l2_norm", "lr_ratio", "warmup_factor")},
    **{f"training.{name}": _WHOLE for name in ("num_workers", "early_stop.patience")},
    **{f"training.{name}": _COUNT for name in (*_INTERVALS, *_COUNTS)},
    "training.seed": (-1, 2**32, True),  # -1 stands for any, and numpy takes no more
}
_MAY_BE_NONE = {"training.max_updates", "training.max_epochs", "training.seed", "training.max_grad_l2_norm"}
_RUN_TYPES = {"train", "val", "test", "inference"}
# What the user's own code adds keys to, and groups whose keys are the user's to name.
_OF_CODE = ("model_config.", "dataset_config.")
_OPEN = {"checkpoint.pretrained_state_mapping", "training.wandb"}
#: The keys that MMF reads and that are not in its own configuration.
_WITHOUT_DEFAULT = {"training.max_grad_l2_norm"}
_INTERPOLATION = re.compile(r"(\\*)\$\{")
_ALMOST = 0.85  # how much a key and its misspelling have in common


def assign(config: Any, overrides: Sequence[str], *, version: str, own_code: bool = False) -> None:
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
        may_be_new = own_code and key.startswith(_OF_CODE)
        try:
            # A path that is there means itself, whatever YAML makes of its name.
            is_path = Path(text).is_absolute() and Path(text).exists()
            word = as_yaml(literal(text)) if is_path else text
            read: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={word}"]))
            value = read["value"]
            before = _value_there(plain, key, version, may_be_new=may_be_new)
            if "None" in (value if isinstance(value, list) else [value]):
                null = re.sub(r"\bNone\b", "null", text)
                raise UsageError(f"{override}: None is read as a text", hint=f"write {key}={null}")
            _require_fit(key, before, value)
            OmegaConf.update(config, key, value, merge=False, force_add=True)
        except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            quoted = format_command(f"{key}={value!r}")
            raise UsageError(f"{override}: not a value that MMF can read ({reason})", hint=quoted) from None


def require_usable(config: Any, settings: Any, version: str, *, own_code: bool = False) -> None:
    """Refuse settings of a preset that MMF would refuse or drop; it may add keys that code reads.

    Both trees are plain values; ``config`` is MMF's own of the experiment. The UsageError names the key.
    """
    for key, value in leaves(settings) if settings else ():
        before = _value_there(config, key, version, in_preset=True, may_be_new=own_code)
        if not (isinstance(before, Mapping) and (value is None or isinstance(value, Mapping) or not before)):
            _require_fit(key, before, value)


def _value_there(
    config: Any, key: str, version: str, *, in_preset: bool = False, may_be_new: bool = False
) -> Any:
    """The value of a key in a configuration; None for a new one that may be added, and is no misspelling."""
    here, node = "", config
    for field in key.replace("[", ".[").split("."):
        if isinstance(node, list):
            node = _item(key, here, field, node)
        elif isinstance(node, Mapping):
            if field not in node:
                near = get_close_matches(field, map(str, node), n=1, cutoff=_ALMOST)
                may_be_added = in_preset or (_is_open(here, node) and not field.startswith("["))
                may_be_added = may_be_added or key in _WITHOUT_DEFAULT
                if versions_with(key) and not key.startswith(tuple(_OPEN)):  # of another MMF
                    may_be_added = False
                if may_be_new or (may_be_added and not near):
                    return None
                raise _unknown_key(config, key, version)
            node = node[field]
        elif (in_preset and node is None) or "${" in str(node):
            return None
        else:
            raise UsageError(f"{key}: {here} has no keys below it", hint=f"{here}=VALUE")
        here += field if field.startswith("[") or not here else f".{field}"
    return node


def _item(key: str, here: str, field: str, items: Sequence[Any]) -> Any:
    """The item of a list that a key names, as in ``train[0]``."""
    index = field[1:-1] if field.startswith("[") else ""
    if index.isdecimal() and int(index) < len(items):
        return items[int(index)]
    first = f"{here}[0]=VALUE sets the first; " if items else ""
    message = f"{key}: {here} has {len(items)} items and none numbered {field.strip('[]')!r}"
    raise UsageError(message, hint=f"{first}the whole list: " + format_command(f"{here}=['VALUE']"))


def _is_open(group: str, known: Mapping[str, Any]) -> bool:
    """Whether a group's keys go to a class of which MMF's configuration need not name all."""
    of_class = "params" in group.split(".") or group.startswith(_OF_CODE)
    return of_class or group in _OPEN or (bool(group) and not known)


def _require_fit(key: str, before: Any, value: Any) -> None:
    """Refuse a value of another kind than the one before, and a number that cannot be meant."""
    if isinstance(before, Mapping):
        below = summarize_list([f"{key}.{name}" for name in before], 5) or f"{key}.NAME"
        raise UsageError(f"{key}: {value!r} in place of a group of keys", hint=f"set a key in it: {below}")
    if isinstance(value, str) and "${" in value:
        return
    if key == "run_type" and not set(re.split(r"[_+]", str(value))) <= _RUN_TYPES:
        made_of = ", ".join(sorted(_RUN_TYPES))
        raise UsageError(f"run_type: MMF knows no {value!r}", hint=f"it is made of {made_of}")
    allowed = _RANGES.get(key.partition("[")[0])
    if value is None and (allowed is None or key in _MAY_BE_NONE):
        return
    # For a list of files of the dataset, MMF takes the path of one.
    is_path = isinstance(value, str) and key.startswith("dataset_config.")
    if isinstance(before, list) and not isinstance(value, list) and not is_path:
        raise UsageError(f"{key}: {value!r} in place of a list", hint=f"write [{value!r}]")
    if isinstance(before, bool) and value not in (0, 1):
        raise UsageError(f"{key}: {value!r} is neither true nor false", hint=f"MMF's own is {before}")
    if _is_number(before) and not _is_number(value):
        raise UsageError(f"{key}: {value!r} is no number", hint=f"MMF's own is {before}")
    if key == _BETAS and not (isinstance(value, list) and len(value) == 2):
        raise UsageError(f"{key}: {value!r} is not a list of two numbers", hint=f"write {key}=[0.9,0.999]")
    for number in value if key == _BETAS else [value]:
        if allowed and not _is_in(number, *allowed):
            least, end, whole = allowed
            is_whole = isinstance(number, float) and number.is_integer() and _is_in(int(number), *allowed)
            hint = f"write {key}={int(number)}" if is_whole else None
            what = f"a {'whole ' * whole}number of {least} or more" + f" and below {end}" * (end < math.inf)
            raise UsageError(f"{key}: {number!r} is not {what}", hint=hint)


def _is_in(value: Any, least: float, below: float, whole: bool) -> bool:
    return _is_number(value) and least <= value < below and (isinstance(value, int) or not whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unknown_key(config: Any, key: str, version: str) -> UsageError:
    """The error that MMF's configuration has no such key, with what may be meant."""
    from mmf_win.upstream.sources import SOURCES

    message = f"MMF {version} has no key {key}"
    other = next((source for source in SOURCES if source.version in versions_with(key)), None)
    if other and other.version != version:
        hint = f"run `{format_command('mmfw', 'setup', '--mmf', other.name)}`"
        return UsageError(f"{message}; {other.version} has", hint=hint)
    known = [other for other, _ in leaves(config)]
    name = key.rpartition(".")[2]
    near = [other for other in known if other.rpartition(".")[2] == name]
    near += get_close_matches(key, known, n=3)
    return UsageError(message, hint=f"did you mean {', '.join(dict.fromkeys(near[:3]))}?" if near else None)


def leaves(node: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a tree by their keys, as ``training.seed``; a group without keys is one, too."""
    if not isinstance(node, Mapping) or not node:
        yield above, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{above}.{name}" if above else str(name))


def literal(value: Any) -> Any:
    """A path or text as OmegaConf's, which takes ``${x}`` for the value of a key; of a tree, each in it."""
    if isinstance(value, dict):
        return {key: literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [literal(each) for each in value]
    return _INTERPOLATION.sub(r"\1\1\\${", str(value)) if isinstance(value, (Path, str)) else value


def as_yaml(value: object) -> str:
    """A value as JSON that is read alike as YAML, and of a text as Python.

    YAML refuses some characters that JSON takes, and has other escapes for those beyond 16 bits.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", text)


def parts(text: str, base: Path | str = "") -> list[str]:
    """The paths in a text, which MMF sets apart with commas; they may be in one path's name as well."""
    with suppress(OSError):  # many names in a row are longer than one may be
        if Path(base, text).exists():
            return [text]
    return text.split(",")

"""Keys and values that MMF would refuse only after a minute of loading, or drop in silence.

The names that MMF registers, such as those of its optimizers, are read from its files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from mmf_win.console import first_few
from mmf_win.errors import UsageError
from mmf_win.upstream.install import text_in_package
from mmf_win.upstream.overrides import may_have_more, nearest_group, unknown_key

# The keys that name what MMF's registry holds → of which kind.
_REGISTERED = {
    "model": "model",
    r"optimizer\.type": "optimizer",
    r"scheduler\.type": "scheduler",
    r"evaluation\.metrics": "metric",
    r"model_config\.\w+\.losses": "loss",
    r"dataset_config\.\w+\.processors\.\w+\.type": "processor",
}
_RATE = "optimizer.params.lr"
# The least that each may be; all but the rate are counts.
_LEAST = {
    _RATE: 0,
    "training.batch_size": 1,
    "training.max_updates": 1,
    "training.max_epochs": 1,
    "training.log_interval": 1,
    "training.checkpoint_interval": 1,
    "training.evaluation_interval": 1,
    "training.update_frequency": 1,
    "training.num_workers": 0,
    "training.seed": -1,  # which stands for any
}
_MAY_BE_NONE = {"training.max_updates", "training.seed"}
# Groups whose keys are the user's to name, and keys that MMF reads though its defaults have none of them.
_OPEN = ("checkpoint.pretrained_state_mapping.", "training.wandb.")
_ALSO_READ = {
    *("optimizer.type", "optimizer.params", "scheduler.type", "scheduler.params"),
    *("training.max_grad_l2_norm", "training.encoder_lr_multiply"),
}
_LISTS = re.compile(r"model_config\.\w+\.losses")
_RUN_TYPES = {"train", "val", "test", "inference"}
_ALMOST = 0.8
_ALSO_CALLED = {"auroc": "roc_auc", "auc": "roc_auc"}


def require_usable(root: Path, config: Any, changes: Mapping[str, Any], version: str) -> None:
    """Refuse keys that nothing reads, and values that cannot be used.

    Args:
        root: the folder that holds the package ``mmf``.
        config: MMF's own configuration of the experiment, as plain values.
        changes: what is set → the value; ``model`` is the name of the model.
        version: of MMF.

    Raises:
        UsageError: there is one; it names the key.
    """
    for key, value in changes.items():
        if key.startswith(_OPEN):
            continue
        group, below = nearest_group(config, key)
        first, _, deeper = key.removeprefix(f"{group}.").partition(".")
        is_known = key == "model" or first in below or (group and not below)
        if not is_known and not _is_read(root, changes["model"], group, first, below):
            raise unknown_key(config, key, version)
        if isinstance(value, str) and "${" in value:
            continue
        before = None if deeper else below.get(first)
        _require_kind(key, before, value)
        _require_number(key, value)
        for pattern, kind in _REGISTERED.items():
            if value != before and re.fullmatch(pattern, key):
                _require_registered(root, kind, key, value)


def _is_read(root: Path, model: str, group: str, name: str, below: Mapping[str, Any]) -> bool:
    """Whether an additional key has a reader, as far as MMF's code tells."""
    if may_have_more(group):
        almost = get_close_matches(name, below, n=1, cutoff=_ALMOST)
        return not almost or bool(re.search(rf"\b{re.escape(name)}\b", _code(root)))
    # A model need not have a configuration of its own.
    return f"{group}.{name}" in {*_ALSO_READ, f"model_config.{model}"}


def _require_kind(key: str, before: Any, value: Any) -> None:
    """Refuse a value of another kind than MMF's own."""
    may_be_none = key not in _LEAST or key in _MAY_BE_NONE
    if before is None or (value is None and may_be_none):
        return
    if isinstance(before, Mapping) and before and not isinstance(value, Mapping):
        some = first_few([f"{key}.{name}" for name in before], 5)
        raise UsageError(f"{key}: {value!r} in place of a group of keys", hint=f"set a key in it: {some}")
    if _LISTS.fullmatch(key) and isinstance(value, str):
        raise UsageError(f"{key}: {value!r} in place of a list", hint=f"write [{value}]")
    if isinstance(before, bool) and value not in (0, 1):
        raise UsageError(f"{key}: {value!r} is neither true nor false")
    if _is_number(before) and not _is_number(value):
        raise UsageError(f"{key}: {value!r} is no number", hint=f"MMF's own is {before}")


def _require_number(key: str, value: Any) -> None:
    """Refuse a number that is too small, and one with a fraction where MMF counts."""
    if key == "run_type" and not set(re.split(r"[_+]", str(value))) <= _RUN_TYPES:
        made_of = ", ".join(sorted(_RUN_TYPES))
        raise UsageError(f"run_type: MMF knows no {value!r}", hint=f"it is made of {made_of}")
    if value is None or key not in _LEAST:
        return
    fits = _is_number(value) and math.isfinite(value) and value >= _LEAST[key]
    if not fits or (key != _RATE and not isinstance(value, int)):
        what = "a number" if key == _RATE else "a whole number"
        whole = f"write {key}={int(value)}" if fits and value == int(value) else None
        raise UsageError(f"{key}: {value!r} is not {what} of {_LEAST[key]} or more", hint=whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require_registered(root: Path, kind: str, key: str, value: Any) -> None:
    known = _registered(root, kind)
    for name in _names_in(value):
        if name in known or not known:
            continue
        near = _like(name, known)
        hint = f"did you mean {', '.join(near)}?" if near else f"it has {first_few(sorted(known), 20)};"
        hint += f" env.user_dir=FOLDER names code of your own that brings such a {kind}"
        raise UsageError(f"{key}: MMF has no {kind} {name!r}", hint=hint)


def _like(name: str, known: Iterable[str]) -> list[str]:
    """The names that may be meant, whatever their case."""
    by_lower = {other.lower(): other for other in sorted(known)}
    wanted = _ALSO_CALLED.get(name.lower(), name.lower())
    return [by_lower[other] for other in get_close_matches(wanted, by_lower, n=3)]


def _names_in(value: Any) -> Iterator[str]:
    """The names in a name, or in a list of names and of mappings with a ``type``."""
    for item in value if isinstance(value, list) else [value]:
        name = item.get("type") if isinstance(item, Mapping) else item
        if isinstance(name, str):
            yield name


@lru_cache
def _registered(root: Path, kind: str) -> frozenset[str]:
    """The names under which MMF registers its classes of a kind; PyTorch's optimizers with them."""
    # What is indented is an example in a docstring.
    names = set(re.findall(rf'(?m)^@?registry\.register_{kind}\(\s*"([^"]+)"', _code(root)))
    exports = text_in_package("torch", "optim", "__init__.py") if kind == "optimizer" else ""
    return frozenset(names | set(re.findall(r"(?m)^from [\w.]+ import ([A-Z]\w+)", exports)) - {"Optimizer"})


@lru_cache
def _code(root: Path) -> str:
    files = sorted((root / "mmf").rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

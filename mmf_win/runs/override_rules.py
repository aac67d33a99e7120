"""Rules for ``KEY=VALUE`` overrides: those that would have no effect are refused, with a hint."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from mmf_win.errors import UsageError
from mmf_win.runs.request import CommandOptions
from mmf_win.upstream.overrides import RESERVED_KEYS

_log = logging.getLogger(__name__)

_DATASET_GROUP = "dataset_config.hateful_memes"
#: Key of the annotation files.
ANNOTATIONS_KEY = f"{_DATASET_GROUP}.annotations"
_TOTAL_KEYS = ("training.max_updates", "training.max_epochs")
_USER_MEMES_KEYS = (ANNOTATIONS_KEY, f"{_DATASET_GROUP}.images")
# Options that set the same values as keys of MMF.
_KEYS_BY_OPTION = {
    "updates": _TOTAL_KEYS,
    "epochs": _TOTAL_KEYS,
    "batch_size": ("training.batch_size", "training.batch_size_per_device"),
    "seed": ("training.seed",),
    "seeds": ("training.seed",),
    "detect_anomaly": ("training.detect_anomaly",),
    "precision": ("training.fp16",),
    "features": (f"{_DATASET_GROUP}.features",),
    "memes": _USER_MEMES_KEYS,
    "image": _USER_MEMES_KEYS,
}
_TRAINING_HINTS = {
    "checkpoint.resume": "use `mmfw train --resume last`",
    "checkpoint.resume_best": "use `mmfw train --resume best`",
}
_RESUME_HINTS = dict.fromkeys(
    ("checkpoint.resume_file", "checkpoint.resume_zoo", "checkpoint.resume_pretrained"),
    "use --resume or --init; for other weights, start a new run with `mmfw train PRESET KEY=VALUE`",
)
_PREDICTION_HINTS = {
    ANNOTATIONS_KEY: "use --split NAME for a split, or --memes FILE for your own memes",
    "run_type": "remove this key; `mmfw predict` only predicts",
    **dict.fromkeys(
        ("optimizer", "scheduler", "training.max_updates", "training.max_epochs", "training.early_stop"),
        "remove this key; it only affects training",
    ),
    "evaluation.predict": "remove this key; `mmfw predict` always predicts",
    "evaluation.predict_file_format": "remove this key; predictions are written as CSV",
    "evaluation.reporter": "remove this key; predictions are written as CSV",
    "checkpoint": "use --checkpoint best, last or PATH",
}
_OPTIMIZER_RESETS = ("checkpoint.reset.optimizer=True", "checkpoint.reset.all=True")


def split_arguments(arguments: Sequence[str], max_names: int | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split arguments into leading names and overrides.

    Args:
        arguments: Positional arguments of a command.
        max_names: Maximum number of names; ``None`` for no limit.

    Returns:
        The names and the overrides.

    Raises:
        UsageError: An argument after the names is not ``KEY=VALUE``, or sets a key that mmfw sets itself.
    """
    names = tuple(takewhile(lambda text: "=" not in text or Path(text).exists(), arguments[:max_names]))
    overrides = tuple(arguments[len(names) :])
    for override in overrides:
        if "=" not in override or not override_key(override):
            hint = "put names first, then overrides such as training.num_workers=2"
            raise UsageError(f"{override}: not a KEY=VALUE override", hint=hint)
    _require_not_reserved(overrides, RESERVED_KEYS)
    last_override = {override_key(override): override for override in overrides}
    for key, count in Counter(map(override_key, overrides)).items():
        if count > 1:
            _log.warning("%s is set %d times, using the last one: %s", key, count, last_override[key])
    return names, overrides


def require_trainable(command_options: CommandOptions, *, resumes: bool, seeds: Sequence[int] = ()) -> None:
    """Check that no override is one that training would replace.

    Args:
        command_options: Options of the command.
        resumes: An option names the checkpoint or the weights that training starts from.
        seeds: Seeds of the runs of a sweep.

    Raises:
        UsageError: An override cannot be used for training.
    """
    overrides = command_options.overrides
    _require_not_reserved(overrides, _TRAINING_HINTS | (_RESUME_HINTS if resumes else {}))
    _require_no_conflict(command_options, seeds=seeds)
    if resumes and any(override_key(override) == "checkpoint" for override in overrides):
        raise UsageError("checkpoint is set by mmfw", hint=_RESUME_HINTS["checkpoint.resume_file"])
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "run_type" and "train" not in value:
            hint = "use `mmfw predict` for predictions and scores"
            raise UsageError(f"{override}: does not include training", hint=hint)


def require_optimizer_kept(overrides: Sequence[str]) -> None:
    """Check that no override changes the optimizer of a resumed run, unless the optimizer is reset.

    MMF creates the optimizer from the overrides and then restores its state from the checkpoint, including
    the learning rate, so the overrides would have no effect.

    Raises:
        UsageError: An override sets a key of the optimizer.
    """
    lowered = [override.lower() for override in overrides]  # true and True are equal
    if any(reset.lower() in lowered for reset in _OPTIMIZER_RESETS):
        return
    for override in overrides:
        if _find_key(override, {"optimizer"}):
            hint = f"add {_OPTIMIZER_RESETS[0]} to reset the optimizer"
            raise UsageError(f"{override} has no effect: the optimizer comes from the checkpoint", hint=hint)


def require_predictable(
    command_options: CommandOptions,
    *,
    features: Path | None = None,
    memes: Sequence[Path] = (),
    image: Sequence[Path] = (),
) -> None:
    """Check that no override is one that prediction would replace.

    Raises:
        UsageError: An override cannot be used for prediction, or conflicts with an option.
    """
    _require_not_reserved(command_options.overrides, _PREDICTION_HINTS)
    _require_no_conflict(command_options, features=features, memes=memes, image=image)


def override_key(override: str) -> str:
    """Return the part of ``KEY=VALUE`` before the first ``=``."""
    return override.partition("=")[0]


def _find_key(override: str, keys: Collection[str]) -> str | None:
    """Return the key that an override sets, or the group of which it sets a part; ``None`` for others."""
    parts = re.sub(r"\[[^\]]*\]", "", override_key(override)).split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((key for key in prefixes if key in keys), None)


def _require_not_reserved(overrides: Sequence[str], reserved_keys: Mapping[str, str]) -> None:
    for override in overrides:
        if (key := _find_key(override, reserved_keys)) is not None:
            raise UsageError(f"{override_key(override)} is set by mmfw", hint=reserved_keys[key])


def _require_no_conflict(command_options: CommandOptions, **others: object) -> None:
    options = {**vars(command_options), **others}
    for override in command_options.overrides:
        for name, keys in _KEYS_BY_OPTION.items():
            value = options.get(name)  # may be 0, for example the seed
            if value not in (None, (), "auto") and value is not False and _find_key(override, keys) is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} and {override} set the same value; use one")

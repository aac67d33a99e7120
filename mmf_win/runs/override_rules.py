"""The ``KEY=VALUE`` overrides that are typed: each holds, or is refused with what to use instead."""

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
#: The key that says where annotations are.
ANNOTATIONS_KEY = f"{_DATASET_GROUP}.annotations"
_TOTAL_KEYS = ("training.max_updates", "training.max_epochs")
_USER_MEMES_KEYS = (ANNOTATIONS_KEY, f"{_DATASET_GROUP}.images")
# The options that say the same as MMF's keys.
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
    "checkpoint.resume": "use mmfw train --resume last",
    "checkpoint.resume_best": "use mmfw train --resume best",
}
_RESUME_HINTS = {
    key: "--resume and --init name the weights; others need a new run: mmfw train PRESET KEY=VALUE"
    for key in ("checkpoint.resume_file", "checkpoint.resume_zoo", "checkpoint.resume_pretrained")
}
_PREDICTION_HINTS = {
    ANNOTATIONS_KEY: "--split NAME predicts a split, and --memes FILE memes of your own",
    "run_type": "mmfw predict only predicts",
    **dict.fromkeys(
        ("optimizer", "scheduler", "training.max_updates", "training.max_epochs", "training.early_stop"),
        "it is for training; a prediction does without",
    ),
    "evaluation.predict": "mmfw predict always does",
    "evaluation.predict_file_format": "predictions are written as CSV",
    "evaluation.reporter": "predictions are written as CSV",
    "checkpoint": "use --checkpoint best, last or PATH",
}
_OPTIMIZER_RESETS = ("checkpoint.reset.optimizer=True", "checkpoint.reset.all=True")


def split_arguments(
    arguments: Sequence[str], max_names: int | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that come first, at most so many where ``names`` says so, and the overrides after them.

    Raises UsageError where a word after the names is no ``KEY=VALUE``, or sets what mmfw sets itself.
    """
    names = tuple(takewhile(lambda text: "=" not in text or Path(text).exists(), arguments[:max_names]))
    overrides = tuple(arguments[len(names) :])
    for override in overrides:
        if "=" not in override or not override_key(override):
            hint = "names come first, and then overrides, for example training.num_workers=2"
            raise UsageError(f"{override}: not a KEY=VALUE of MMF", hint=hint)
    _require_not_reserved(overrides, RESERVED_KEYS)
    last_override = {override_key(override): override for override in overrides}
    for key, count in Counter(map(override_key, overrides)).items():
        if count > 1:
            _log.warning("%s is given %d times; the last one holds: %s", key, count, last_override[key])
    return names, overrides


def require_trainable(command_options: CommandOptions, *, resumes: bool, seeds: Sequence[int] = ()) -> None:
    """Refuse overrides that training would undo, by UsageError.

    Args:
        resumes: an option names the checkpoint or the weights that training begins from.
        seeds: those of the trainings of a sweep.
    """
    overrides = command_options.overrides
    _require_not_reserved(overrides, _TRAINING_HINTS | (_RESUME_HINTS if resumes else {}))
    _require_no_conflict(command_options, seeds=seeds)
    if resumes and any(override_key(override) == "checkpoint" for override in overrides):
        raise UsageError("checkpoint is set by mmfw", hint=_RESUME_HINTS["checkpoint.resume_file"])
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "run_type" and "train" not in value:
            hint = "use mmfw predict for predictions and scores"
            raise UsageError(f"{override}: mmfw train trains", hint=hint)


def require_optimizer_kept(overrides: Sequence[str]) -> None:
    """Refuse overrides of the optimizer beside a checkpoint that brings its own, unless it starts afresh.

    MMF makes the optimizer as the overrides say, and then puts back what the checkpoint has of it, its
    learning rate included. Raises UsageError.
    """
    lowered = [override.lower() for override in overrides]  # true is True, too
    if any(reset.lower() in lowered for reset in _OPTIMIZER_RESETS):
        return
    for override in overrides:
        if _find_matching_key(override, {"optimizer"}):
            hint = f"{_OPTIMIZER_RESETS[0]} beside it starts the optimizer afresh, with this value"
            raise UsageError(f"{override}: a run that resumes has the optimizer of its checkpoint", hint=hint)


def require_predictable(
    command_options: CommandOptions,
    *,
    features: Path | None = None,
    memes: Sequence[Path] = (),
    image: Sequence[Path] = (),
) -> None:
    """Refuse overrides that a prediction would undo, as :func:`require_trainable` does for training."""
    _require_not_reserved(command_options.overrides, _PREDICTION_HINTS)
    _require_no_conflict(command_options, features=features, memes=memes, image=image)


def override_key(override: str) -> str:
    """The part of ``KEY=VALUE`` before the first ``=``."""
    return override.partition("=")[0]


def _find_matching_key(override: str, keys: Collection[str]) -> str | None:
    """The key among ``keys`` that an override sets, or the group among them that it sets a part of."""
    parts = re.sub(r"\[[^\]]*\]", "", override_key(override)).split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((key for key in prefixes if key in keys), None)


def _require_not_reserved(overrides: Sequence[str], reserved_keys: Mapping[str, str]) -> None:
    for override in overrides:
        if (key := _find_matching_key(override, reserved_keys)) is not None:
            raise UsageError(f"{override_key(override)} is set by mmfw", hint=reserved_keys[key])


def _require_no_conflict(command_options: CommandOptions, **others: object) -> None:
    options = {**vars(command_options), **others}
    for override in command_options.overrides:
        for name, keys in _KEYS_BY_OPTION.items():
            value = options.get(name)  # which may be the seed 0
            if (
                value not in (None, (), "auto")
                and value is not False
                and _find_matching_key(override, keys) is not None
            ):
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} and {override} both name the same; give one of them")

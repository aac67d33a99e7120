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
from mmf_win.upstream.overrides import RESERVED

_log = logging.getLogger(__name__)

_DATASET = "dataset_config.hateful_memes"
#: The key that says where annotations are.
ANNOTATIONS = f"{_DATASET}.annotations"
_TOTAL = ("training.max_updates", "training.max_epochs")
_OWN_MEMES = (ANNOTATIONS, f"{_DATASET}.images")
# The options that say the same as MMF's keys.
_OPTIONS = {
    "updates": _TOTAL,
    "epochs": _TOTAL,
    "batch_size": ("training.batch_size", "training.batch_size_per_device"),
    "seed": ("training.seed",),
    "seeds": ("training.seed",),
    "detect_anomaly": ("training.detect_anomaly",),
    "precision": ("training.fp16",),
    "features": (f"{_DATASET}.features",),
    "memes": _OWN_MEMES,
    "image": _OWN_MEMES,
}
_IN_TRAINING = {
    "checkpoint.resume": "use mmfw train --resume last",
    "checkpoint.resume_best": "use mmfw train --resume best",
}
_IN_RESUMING = {
    key: "--resume and --init name the weights; others need a new run: mmfw train PRESET KEY=VALUE"
    for key in ("checkpoint.resume_file", "checkpoint.resume_zoo", "checkpoint.resume_pretrained")
}
_IN_PREDICTION = {
    ANNOTATIONS: "--split NAME predicts a split, and --memes FILE memes of your own",
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
_RESETS = ("checkpoint.reset.optimizer=True", "checkpoint.reset.all=True")


def split_words(words: Sequence[str], names: int | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that come first, at most so many where ``names`` says so, and the overrides after them.

    Raises UsageError where a word after the names is no ``KEY=VALUE``, or sets what mmfw sets itself.
    """
    first = tuple(takewhile(lambda word: "=" not in word or Path(word).exists(), words[:names]))
    overrides = tuple(words[len(first) :])
    for override in overrides:
        if "=" not in override or not key_of(override):
            hint = "names come first, and then overrides, for example training.num_workers=2"
            raise UsageError(f"{override}: not a KEY=VALUE of MMF", hint=hint)
    _refuse(overrides, RESERVED)
    last = {key_of(override): override for override in overrides}
    for key, count in Counter(map(key_of, overrides)).items():
        if count > 1:
            _log.warning("%s is given %d times; the last one holds: %s", key, count, last[key])
    return first, overrides


def require_trainable(asked: CommandOptions, *, resumes: bool, seeds: Sequence[int] = ()) -> None:
    """Refuse overrides that training would undo, by UsageError.

    Args:
        resumes: an option names the checkpoint or the weights that training begins from.
        seeds: those of the trainings of a sweep.
    """
    overrides = asked.overrides
    _refuse(overrides, _IN_TRAINING | (_IN_RESUMING if resumes else {}))
    _require_one_of(asked, seeds=seeds)
    if resumes and any(key_of(override) == "checkpoint" for override in overrides):
        raise UsageError("checkpoint is set by mmfw", hint=_IN_RESUMING["checkpoint.resume_file"])
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
    typed = [override.lower() for override in overrides]  # true is True, too
    if any(reset.lower() in typed for reset in _RESETS):
        return
    for override in overrides:
        if _set_by(override, {"optimizer"}):
            hint = f"{_RESETS[0]} beside it starts the optimizer afresh, with this value"
            raise UsageError(f"{override}: a run that resumes has the optimizer of its checkpoint", hint=hint)


def require_predictable(
    asked: CommandOptions,
    *,
    features: Path | None = None,
    memes: Sequence[Path] = (),
    image: Sequence[Path] = (),
) -> None:
    """Refuse overrides that a prediction would undo, as :func:`require_trainable` does for training."""
    _refuse(asked.overrides, _IN_PREDICTION)
    _require_one_of(asked, features=features, memes=memes, image=image)


def key_of(override: str) -> str:
    """The part of ``KEY=VALUE`` before the first ``=``."""
    return override.partition("=")[0]


def _set_by(override: str, keys: Collection[str]) -> str | None:
    """The key among ``keys`` that an override sets, or the group among them that it sets a part of."""
    names = re.sub(r"\[[^\]]*\]", "", key_of(override)).split(".")
    above = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((key for key in above if key in keys), None)


def _refuse(overrides: Sequence[str], reserved: Mapping[str, str]) -> None:
    for override in overrides:
        if (key := _set_by(override, reserved)) is not None:
            raise UsageError(f"{key_of(override)} is set by mmfw", hint=reserved[key])


def _require_one_of(asked: CommandOptions, **others: object) -> None:
    options = {**vars(asked), **others}
    for override in asked.overrides:
        for name, keys in _OPTIONS.items():
            given = options.get(name)  # which may be the seed 0
            if given not in (None, (), "auto") and given is not False and _set_by(override, keys) is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} and {override} both name the same; give one of them")

"""The user's ``KEY=VALUE`` overrides, which MMF gets last.

Each holds, or is refused: none that mmfw or MMF would undo is accepted.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from mmf_win.errors import ReservedKey, UsageError

_log = logging.getLogger(__name__)

_DATASET = "dataset_config.hateful_memes"
_ANNOTATIONS = f"{_DATASET}.annotations"
# Keys, and groups of keys, that mmfw sets itself or that would steer what it does not know of, and why, where
# it is not an option that sets them.
_OURS: dict[str, str | None] = {
    "config": None,
    "model": None,
    "dataset": "mmfw knows Hateful Memes only",
    "datasets": "mmfw knows Hateful Memes only",
    "dataset_config.hateful_memes.data_dir": None,
    "env.cache_dir": None,
    "env.save_dir": None,
    "env.data_dir": None,
    "env.report_dir": None,
    "training.trainer": "mmfw's own trainer watches over the run",
    "training.callbacks": "put them into a preset's settings, where mmfw adds its own to them",
    "training.exit_on_nan_losses": "a loss that is not a number always ends the run",
    "trainer": "only PyTorch Lightning reads it, which mmfw does not use",
    "checkpoint.max_to_keep": None,
}
_IN_TRAINING = dict.fromkeys(("checkpoint.resume", "checkpoint.resume_best"))
_IN_RESUMING = dict.fromkeys(
    ("checkpoint.resume_file", "checkpoint.resume_zoo", "checkpoint.resume_pretrained")
)
_IN_PREDICTION: dict[str, str | None] = {
    _ANNOTATIONS: None,
    "run_type": "a prediction only predicts",
    **dict.fromkeys(
        ("optimizer", "scheduler", "training.max_updates", "training.max_epochs", "training.early_stop"),
        "it is for training; a prediction does without",
    ),
    "evaluation.predict": "a prediction always does",
    "evaluation.predict_file_format": "predictions are written as CSV",
    "evaluation.reporter": "predictions are written as CSV",
    "checkpoint": None,
}
BATCH_SIZE = frozenset({"training.batch_size", "training.batch_size_per_device"})
"""The keys of which either names the rows of a batch."""
OWN_MEMES = frozenset({_ANNOTATIONS, f"{_DATASET}.images"})
"""The keys that say where memes are."""
FEATURES = frozenset({f"{_DATASET}.features"})
"""The key that says where region features are."""

_RESETS = ("checkpoint.reset.optimizer=True", "checkpoint.reset.all=True")

# What started a run must not steer where it resumes from.
_OF_THE_START = ("checkpoint.resume", "checkpoint.reset", "checkpoint.zoo_config_override")


def split_words(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The name that comes first, if one does, and the ``KEY=VALUE`` overrides after it.

    Raises:
        UsageError: a word is no ``KEY=VALUE``, or sets what mmfw sets itself.
    """
    named = bool(words) and _is_name(words[0])
    name, rest = (words[0], words[1:]) if named else (None, words)
    _require_keys(rest)
    return name, tuple(rest)


def split_runs(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All names that come first, and the ``KEY=VALUE`` overrides after them.

    Raises:
        UsageError: a word after the first of them is no ``KEY=VALUE``, or sets what mmfw sets itself.
    """
    names = tuple(takewhile(_is_name, words))
    rest = tuple(words[len(names) :])
    _require_keys(rest)
    return names, rest


def require_trainable(words: Sequence[str], options: Mapping[str, Collection[str]], *, resumes: bool) -> None:
    """Refuse overrides that training would undo.

    Args:
        words: what was typed now.
        options: an option that was given → the keys that say the same.
        resumes: an option names the checkpoint or the weights that training begins from.

    Raises:
        UsageError: there is one.
    """
    _refuse(words, _IN_TRAINING | (_IN_RESUMING if resumes else {}))
    _require_one_of(words, options)
    if resumes and any(_key(word) == "checkpoint" for word in words):
        raise ReservedKey("checkpoint", reserved="checkpoint.resume_file")
    for word in words:
        key, _, value = word.partition("=")
        if key == "run_type" and "train" not in value:
            raise UsageError(f"{word}: a training trains", hint="predict with the run when it is trained")


def require_optimizer_kept(words: Sequence[str]) -> None:
    """Refuse overrides of the optimizer beside a checkpoint that brings its own.

    MMF makes the optimizer as the overrides say, and then puts back what the checkpoint has of it, its
    learning rate included.

    Raises:
        UsageError: there is one, and nothing says that the optimizer starts anew.
    """
    if any(word in words for word in _RESETS):
        return
    of_optimizer = next((word for word in words if _key(word).split(".")[0] == "optimizer"), None)
    if of_optimizer is not None:
        raise UsageError(
            f"{of_optimizer}: a run that resumes has the optimizer of its checkpoint",
            hint=f"{_RESETS[0]} beside it starts the optimizer anew, with this value",
        )


def require_predictable(words: Sequence[str], options: Mapping[str, Collection[str]]) -> None:
    """Refuse overrides that a prediction would undo, as :func:`require_trainable` does for training."""
    _refuse(words, _IN_PREDICTION)
    _require_one_of(words, options)


def lasting(words: Sequence[str], replaced: Collection[str] = ()) -> list[str]:
    """Those of a run's overrides that still hold when it resumes.

    Args:
        words: what the run was started with.
        replaced: keys, and groups of keys, that an option sets now.
    """
    return [word for word in without(words, replaced) if not word.startswith(_OF_THE_START)]


def of_prediction(words: Sequence[str], replaced: Collection[str] = ()) -> list[str]:
    """Those of a run's overrides that still hold when it is predicted; arguments as for :func:`lasting`."""
    # MMF loads the other splits too, and does not predict them.
    steering = _IN_PREDICTION.keys() - {_ANNOTATIONS} | {f"{_ANNOTATIONS}.test"}
    return without(lasting(words, replaced), steering)


def without(words: Sequence[str], keys: Collection[str]) -> list[str]:
    """The overrides that set none of ``keys``, nor a part of what is there."""
    return [word for word in words if _ours(word, keys) is None]


def about_files(words: Sequence[str]) -> list[str]:
    """The overrides that may change which files a run reads."""
    return [
        word for word in words if word.startswith(("checkpoint.", "dataset_config.", "env.", "model_config."))
    ]


def _is_name(word: str) -> bool:
    return "=" not in word or Path(word).exists()


def _key(word: str) -> str:
    return word.partition("=")[0]


def _require_keys(words: Sequence[str]) -> None:
    for word in words:
        if "=" not in word or not _key(word):
            raise UsageError(f"{word}: not a KEY=VALUE of MMF", hint="for example training.num_workers=2")
    _refuse(words, _OURS)
    for key, count in Counter(map(_key, words)).items():
        if count > 1:
            last = next(word for word in reversed(words) if _key(word) == key)
            _log.warning("%s is given %d times; the last one holds: %s", key, count, last)


def _refuse(words: Sequence[str], ours: Mapping[str, str | None]) -> None:
    for word in words:
        if (key := _ours(word, ours)) is not None:
            raise ReservedKey(_key(word), hint=ours[key], reserved=key)


def _ours(word: str, keys: Collection[str]) -> str | None:
    """The key among ``keys`` that a word sets, or the group among them that it sets a part of."""
    fields = re.sub(r"\[[^\]]*\]", "", _key(word)).split(".")
    above = (".".join(fields[:length]) for length in range(len(fields), 0, -1))
    return next((key for key in above if key in keys), None)


def _require_one_of(words: Sequence[str], options: Mapping[str, Collection[str]]) -> None:
    for word in words:
        for option, keys in options.items():
            if _ours(word, keys) is not None:
                raise UsageError(f"{option} and {word} both name the same; give one of them")

"""The user's ``KEY=VALUE`` words, which MMF gets last."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from pathlib import Path

from mmf_win.errors import UsageError

_OURS = {
    "env.save_dir": "every run is kept in a folder of its own; use --save-dir",
    "env.data_dir": "use --data-dir",
    "env.report_dir": "the reports lie in the run's folder",
    "training.trainer": "mmfw's own trainer watches over the run",
    "training.callbacks": "put them into a preset's settings, where mmfw adds its own to them",
}
# What started a run, or steered one prediction, must not steer how the run goes on or is predicted.
_OF_ONE_ATTEMPT = ("checkpoint.", "evaluation.", "run_type")


def split_words(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The name that comes first, if one does, and the ``KEY=VALUE`` words after it.

    Raises:
        UsageError: a word is no ``KEY=VALUE``, or sets what mmfw sets itself.
    """
    named = bool(words) and _is_name(words[0])
    name, rest = (words[0], words[1:]) if named else (None, words)
    _require_keys(rest)
    return name, tuple(rest)


def split_runs(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All names that come first, and the ``KEY=VALUE`` words after them.

    Raises:
        UsageError: a word after the first of them is no ``KEY=VALUE``, or sets what mmfw sets itself.
    """
    names = tuple(takewhile(_is_name, words))
    rest = tuple(words[len(names) :])
    _require_keys(rest)
    return names, rest


def _is_name(word: str) -> bool:
    return "=" not in word or Path(word).exists()


def _require_keys(words: Sequence[str]) -> None:
    for word in words:
        key, equals, _ = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{word}: not a KEY=VALUE of MMF", hint="for example training.num_workers=2")
        if key in _OURS:
            raise UsageError(f"{key} is set by mmfw", hint=_OURS[key])


def lasting(words: Sequence[str], replaced: Collection[str] = ()) -> list[str]:
    """Those of a run's words that still hold when it goes on or is predicted.

    Args:
        words: what the run was started with.
        replaced: keys that an option sets now.
    """
    keys = [word.partition("=")[0] for word in words]
    return [
        word
        for word, key in zip(words, keys, strict=True)
        if key not in replaced and not key.startswith(_OF_ONE_ATTEMPT)
    ]

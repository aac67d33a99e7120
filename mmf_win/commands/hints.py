"""What to do about an error, where that is an option or a command: by the class of the error.

An error raised below the commands names neither. Its class is in the table here, and what the hint needs are
its attributes; a class that is not here has the hint of its base. An error that brings a hint keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmf_win.commands.outcomes import hint_after
from mmf_win.errors import FeaturesConflict, MmfwError, NoFeatureFiles, PasswordError, UnknownConfiguration

_HINTS: dict[type[MmfwError], str | Callable[[Any], str | None]] = {
    FeaturesConflict: "--output LMDB builds another LMDB; --force takes the features of the last folder",
    NoFeatureFiles: "MMF's extraction scripts write NAME.npy and NAME_info.npy; "
    "`mmfw features extract` puts a finished LMDB in place",
    UnknownConfiguration: "name the preset that it was trained with: mmfw train PRESET --resume PATH",
    PasswordError: "give it with --password, --password-file or the variable MMFW_PASSWORD",
}


def hint_for(error: MmfwError) -> str | None:
    """The next step after ``error``, in options and commands; None where there is none to tell."""
    if error.outcome is not None and error.run_dir is not None:
        return hint_after(error.outcome, error.action, error.run_dir)
    for kind in type(error).__mro__:
        if kind in _HINTS:
            hint = _HINTS[kind]
            return hint if isinstance(hint, str) else hint(error)
    return None

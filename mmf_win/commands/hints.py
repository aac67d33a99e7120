"""What to do about an error, where that is an option or a command: by the class of the error.

An error raised below the commands names neither. Its class is in the table here, and what the hint needs are
its attributes; a class that is not here has the hint of its base. Where the error brings a hint of its own,
the one here is the other way out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from string import Formatter
from typing import Any

from mmf_win import errors
from mmf_win.console import shell_line
from mmf_win.integrity.manifest import noted
from mmf_win.paths import DatasetPaths, Places, data_option


def hint_for(error: errors.MmfwError) -> str | None:
    """The next step after ``error``, in options and commands; None where there is none to tell."""
    here = next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), "")
    own = None
    with suppress(errors.MmfwError, OSError):  # what a hint reads may be what is broken
        own = here(error) if callable(here) else _filled_in(here, error)
    glue = " " if (error.hint or "").endswith("?") else ", or "
    return glue.join(part for part in (error.hint, own) if part) or None


class _Typed(Formatter):
    """``{folder}`` is that attribute of the error as it is typed, one word or several.

    ``{folder:--option}`` is ``--option FOLDER``, with a blank before it; nothing where a command takes that
    folder anyway, or there is none.
    """

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """An attribute of the error."""
        return getattr(args[0], str(key))

    def format_field(self, value: Any, option: str) -> str:
        """What to type for it."""
        if not option:
            return shell_line(*(value if isinstance(value, (list, tuple)) else [value]))
        return "" if value in (None, Places.resolve().data_dir) else f" {shell_line(option, value)}"


def _filled_in(hint: str, error: errors.MmfwError) -> str:
    return _Typed().format(hint, error)


def _repair_manifest(error: errors.DamagedManifest) -> str:
    """Write the files again, if they came out of an archive."""
    folder, known = error.folder, noted(error.folder)
    for data_dir in folder.parents if known and known.source else ():
        paths = DatasetPaths.below(data_dir)
        if folder in (paths.root, paths.features):
            part = "dataset" if folder == paths.root else "features"
            return shell_line("mmfw", "repair", part, *data_option(data_dir))
    return "delete this list of hashes, and the files are verified again"


# Braces: see _Typed.
_HINTS: dict[type[errors.MmfwError], str | Callable[[Any], str | None]] = {
    errors.DamagedManifest: _repair_manifest,
    errors.BrokenMmf: "run `mmfw setup{origin:--mmf}`",
    errors.NoPassword: "give it with --password, --password-file or the variable MMFW_PASSWORD",
    errors.PipFailed: "take `mmfw setup --mmf github`, which does without pip",
}

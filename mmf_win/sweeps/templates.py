"""Fills the placeholders of a command: ``{param}`` and ``[param]``, as docs/sweeps.md says.

Without a shell, the command is split into words as a POSIX shell does it, and then filled, so that a value is
always one word. For a shell, values are quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from mmf_win.console import shell_line
from mmf_win.errors import UsageError

RESERVED = ("_output", "_name", "_time")
"""Placeholders that are no parameters."""
SCRIPTS = "_scripts"
"""What an earlier mmfw put among the values of ``param``."""

_PLACE = re.compile(r"(?<!\$)\{([\w-]+)\}|\[([\w-]+)\]")  # ${NAME} is the shell's


@cache
def placeholders(template: str) -> frozenset[str]:
    """The names that a template needs values for, those of :data:`RESERVED` among them.

    Raises UsageError where one stands in both forms, or the template cannot be split into words.
    """
    _split(template)
    braces, brackets = ({found[n] for found in _PLACE.finditer(template) if found[n]} for n in (1, 2))
    if both := braces & brackets:
        raise UsageError(f"{template}: {min(both)} stands in braces and in brackets; use one of them")
    return frozenset(braces | brackets)


def words(template: str, values: Mapping[str, Any]) -> list[str]:
    """The words of a command; ``values`` has one for each of its :func:`placeholders`."""
    filled: list[str] = []
    for word in _split(template):
        if alone := _PLACE.fullmatch(word):
            filled += _filled(alone, values)
        else:
            filled.append(_PLACE.sub(lambda found: " ".join(_filled(found, values)), word))
    return filled


def line(template: str, values: Mapping[str, Any]) -> str:
    """The line for a shell, of the same."""
    joined = re.sub(r"\s*\n\s*", " ", template)
    return _PLACE.sub(lambda found: shell_line(*_filled(found, values)), joined).strip()


def _filled(found: re.Match[str], values: Mapping[str, Any]) -> list[str]:
    """The words that take the place of a placeholder."""
    value = values[found[1] or found[2]]
    if found[1]:
        return [str(value)]
    if isinstance(value, bool):
        return [f"--{found[2]}"] if value else []
    return [f"--{found[2]}", str(value)]


@cache
def _split(template: str) -> list[str]:
    try:
        return shlex.split(template)
    except ValueError as error:
        raise UsageError(f"{template.strip()}: {error}", hint="quote as a POSIX shell does") from None

"""Commands that show the examples of their docstring at the end of their help."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click


class Command(click.Command):
    """Command whose docstring may have ``Examples:``, printed verbatim, and more paragraphs after them.

    The sections ``Returns:`` and ``Raises:``, which come last, are for readers of the code and not printed.
    """

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        text = re.split(r"\n\n(?:Returns|Raises):\n", inspect.cleandoc(self.help or ""), maxsplit=1)[0]
        self.help, heading, examples = text.partition("\n\nExamples:\n")
        if heading:
            self.epilog = f"\b\nExamples:\n{examples}"


class Group(Command, click.Group):
    """Group of such commands."""

    command_class = Command

"""Commands that show the examples of their docstring at the end of their help."""

from __future__ import annotations

import inspect
from typing import Any

import click


class Command(click.Command):
    """A command whose docstring may end with ``Examples:``, printed as they are, and more paragraphs."""

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.help, heading, examples = inspect.cleandoc(self.help or "").partition("\n\nExamples:\n")
        if heading:
            self.epilog = f"\b\nExamples:\n{examples}"


class Group(Command, click.Group):
    """A group of such commands."""

    command_class = Command

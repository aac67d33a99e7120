"""Write docs/commands.md, the reference of all commands, from their --help.

python scripts/commands_doc.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mmf_win.cli import cli  # noqa: E402

REFERENCE = ROOT / "docs" / "commands.md"
_WIDTH = 100
_HEAD = """\
# Commands

What `--help` says of each command. `python scripts/commands_doc.py` writes this file.
[guide.md](guide.md) explains how to use them.
"""


def commands(
    name: str = "mmfw", command: click.Command = cli, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Name and help of a command and all below it, such as ``mmfw features add``."""
    settings = {**command.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, parent, name, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from commands(child, found, context)


def reference() -> str:
    """The whole file."""
    return _HEAD + "".join(f"\n## {name}\n\n```\n{text.rstrip()}\n```\n" for name, text in commands())


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8", newline="\n")

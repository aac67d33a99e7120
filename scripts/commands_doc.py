"""Write the reference in docs/: commands from --help, presets from configs/, Python from docstrings.

python scripts/commands_doc.py
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from textwrap import fill

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mmf_win.cli import cli  # noqa: E402
from mmf_win.dataset import published_results as paper  # noqa: E402
from mmf_win.runs import presets  # noqa: E402

DOCS = ROOT / "docs"
_WIDTH = 100
_COMMANDS_INTRO = """\
# Commands

`mmfw COMMAND --help` prints this help of a command. `python scripts/commands_doc.py` writes this page.
"""
_PRESETS_INTRO = """\
# Presets

`mmfw train PRESET` trains a preset. [Configuration](configuration.md) explains how to change or write one.
"""
_PYTHON_INTRO = """\
# Python

```python
from mmf_win import Predictor

with Predictor("mmbt_grid") as predictor:
    print(predictor.predict("meme.png", "look how many people love you"))
```

Programs and notebooks may use these modules. `python scripts/commands_doc.py` writes this page from their docstrings.
"""
_MODULES = ("mmf_win", "mmf_win.archives", "mmf_win.runs", "mmf_win.sweeps")


def iter_command_help(
    name: str = "mmfw", command: click.Command = cli, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield name and help of a command and of all its subcommands, such as ``mmfw features add``."""
    settings = {**command.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, parent, name, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            assert subcommand is not None
            yield from iter_command_help(child, subcommand, context)


def _commands_page() -> str:
    return _COMMANDS_INTRO + "".join(_format_section(name, text) for name, text in iter_command_help())


def _presets_page() -> str:
    loaded = [presets.load_preset(name) for name in presets.list_presets()]
    columns = [(split, metric) for split in paper.PAPER_SPLITS.values() for metric in ("accuracy", "auroc")]
    scores = [["preset", "", *(f"{split} {metric}" for split, metric in columns)]]
    sources = [["preset", "model", "configuration"]]
    for preset in loaded:
        numbers = [_format_percent(paper.find_published_score(preset.published, *column)) for column in columns]
        scores.append([f"`{preset.name}`", preset.title, *numbers])
        sources.append([f"`{preset.name}`", f"`{preset.model}`", f"`{preset.config}`" if preset.config else "–"])
    unpublished_presets = ", ".join(f"`{preset.name}`" for preset in loaded if not preset.published)
    note = (
        f"The scores are those of {paper.PAPER}, in percent; ± is the standard deviation over several seeds. "
        f"The paper has no scores for {unpublished_presets}; [CLIP](clip.md) quotes those of another paper."
    )
    start = "Each preset starts from a configuration of MMF, or from mmfw's own (–):"
    return f"{_PRESETS_INTRO}\n{_format_table(scores)}\n{note}\n\n{start}\n\n{_format_table(sources)}"


def _format_table(rows: list[list[str]]) -> str:
    header, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *body))


def _format_percent(number: paper.PublishedScore | None) -> str:
    if number is None:
        return "–"
    return f"{100 * number.value:.2f}" + (
        f" ± {100 * number.standard_deviation:.2f}" if number.standard_deviation else ""
    )


def _python_page() -> str:
    text = _PYTHON_INTRO
    for name in _MODULES:
        module = import_module(name)
        text += _format_section(name, inspect.getdoc(module) or "")
        for public in (name for name in module.__all__ if not name.startswith("_")):
            text += "".join(
                _format_section(*section, level=3) for section in _iter_docstrings(public, getattr(module, public))
            )
    return text


def _iter_docstrings(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of a class or function, and of the public members of a class."""
    if inspect.isfunction(value):
        signature = re.sub(r"<function (\w+) at \w+>|'", r"\1", str(inspect.signature(value)))
        line = fill(f"{value.__name__}{signature}", _WIDTH, subsequent_indent=4 * " ", break_on_hyphens=False)
        yield name, f"{line}\n\n{inspect.getdoc(value)}"
    elif inspect.isclass(value):
        yield name, inspect.getdoc(value) or ""
        for inner, member in vars(value).items():
            if not inner.startswith("_"):
                yield from _iter_docstrings(f"{name}.{inner}", member)


def _format_section(name: str, text: str, level: int = 2) -> str:
    return f"\n{'#' * level} {name}\n\n```text\n{text.rstrip()}\n```\n"


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": _commands_page,
    "presets.md": _presets_page,
    "python.md": _python_page,
}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (DOCS / page).write_text(text(), encoding="utf-8", newline="\n")

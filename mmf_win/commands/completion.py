"""What the shell completes beside commands and options: presets, runs, splits and fixed words, else files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from mmf_win.dataset.annotations import splits_on_disk
from mmf_win.paths import Places
from mmf_win.runs import presets as presets_of_mmfw
from mmf_win.runs.lookup import all_runs

_Words = Callable[[Places], Iterable[str]]


def presets(_places: Places) -> Iterable[str]:
    """The names of the presets."""
    return presets_of_mmfw.names()


def runs(places: Places) -> Iterable[str]:
    """The names and ids of the runs, readable or not; the newest first."""
    found = all_runs(places.save_dir)
    return [*(run.path.parent.name for run in found), *(run.id for run in found)]


def splits(places: Places) -> Iterable[str]:
    """The splits of the dataset."""
    return splits_on_disk(places.dataset)


def completed_by(
    *kinds: _Words | str,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """The ``shell_complete`` of a parameter.

    Args:
        kinds: words, or what lists them in the folders that were named before or are the default.
    """

    def complete(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        places = Places.resolve(ctx.params.get("data_dir"), ctx.params.get("save_dir"))
        words: dict[str, None] = {}
        for kind in kinds:
            with suppress(OSError):  # a message would stand in the middle of the command
                words.update(dict.fromkeys([kind] if isinstance(kind, str) else kind(places)))
        found = [CompletionItem(word) for word in words if word.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    return complete

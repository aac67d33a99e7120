"""What the shell completes beside commands and options: presets, runs, splits and fixed words, else files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from mmf_win.dataset.annotations import splits_on_disk
from mmf_win.paths import Places
from mmf_win.runs import presets
from mmf_win.runs.folder import Run
from mmf_win.runs.lookup import all_runs

_LISTS: dict[str, Callable[[Places], Iterable[str]]] = {
    "PRESET": lambda _places: presets.names(),
    "RUN": lambda places: _names_and_ids(all_runs(places.save_dir)),
    "SPLIT": lambda places: splits_on_disk(places.dataset),
}


def completed_by(*words: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """The ``shell_complete`` of a parameter.

    Args:
        words: what may stand there. ``PRESET``, ``RUN`` and ``SPLIT`` are all of these, in the folders that
            were named before or are the default.
    """

    def complete(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        places = Places.resolve(ctx.params.get("data_dir"), ctx.params.get("save_dir"))
        known: dict[str, None] = {}
        for word in words:
            with suppress(OSError):  # a message would stand in the middle of the command
                known.update(dict.fromkeys(_LISTS[word](places) if word in _LISTS else [word]))
        found = [CompletionItem(word) for word in known if word.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    return complete


def _names_and_ids(runs: Sequence[Run]) -> list[str]:
    """Those of readable and unreadable runs; the newest first."""
    return [*(run.path.parent.name for run in runs), *(run.id for run in runs)]

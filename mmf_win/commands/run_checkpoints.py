"""``mmfw runs checkpoints``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import moment, print_json, say, size, table
from mmf_win.runs.checkpoints import SavedCheckpoint, listed
from mmf_win.runs.history import find


@click.command(
    "checkpoints",
    epilog="""\b
Examples:
  mmfw runs checkpoints
  mmfw runs checkpoints mmbt_grid --json
  mmfw predict --checkpoint save/mmbt_grid/2026-01-31T12-00-00/checkpoints/models/model_2000.ckpt""",
)
@click.argument("run", required=False)
@options.runs_dir
@options.as_json
def command(run: str | None, save_dir: Path, as_json: bool) -> None:
    """List a run's checkpoints, and which of them are intact; without a name, the newest run's.

    Every byte is read and compared with the checksums in the file. Names of the same bytes take their space
    once.
    """
    chosen = find(save_dir, run)
    found = listed(chosen)
    if as_json:
        checkpoints = [{**asdict(checkpoint), "state": _state(checkpoint)} for checkpoint in found]
        print_json({"run": chosen.id, "size": _on_disk(found), "checkpoints": checkpoints})
    elif not found:
        say(f"run {chosen.id} has no checkpoint yet")
    else:
        header = ("checkpoint", "update", "epoch", "AUROC", "size", "written", "same bytes as", "state")
        print(table(header, [_line(checkpoint) for checkpoint in found]))
        say(f"{size(_on_disk(found))} on disk: {chosen.checkpoints}")
        damaged = [checkpoint for checkpoint in found if checkpoint.problem]
        for checkpoint in damaged:
            say(f"{checkpoint.name}: {checkpoint.problem}")
        if damaged:
            say("`mmfw train --resume last` passes over damaged ones")


def _state(checkpoint: SavedCheckpoint) -> str:
    return "damaged" if checkpoint.problem else "intact"


def _line(c: SavedCheckpoint) -> tuple[object, ...]:
    written = moment(c.written)
    shared = ", ".join(c.same_as) or None
    return (c.name, c.update, c.epoch, c.auroc, size(c.size), written, shared, _state(c))


def _on_disk(found: list[SavedCheckpoint]) -> int:
    """Bytes of all of them, those with several names once."""
    return sum({frozenset((c.name, *c.same_as)): c.size for c in found}.values())

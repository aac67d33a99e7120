"""Micro-batches that fitted into memory; the next similar run starts with one that fitted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mmf_win.files import read_json, write_json
from mmf_win.locking import locked
from mmf_win.paths import tool_home
from mmf_win.protocol import Event
from mmf_win.runs.history import attempt_started

_MOST = 200
_PATIENCE = 5.0


def file() -> Path:
    """Where they are kept: a JSON object in mmfw's own folder."""
    return tool_home() / "fits.json"


def load() -> dict[str, int]:
    """What fitted, by what that depends on; a file that cannot be read holds nothing."""
    try:
        values = read_json(file())
    except (OSError, ValueError):
        return {}
    known = values.items() if isinstance(values, dict) else ()
    return {key: rows for key, rows in known if isinstance(rows, int) and rows > 0}


def remember(fit: str, rows: int | None) -> None:
    """Keep what fitted, by what that depends on; the oldest of very many are dropped.

    ``rows`` are None to forget it, as the whole batch fits.

    Raises:
        OSError: it cannot be written.
    """
    file().parent.mkdir(parents=True, exist_ok=True)
    with locked(file().with_suffix(".lock"), patience=_PATIENCE):
        before = load()
        others = {key: value for key, value in before.items() if key != fit}
        fits = {**others, fit: rows} if rows else others
        if fits != before:
            write_json(file(), dict(list(fits.items())[-_MOST:]))


def remember_training(events: list[Event]) -> None:
    """Keep what training succeeded with, also the whole batch; a search that was stopped leaves nothing."""
    started = attempt_started(events)
    if started is None or started["searching"] or not any(event["kind"] == "train" for event in events):
        return
    rows, batch = started["micro_batch"], started["batch"]
    with suppress(OSError):  # a finished run is worth more than a note about it
        remember(started["fit"], rows if rows < batch else None)

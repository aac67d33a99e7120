"""Micro-batches that fitted into memory; the next similar run starts with one that fitted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mmf_win.files import write_json
from mmf_win.locking import file_lock
from mmf_win.paths import mmfw_home
from mmf_win.protocol import Event
from mmf_win.records import read_record
from mmf_win.runs.history import attempt_start_event

_MAX_ENTRIES = 200


def store_path() -> Path:
    """Where they are kept: a JSON object in mmfw's own folder."""
    return mmfw_home() / "fits.json"


def load() -> dict[str, int]:
    """What fitted, by what that depends on; a file that cannot be read holds nothing."""
    with suppress(OSError, ValueError):
        fits = read_record(store_path(), dict[str, int])
        if all(rows > 0 for rows in fits.values()):
            return fits
    return {}


def remember(events: list[Event]) -> None:
    """Keep what a training succeeded with, by what that depends on; the oldest of very many are dropped.

    Nothing is kept where the whole batch fits, and a search that was stopped changes nothing.
    """
    started = attempt_start_event(events)
    if started is None or started["searching"] or not any(event["kind"] == "train" for event in events):
        return
    fit, rows = started["fit"], started["micro_batch"]
    with suppress(OSError):  # a finished run is worth more than a note about it
        store_path().parent.mkdir(parents=True, exist_ok=True)
        with file_lock(store_path().with_suffix(".lock"), timeout=5.0):
            before = load()
            fits = {key: value for key, value in before.items() if key != fit}
            if rows < started["batch"]:
                fits[fit] = rows
            if fits != before:
                write_json(store_path(), dict(list(fits.items())[-_MAX_ENTRIES:]))

"""Micro-batches that fitted into memory; the next similar run starts with the one that fitted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mmf_win.files import write_json
from mmf_win.locking import file_lock
from mmf_win.paths import mmfw_home
from mmf_win.protocol import Event
from mmf_win.records import read_record
from mmf_win.runs.history import find_attempt_start_event

_MAX_ENTRIES = 200


def store_path() -> Path:
    """Return the path of the store, a JSON object in mmfw's own folder."""
    return mmfw_home() / "fits.json"


def load_micro_batches() -> dict[str, int]:
    """Return the known micro-batches (rows) by what they depend on; empty if the file cannot be read."""
    with suppress(OSError, ValueError):
        micro_batches = read_record(store_path(), dict[str, int])
        if all(rows > 0 for rows in micro_batches.values()):
            return micro_batches
    return {}


def save_micro_batch(events: list[Event]) -> None:
    """Store the micro-batch that a successful training used, dropping the oldest entries above the limit.

    Nothing is stored if the whole batch fitted, or if the search for a micro-batch was stopped.
    """
    start = find_attempt_start_event(events)
    if start is None or start["searching"] or not any(event["kind"] == "train" for event in events):
        return
    fit_key, rows = start["fit"], start["micro_batch"]
    with suppress(OSError):  # the store is optional, and the run has succeeded
        store_path().parent.mkdir(parents=True, exist_ok=True)
        with file_lock(store_path().with_suffix(".lock"), timeout=5.0):
            previous = load_micro_batches()
            micro_batches = {key: value for key, value in previous.items() if key != fit_key}
            if rows < start["batch"]:
                micro_batches[fit_key] = rows
            if micro_batches != previous:
                write_json(store_path(), dict(list(micro_batches.items())[-_MAX_ENTRIES:]))

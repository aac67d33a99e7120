"""Events: appending them to a file, and reading them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from mmf_win.files import add_path_to_errors, json_bytes, require_no_special_file
from mmf_win.protocol.metrics import rename_metrics
from mmf_win.records import decode_json, optional_fields

Event = dict[str, Any]

#: Upper limit of times, in seconds since the epoch; every system and library can show earlier ones.
MAX_TIMESTAMP = 2**33

# Types of the fields of all kinds of events; the package's docstring lists the fields of each kind.
_EVENT_FIELDS = optional_fields(
    **dict.fromkeys(("kind", "attempt", "outcome", "reason", "device", "precision", "text", "fit"), str),
    **dict.fromkeys(("sha256", "source", "address", "quantity", "table", "verdict", "check"), str),
    **dict.fromkeys(("mmfw", "python", "torch", "transformers", "omegaconf", "mmf", "onnxruntime"), str),
    **dict.fromkeys(("module", "advice"), str | None),
    **dict.fromkeys(("pid", "update", "epoch", "batch", "rows", "done", "total", "copied"), int),
    **dict.fromkeys(("workers", "processes", "seed"), int),
    **dict.fromkeys(("max_updates", "micro_batch", "parameters", "max_mem_mib"), int | None),
    **dict.fromkeys(("t", "seconds", "checkpoint", "validation"), float),
    **dict.fromkeys(("loss", "lr", "updates_per_s", "gpu_busy"), float | None),
    **dict.fromkeys(("searching", "known_fit", "found", "final", "best", "images_once"), bool),
    inputs_finite=bool | None,
    **dict.fromkeys(("data", "metrics", "next", "waiting", "spent"), dict[str, Any] | None),
    **dict.fromkeys(("missing", "bad_parameters", "bad_fields", "memes"), list[str]),
    **dict.fromkeys(("ids", "bad_ids"), list[int]),
)


def append_event(path: Path, event: Event, *, sync: bool = False) -> None:
    """Append an event to a file in one write.

    Args:
        path: The file.
        event: The event with all of its fields.
        sync: Wait until the event is on the disk.
    """
    with add_path_to_errors(path), path.open("a+b", buffering=0) as file:
        line = b"\n" * _is_torn(file) + json_bytes(event)
        while line:  # a write may be partial without an error, up to the last byte that fits on the disk
            line = line[file.write(line) :]
        if sync:
            os.fsync(file.fileno())


def _is_torn(file: BinaryIO) -> bool:
    """Return whether the last line is incomplete, because its writer was killed or the disk was full."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


class EventReader:
    """Reader of a growing file of events; each call of :meth:`poll` yields the new ones.

    Args:
        path: The file, which need not exist yet.
        from_end: Skip the existing events.
        keep_mmf_names: Do not rename the metrics of events that earlier versions wrote with MMF's names.
    """

    def __init__(self, path: Path, *, from_end: bool = False, keep_mmf_names: bool = False) -> None:
        self.path, self._keep_mmf_names = path, keep_mmf_names
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def poll(self) -> Iterator[Event]:
        """Yield new complete events; an incomplete last line is left for the next call."""
        require_no_special_file(self.path)
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return
        end = new.rfind(b"\n") + 1
        self._offset += end
        for line in new[:end].splitlines():
            with suppress(ValueError):
                event = decode_json(line, _EVENT_FIELDS)
                steps = event.get("update", 0), event.get("done", 0)  # trackers and plots use 64 bits
                if "kind" in event and 0 <= event.get("t", 0) < MAX_TIMESTAMP and max(map(abs, steps)) < 2**63:
                    if event.get("metrics") and not self._keep_mmf_names:
                        event["metrics"] = rename_metrics(event["metrics"])
                    yield event


def read_events(path: Path) -> list[Event]:
    """Return all complete events in ``path``, an empty list if the file does not exist."""
    return list(EventReader(path).poll())

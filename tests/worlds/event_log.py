"""Events of a run, written as an attempt writes them."""

from __future__ import annotations

from pathlib import Path

from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.attempt import TrainTask


class EventLog:
    """Log ``events.jsonl`` of a run, to which one attempt writes."""

    def __init__(self, path: Path, attempt: str) -> None:
        self._attempt = AttemptRequest(TrainTask(), "mmbt", "mmf", str(path.with_name("attempts") / attempt))
        assert self._attempt.events == path

    def write(self, kind: str, **values: object) -> None:
        """Append one event."""
        self._attempt.write_event(kind, **values)

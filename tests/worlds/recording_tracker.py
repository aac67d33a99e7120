"""Tracker that records all data in memory, and fails on request of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmf_win.tracking.tracker import MetricPoint, RunInfo, Tracker


class RecordingTracker(Tracker):
    """Tracker without a server.

    Attributes:
        failing_methods: Methods that raise instead of recording; for a file, ``file <name>``.
        run_id: Id that the next :meth:`open_run` returns.
        opened_runs: Argument of each :meth:`open_run`.
        sent_points: All points, in the order of their arrival.
        settings, tags: Arguments of the last :meth:`log_params`.
        files: ``<folder>/<name>`` → the contents that were sent under this name, oldest first.
        states: All states, in the order of their arrival.
        call_count: Number of method calls.
    """

    name = "recording"
    id_variable = "RECORDING_RUN_ID"
    address_variable = "RECORDING_TRACKER"
    probe = ("/", None, set())
    server = "offline"
    project = "test"

    def __init__(self) -> None:
        self.failing_methods: set[str] = set()
        self.run_id = "run 1"
        self.opened_runs: list[RunInfo] = []
        self.sent_points: list[MetricPoint] = []
        self.settings: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.files: dict[str, list[bytes]] = {}
        self.states: list[str] = []
        self.call_count = 0

    def steps(self, series: str) -> list[int]:
        """Return the updates of the points of a series, in the order of their arrival."""
        return [point.step for point in self.sent_points if point.name == series]

    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        """Record the run and return :attr:`run_id`."""
        self._record_call("open")
        self.opened_runs.append(run_info)
        return self.run_id, f"https://tracker.example/{self.run_id}"

    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Record the settings and the tags."""
        self._record_call("describe")
        self.settings, self.tags = dict(settings), dict(tags)

    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        """Record the points."""
        self._record_call("points")
        self.sent_points += points

    def log_artifact(self, path: Path, folder: str) -> None:
        """Record the current content of the file."""
        self._record_call(f"file {path.name}")
        self.files.setdefault(f"{folder}/{path.name}".lstrip("/"), []).append(path.read_bytes())

    def set_status(self, state: str, t: float) -> None:
        """Record the state."""
        self._record_call(f"state {state}")
        self.states.append(state)

    def _record_call(self, method: str) -> None:
        self.call_count += 1
        if method in self.failing_methods:
            raise ConnectionError(f"{method}: connection refused")


class BufferingTracker(RecordingTracker):
    """Recording tracker that confirms the arrival of data only when it is closed."""

    confirms = False

    def close(self) -> None:
        """Record the call; raise if the test requests it."""
        self._record_call("close")

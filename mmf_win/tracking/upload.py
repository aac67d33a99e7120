"""Upload of a run's new data to a tracker.

The upload state in ``<run>/tracking/<tracker>-<hash of its address>.json`` is saved after data was sent.
If it is lost, all data is sent again with the same names, updates and times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from mmf_win.errors import InUseError
from mmf_win.files import link_or_copy, read_json, remove_tree, write_bytes, write_json
from mmf_win.locking import file_lock
from mmf_win.protocol import Event, EventReader
from mmf_win.protocol.metrics import is_number, series_values
from mmf_win.records import read_record, to_stored
from mmf_win.runs.folder import Run
from mmf_win.runs.history import run_state
from mmf_win.runs.request import format_override_value
from mmf_win.scrub import is_secret, make_scrubber
from mmf_win.tracking.tracker import CheckpointChoice, MetricPoint, RunInfo, Tracker
from mmf_win.upstream.overrides import iter_leaves

SweepInfo = tuple[str, str, str]
_CHECKPOINT_FILES = {"best": "best.ckpt", "last": "current.ckpt"}
_METRICS_SUFFIX = ".metrics.json"
_START_FIELDS = ("seed", "batch", "micro_batch", "precision", "device", "parameters", "max_updates")
_MAX_EVENTS_AT_ONCE = 500


@dataclass(frozen=True)
class UploadOptions:
    """Optional uploads, in addition to settings, scalars, predictions and the outcome.

    Attributes:
        models: Checkpoint to upload.
        pages: Whether to upload the report pages, which contain memes.
        sweep: Key, name and lock of the run's sweep; see :class:`RunInfo`.
    """

    models: CheckpointChoice = "none"
    pages: bool = False
    sweep: SweepInfo | None = None

    @property
    def arguments(self) -> list[str]:
        """Command-line arguments with the same meaning."""
        models = ["--track-models", self.models] if self.models != "none" else []
        return [*models, *(["--track-page"] if self.pages else [])]


@dataclass
class UploadState:
    """Data of a run that a tracker already has.

    Attributes:
        tracker: Name of the tracker.
        address: Address of the tracker.
        upload: Destination; empty before the first upload, and in files of earlier versions.
        id: ID of the run at the tracker; ``None`` before it exists.
        link: URL or folder of the run.
        events: Number of sent events, by event file.
        files: Size and time of the sent version, by file; ``settings`` has the hash of the parameters.
        state: State of the run.
        models: Time of the last upload of a checkpoint, in seconds since the epoch.
        error: Reason that the last upload failed, or ``None``.
    """

    tracker: str
    address: str
    upload: str = ""
    id: str | None = None
    link: str | None = None
    events: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    state: str = ""
    models: float = 0.0
    error: str | None = None

    @classmethod
    def load(cls, run: Run, tracker: Tracker) -> UploadState:
        """Load the upload state; return an empty one if it cannot be read."""
        new = cls(tracker.name, tracker.address)
        return next((state for state in load_upload_states(run) if state.file_stem == new.file_stem), new)

    @property
    def file_stem(self) -> str:
        """Name of the state file, without its suffix."""
        return f"{self.tracker}-{sha256(self.address.encode()).hexdigest()[:8]}"

    def save(self, run: Run) -> None:
        """Write the state file."""
        write_json(run.tracking / f"{self.file_stem}.json", asdict(self))

    def upload_lock(self, run: Run, timeout: float = 0.0) -> AbstractContextManager[int]:
        """Lock the upload of a run to this tracker.

        Args:
            run: Run to lock.
            timeout: Seconds to wait for another process.

        Returns:
            A context manager that holds the lock; it raises InUseError if another process does.
        """
        run.tracking.mkdir(exist_ok=True)
        in_use = InUseError(f"another process is uploading run {run.id} to {self.tracker}")
        return file_lock(run.tracking / f"{self.file_stem}.lock", timeout, in_use_error=in_use)


def load_upload_states(run: Run) -> list[UploadState]:
    """Return the upload states of a run, one per tracker."""
    states = []
    for file in sorted(run.tracking.glob("*.json")):
        with suppress(OSError, ValueError):
            states.append(read_record(file, UploadState))
    # Earlier versions recorded runs without a link that W&B did not send, being offline or disabled.
    return [state for state in states if state.link or state.id is None]


def list_event_files(run: Run) -> dict[str, Path]:
    """Return the event files of a run and its predictions, by their names in the upload state."""
    files = (run.events, *sorted(run.path.glob("attempts/*/events.jsonl")))
    return {file.relative_to(run.path).as_posix(): file for file in files}


class Uploader:
    """Uploader of a run's new data, to call repeatedly; after an exception, create a new one."""

    def __init__(self, run: Run, tracker: Tracker, options: UploadOptions) -> None:
        self.upload_state = UploadState.load(run, tracker)
        self._run, self._tracker, self._options = run, tracker, options
        self._is_open = False
        self._reset()

    def _reset(self) -> None:
        """Start to read all events again."""
        self._readers: dict[str, EventReader] = {}
        self._event_counts: dict[str, int] = {}
        self._resumed_at: list[int] = []
        self._max_update, self._last_time = 0, 0.0
        self._start_event: Event = {}
        self._update_by_sha256: dict[str, int] = {}  # of saved checkpoints
        self._best_sha256: str | None = None

    def upload_new(self, checkpoint_interval_s: float = 0.0) -> bool:
        """Upload the new data of the run.

        Args:
            checkpoint_interval_s: Minimum seconds between two uploads of a checkpoint.

        Returns:
            Whether there was new data.

        Raises:
            Exception: Any exception of the tracker's package.
            DataError: A file of the run is invalid.
            OSError: A file of the run cannot be read, or the upload state cannot be written.
        """
        run, uploaded, request = self._run, self.upload_state, self._run.request()
        secrets = [*os.environ.items(), *((key, str(value)) for key, value in iter_leaves(request.settings))]
        self._request, self._scrub = request, make_scrubber(secrets)
        outcome = "done" if request.published_weights else run_state(run)
        new_events = [*self._read_new_events()]
        settings, tags = self._run_params(), {"mmfw.outcome": outcome}
        if self._resumed_at:
            tags["resumed_at"] = ", ".join(map(str, self._resumed_at))
        params_hash = sha256(repr((sorted(settings.items()), tags)).encode(errors="replace")).hexdigest()
        files = [entry for entry in self._iter_files(checkpoint_interval_s) if uploaded.files.get(entry[0]) != entry[2]]
        is_new = new_events or files or self._tracker.env_run_id not in (None, uploaded.id)
        if not is_new and (params_hash, outcome) == (uploaded.files.get("settings"), uploaded.state):
            return False
        if not self._is_open:
            self._open_run()
            if self.upload_state is not uploaded:  # the tracker has another, empty run
                self._reset()
                return self.upload_new(checkpoint_interval_s)
        if uploaded.state != "running":
            self._tracker.set_status("running", time.time())  # an ended run may reject data
            uploaded.state = "running"
        if params_hash != uploaded.files.get("settings"):
            self._tracker.log_params(settings, tags)
            self._record_upload(uploaded.files, {"settings": params_hash})
        for first in range(0, len(new_events), _MAX_EVENTS_AT_ONCE):
            batch = new_events[first : first + _MAX_EVENTS_AT_ONCE]
            if points := [point for _, _, points in batch for point in points]:
                self._tracker.log_metrics(points)
            self._record_upload(uploaded.events, {name: count for name, count, _ in batch})
        for name, file, stamp in files:
            self._upload_file(name, file)
            self._record_upload(uploaded.files, {name: stamp})
        if outcome != uploaded.state:
            self._tracker.set_status(outcome, self._last_time or time.time())
            uploaded.state = outcome
            self._record_upload(uploaded.files, {})
        return True

    def close(self) -> None:
        """Wait until all data has arrived, and save the upload state."""
        self._tracker.close()
        if self._is_open:
            self.upload_state.save(self._run)

    def _open_run(self) -> None:
        """Open the run at the tracker; if it is not the recorded one, start with an empty upload state."""
        created, sweep, state = self._request.created, self._options.sweep, self.upload_state
        parent = None if sweep is None else RunInfo(*sweep[:2], created, lock=sweep[2])
        path_parts = self._run.path.parts[-2:] if sweep is None else (sweep[0], *self._run.path.parts[-3:])
        key = sha256(f"{'/'.join(path_parts)} {created!r}".encode(errors="replace")).hexdigest()[:32]
        id_ = self._tracker.env_run_id or state.id
        run_info = RunInfo(key, self._run.id, created, parent, folder=self._run.tracking, id=id_)
        run_id, link = self._tracker.open_run(run_info)
        self._is_open = True
        if run_id != state.id:
            self.upload_state = UploadState(state.tracker, state.address, self._tracker.upload, run_id, link)
            self.upload_state.save(self._run)

    def _record_upload(self, uploaded: dict[str, Any], new: dict[str, Any]) -> None:
        uploaded.update(new)
        self.upload_state.error = None
        if self._tracker.confirms:
            self.upload_state.save(self._run)

    def _read_new_events(self) -> Iterator[tuple[str, int, list[MetricPoint]]]:
        """Yield for each unsent event: its file, the number of events up to it, and its points."""
        for name, file in list_event_files(self._run).items():
            for event in self._readers.setdefault(name, EventReader(file, keep_mmf_names=True)).poll():
                self._event_counts[name] = self._event_counts.get(name, 0) + 1
                points = [*self._event_points(event, name)]
                if self._event_counts[name] > self.upload_state.events.get(name, 0):
                    yield name, self._event_counts[name], points

    def _event_points(self, event: Event, file: str) -> Iterator[MetricPoint]:
        """Yield the points of the next event of a file, and remember its other data.

        If training resumes from a checkpoint before the last point, its further points form a new branch,
        whose series end in ``/2``, ``/3`` and so on, because trackers cannot remove points.

        Yields:
            The points.
        """
        kind, update, t = event["kind"], event.get("update"), event.get("t", 0.0)
        values: dict[str, Any] = series_values(event)
        if kind == "predict":
            update = event.get("done")
            values[file.replace("events.jsonl", "memes")] = update
        if update is None:
            return
        self._last_time = t
        if kind == "train_started":
            self._start_event = event
            if update < self._max_update:
                self._resumed_at.append(update)
                self._max_update = update
        elif kind == "checkpoint":
            sha256 = event.get("sha256", "")
            self._update_by_sha256[sha256] = update
            self._best_sha256 = sha256 if event.get("best") else self._best_sha256
        # The final validation may be of an earlier checkpoint.
        elif kind in ("train", "val") and not event.get("final"):
            self._max_update = max(self._max_update, update)
        branch = f"/{len(self._resumed_at) + 1}" if self._resumed_at and kind != "predict" else ""
        for name, value in values.items():
            yield MetricPoint(name + branch, float(value), update, t)

    def _iter_files(self, checkpoint_interval_s: float) -> Iterator[tuple[str, Path, str]]:
        """Yield the name, path and stamp of each file to upload."""
        run, checkpoint_choice = self._run, self._options.models
        files = [run.request_file, run.checkpoints / "config.yaml", *sorted(run.reports.glob(f"*{_METRICS_SUFFIX}"))]
        files += [file.with_name(file.name.removesuffix(_METRICS_SUFFIX) + ".csv") for file in files[2:]]
        files += sorted(run.reports.glob("*.html")) if self._options.pages else []
        if checkpoint_choice != "none" and time.time() >= self.upload_state.models + checkpoint_interval_s:
            files.append(run.checkpoints / _CHECKPOINT_FILES[checkpoint_choice])
        for file in files:
            with suppress(FileNotFoundError):
                stat = file.stat()
                yield file.relative_to(run.path).as_posix(), file, f"{stat.st_size} {stat.st_mtime_ns}"

    def _upload_file(self, name: str, file: Path) -> None:
        """Upload a file in its current version, even if it is replaced during the upload."""
        staged = self._run.tracking / f"{self.upload_state.file_stem}.staged"
        if staged.exists():  # left by a follower that was killed
            remove_tree(staged)
        staged.mkdir()
        try:
            copy = staged / file.name
            if file.suffix in (".json", ".yaml"):
                text = self._scrub(file.read_text(encoding="utf-8", errors="replace"))
                write_bytes(copy, text.encode(errors="replace"))
            else:
                link_or_copy(file, copy)
            if name.endswith(_METRICS_SUFFIX):
                self._tracker.log_metrics([*self._score_points(file)])
            is_model = file.suffix == ".ckpt"
            self._tracker.log_artifact(copy, file.parent.name if is_model or file.parent == self._run.reports else "")
            self.upload_state.models = time.time() if is_model else self.upload_state.models
        finally:
            remove_tree(staged)

    def _score_points(self, file: Path) -> Iterator[MetricPoint]:
        """Yield the scores of a prediction, at the update of its checkpoint; none from an invalid record."""
        try:
            record = read_json(file)
            sha256, t = record["members"][0]["checkpoint_sha256"], float(record["created"])
            split = record["split"]
        except (LookupError, TypeError, ValueError):
            return
        update = self._update_by_sha256.get(sha256, 0)
        by = f"update {update}/" if sha256 in self._update_by_sha256 and sha256 != self._best_sha256 else ""
        for name, value in record.items():
            if isinstance(value, float) and is_number(value) and name not in ("created", "threshold"):
                yield MetricPoint(f"{split}/{by}{name}", value, update, t)

    def _run_params(self) -> dict[str, str]:
        """Return the run's settings and start parameters as text, with secrets masked."""
        request, stored_request = self._request, to_stored(self._request)
        params = {name: stored_request[name] for name in ("preset", "model", "mmf", "init", "start")}
        params |= {f"split.{slot}": split for slot, split in request.splits.items()}
        params |= {key: value for key, value in iter_leaves(request.settings) if key}
        params |= {name: self._start_event[name] for name in _START_FIELDS if name in self._start_event}
        texts = {key: format_override_value(value) for key, value in params.items() if value is not None}
        return {key: "<secret>" if is_secret(key) else self._scrub(value) for key, value in texts.items()}

"""Sends what a tracker does not have of a run yet.

What it has is noted in ``<run>/tracking/<tracker>-<hash of its address>.json`` after it was sent. Where the
note is lost, all is sent once more, under the same names, updates and times.
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
from mmf_win.records import read_record
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
_MAX_EVENTS_AT_ONCE = 500  # events


@dataclass(frozen=True)
class UploadOptions:
    """What is sent beside settings, scalars, predictions and the outcome.

    Attributes:
        models: which checkpoint.
        pages: whether the pages in the run's reports are sent, which hold memes.
        sweep: key, name and lock of the sweep that the run is of; see :class:`RunInfo`.
    """

    models: CheckpointChoice = "none"
    pages: bool = False
    sweep: SweepInfo | None = None

    @property
    def arguments(self) -> list[str]:
        """The options that choose it."""
        models = ["--track-models", self.models] if self.models != "none" else []
        return [*models, *(["--track-page"] if self.pages else [])]


@dataclass
class UploadState:
    """What a tracker has of a run.

    Attributes:
        tracker, address: which one.
        upload: where it lies; empty in notes of earlier versions, and before anything was sent.
        id, link: of the run there; None before there is one.
        events: file of events → how many of them.
        files: file, or what else may change → what it was like.
        state: how the run was.
        models: when a checkpoint was sent last, in seconds since the epoch.
        error: why the rest could not be sent; None where all is well.
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
        """What is noted; nothing where that cannot be read."""
        new = cls(tracker.name, tracker.address)
        return next((sent for sent in load_upload_states(run) if sent.file_stem == new.file_stem), new)

    @property
    def file_stem(self) -> str:
        """The name of the note, without its suffix."""
        return f"{self.tracker}-{sha256(self.address.encode()).hexdigest()[:8]}"

    def save(self, run: Run) -> None:
        """Note it."""
        write_json(run.tracking / f"{self.file_stem}.json", asdict(self))

    def upload_lock(self, run: Run, timeout: float = 0.0) -> AbstractContextManager[int]:
        """Send to it alone: the block raises InUseError where another process does for so many seconds."""
        run.tracking.mkdir(exist_ok=True)
        refused = InUseError(f"another process sends run {run.id} to {self.tracker}")
        return file_lock(run.tracking / f"{self.file_stem}.lock", timeout, in_use_error=refused)


def load_upload_states(run: Run) -> list[UploadState]:
    """What each tracker has of a run."""
    found = []
    for file in sorted(run.tracking.glob("*.json")):
        with suppress(OSError, ValueError):
            found.append(read_record(file, UploadState))
    # Earlier versions noted runs that W&B, which was offline or disabled, did not send: they have no link.
    return [sent for sent in found if sent.link or sent.id is None]


def event_files(run: Run) -> dict[str, Path]:
    """The files of events of a run and its predictions, by their names in the notes."""
    files = (run.events, *sorted(run.path.glob("attempts/*/events.jsonl")))
    return {file.relative_to(run.path).as_posix(): file for file in files}


class Uploader:
    """Sends what is new of a run, again and again; after an error, another one must be made."""

    def __init__(self, run: Run, tracker: Tracker, options: UploadOptions) -> None:
        self.upload_state = UploadState.load(run, tracker)
        self._run, self._tracker, self._options = run, tracker, options
        self._is_open = False
        self._reset()

    def _reset(self) -> None:
        """Read all events anew."""
        self._readers: dict[str, EventReader] = {}
        self._event_counts: dict[str, int] = {}
        self._resumed_at: list[int] = []
        self._max_update, self._last_time = 0, 0.0
        self._start_event: Event = {}
        self._update_by_sha256: dict[str, int] = {}  # hash of a checkpoint → its update
        self._best_sha256: str | None = None

    def upload_new(self, checkpoint_interval_s: float = 0.0) -> bool:
        """Send what is new, and return whether anything was.

        Args:
            between_models: seconds from one checkpoint to the next.

        Raises:
            Exception: whatever the tracker's package raises.
            DataError, OSError: a file of the run cannot be read, or no note be written.
        """
        run, sent, request = self._run, self.upload_state, self._run.request()
        secrets = [*os.environ.items(), *((key, str(value)) for key, value in iter_leaves(request.settings))]
        self._request, self._scrub = request, make_scrubber(secrets)
        now = "done" if request.published_weights else run_state(run)
        new = [*self._read_new_events()]
        settings, tags = self._run_params(), {"mmfw.outcome": now}
        if self._resumed_at:
            tags["resumed_at"] = ", ".join(map(str, self._resumed_at))
        described = sha256(repr((sorted(settings.items()), tags)).encode(errors="replace")).hexdigest()
        files = [
            due for due in self._iter_upload_files(checkpoint_interval_s) if sent.files.get(due[0]) != due[2]
        ]
        is_new = new or files or self._tracker.env_run_id not in (None, sent.id)
        if not is_new and (described, now) == (sent.files.get("settings"), sent.state):
            return False
        if not self._is_open:
            self._open_run()
            if self.upload_state is not sent:  # nothing of it is there
                self._reset()
                return self.upload_new(checkpoint_interval_s)
        if sent.state != "running":
            self._tracker.set_status("running", time.time())  # an ended run may refuse more
            sent.state = "running"
        if described != sent.files.get("settings"):
            self._tracker.log_params(settings, tags)
            self._record_upload(sent.files, {"settings": described})
        for first in range(0, len(new), _MAX_EVENTS_AT_ONCE):
            some = new[first : first + _MAX_EVENTS_AT_ONCE]
            if points := [point for _, _, points in some for point in points]:
                self._tracker.log_metrics(points)
            self._record_upload(sent.events, {name: count for name, count, _ in some})
        for name, file, like in files:
            self._upload_file(name, file)
            self._record_upload(sent.files, {name: like})
        if now != sent.state:
            self._tracker.set_status(now, self._last_time or time.time())
            sent.state = now
            self._record_upload(sent.files, {})
        return True

    def close(self) -> None:
        """See to it that all has arrived, and note that."""
        self._tracker.close()
        if self._is_open:
            self.upload_state.save(self._run)

    def _open_run(self) -> None:
        """Open the run there; what is noted holds if it is the one that was noted."""
        created, sweep = self._request.created, self._options.sweep
        parent = None if sweep is None else RunInfo(*sweep[:2], created, lock=sweep[2])
        named = self._run.path.parts[-2:] if sweep is None else (sweep[0], *self._run.path.parts[-3:])
        own = sha256(f"{'/'.join(named)} {created!r}".encode(errors="replace")).hexdigest()[:32]
        id_ = self._tracker.env_run_id or self.upload_state.id
        about = RunInfo(own, self._run.id, created, parent, folder=self._run.tracking, id=id_)
        found, link = self._tracker.open_run(about)
        self._is_open = True
        if found != self.upload_state.id:
            self.upload_state = UploadState(
                self.upload_state.tracker, self.upload_state.address, self._tracker.upload, found, link
            )
            self.upload_state.save(self._run)

    def _record_upload(self, uploaded: dict[str, Any], new: dict[str, Any]) -> None:
        uploaded.update(new)
        self.upload_state.error = None
        if self._tracker.confirms:
            self.upload_state.save(self._run)

    def _read_new_events(self) -> Iterator[tuple[str, int, list[MetricPoint]]]:
        """Of each event that was not sent: its file, how many are there with it, and the points in it."""
        for name, file in event_files(self._run).items():
            for event in self._readers.setdefault(name, EventReader(file, keep_mmf_names=True)).poll():
                self._event_counts[name] = self._event_counts.get(name, 0) + 1
                points = [*self._event_points(event, name)]
                if self._event_counts[name] > self.upload_state.events.get(name, 0):
                    yield name, self._event_counts[name], points

    def _event_points(self, event: Event, file: str) -> Iterator[MetricPoint]:
        """The points in the next event of a file; what it tells besides is remembered.

        After a resume from a checkpoint that lies behind the last point, training is another branch, whose
        series end in ``/2``, ``/3`` and so on, since no tracker takes points back.
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
        elif kind in ("train", "val") and not event.get("final"):  # that one's checkpoint may lie behind
            self._max_update = max(self._max_update, update)
        branch = f"/{len(self._resumed_at) + 1}" if self._resumed_at and kind != "predict" else ""
        for name, value in values.items():
            yield MetricPoint(name + branch, float(value), update, t)

    def _iter_upload_files(self, checkpoint_interval_s: float) -> Iterator[tuple[str, Path, str]]:
        """Name, place and stamp of each file that is to be there."""
        run, wanted = self._run, self._options.models
        found = [
            run.request_file,
            run.checkpoints / "config.yaml",
            *sorted(run.reports.glob(f"*{_METRICS_SUFFIX}")),
        ]
        found += [file.with_name(file.name.removesuffix(_METRICS_SUFFIX) + ".csv") for file in found[2:]]
        found += sorted(run.reports.glob("*.html")) if self._options.pages else []
        if wanted != "none" and time.time() >= self.upload_state.models + checkpoint_interval_s:
            found.append(run.checkpoints / _CHECKPOINT_FILES[wanted])
        for file in found:
            with suppress(FileNotFoundError):
                stat = file.stat()
                yield file.relative_to(run.path).as_posix(), file, f"{stat.st_size} {stat.st_mtime_ns}"

    def _upload_file(self, name: str, file: Path) -> None:
        """Send a file as it is now, whatever takes its place meanwhile."""
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
            self._tracker.log_artifact(
                copy, file.parent.name if is_model or file.parent == self._run.reports else ""
            )
            self.upload_state.models = time.time() if is_model else self.upload_state.models
        finally:
            remove_tree(staged)

    def _score_points(self, file: Path) -> Iterator[MetricPoint]:
        """The scores of a prediction, at the update of its checkpoint; none of a record that is odd."""
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
        """What the run was asked for and how it began, for people, with secrets masked."""
        request = self._request
        told = {name: getattr(request, name) for name in ("preset", "model", "mmf", "init", "start")}
        told |= {f"split.{slot}": split for slot, split in request.splits.items()}
        told |= {key: value for key, value in iter_leaves(request.settings) if key}
        told |= {name: self._start_event[name] for name in _START_FIELDS if name in self._start_event}
        shown = {key: format_override_value(value) for key, value in told.items() if value is not None}
        return {key: "<secret>" if is_secret(key) else self._scrub(value) for key, value in shown.items()}

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
from mmf_win.tracking.tracker import About, Models, Point, Tracker
from mmf_win.upstream.overrides import leaves

Sweep = tuple[str, str, str]
_CHECKPOINTS = {"best": "best.ckpt", "last": "current.ckpt"}
_SCORES = ".metrics.json"
_FACTS = ("seed", "batch", "micro_batch", "precision", "device", "parameters", "max_updates")
_AT_ONCE = 500  # events


@dataclass(frozen=True)
class What:
    """What is sent beside settings, scalars, predictions and the outcome.

    Attributes:
        models: which checkpoint.
        pages: whether the pages in the run's reports are sent, which hold memes.
        sweep: key, name and lock of the sweep that the run is of; see :class:`About`.
    """

    models: Models = "none"
    pages: bool = False
    sweep: Sweep | None = None

    @property
    def options(self) -> list[str]:
        """The options that choose it."""
        models = ["--track-models", self.models] if self.models != "none" else []
        return [*models, *(["--track-page"] if self.pages else [])]


@dataclass
class Sent:
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
    def of(cls, run: Run, tracker: Tracker) -> Sent:
        """What is noted; nothing where that cannot be read."""
        new = cls(tracker.name, tracker.address)
        return next((sent for sent in destinations(run) if sent.place == new.place), new)

    @property
    def place(self) -> str:
        """The name of the note, without its suffix."""
        return f"{self.tracker}-{sha256(self.address.encode()).hexdigest()[:8]}"

    def save(self, run: Run) -> None:
        """Note it."""
        write_json(run.tracking / f"{self.place}.json", asdict(self))

    def alone(self, run: Run, patience: float = 0.0) -> AbstractContextManager[int]:
        """Send to it alone: the block raises InUseError where another process does for so many seconds."""
        run.tracking.mkdir(exist_ok=True)
        refused = InUseError(f"another process sends run {run.id} to {self.tracker}")
        return file_lock(run.tracking / f"{self.place}.lock", patience, in_use_error=refused)


def destinations(run: Run) -> list[Sent]:
    """What each tracker has of a run."""
    found = []
    for file in sorted(run.tracking.glob("*.json")):
        with suppress(OSError, ValueError):
            found.append(read_record(file, Sent))
    # Earlier versions noted runs that W&B, which was offline or disabled, did not send: they have no link.
    return [sent for sent in found if sent.link or sent.id is None]


def event_files(run: Run) -> dict[str, Path]:
    """The files of events of a run and its predictions, by their names in the notes."""
    files = (run.events, *sorted(run.path.glob("attempts/*/events.jsonl")))
    return {file.relative_to(run.path).as_posix(): file for file in files}


class Sender:
    """Sends what is new of a run, again and again; after an error, another one must be made."""

    def __init__(self, run: Run, tracker: Tracker, what: What) -> None:
        self.sent = Sent.of(run, tracker)
        self._run, self._tracker, self._what = run, tracker, what
        self._is_open = False
        self._begin()

    def _begin(self) -> None:
        """Read all events anew."""
        self._readers: dict[str, EventReader] = {}
        self._seen: dict[str, int] = {}
        self._resumed_at: list[int] = []
        self._furthest, self._last = 0, 0.0
        self._started: Event = {}
        self._saved: dict[str, int] = {}  # hash of a checkpoint → its update
        self._best: str | None = None

    def send(self, between_models: float = 0.0) -> bool:
        """Send what is new, and return whether anything was.

        Args:
            between_models: seconds from one checkpoint to the next.

        Raises:
            Exception: whatever the tracker's package raises.
            DataError, OSError: a file of the run cannot be read, or no note be written.
        """
        run, sent, request = self._run, self.sent, self._run.request()
        secrets = [*os.environ.items(), *((key, str(value)) for key, value in leaves(request.settings))]
        self._request, self._scrub = request, make_scrubber(secrets)
        now = "done" if request.published_weights else run_state(run)
        new = [*self._new_events()]
        settings, tags = self._settings(), {"mmfw.outcome": now}
        if self._resumed_at:
            tags["resumed_at"] = ", ".join(map(str, self._resumed_at))
        described = sha256(repr((sorted(settings.items()), tags)).encode(errors="replace")).hexdigest()
        files = [due for due in self._files(between_models) if sent.files.get(due[0]) != due[2]]
        is_new = new or files or self._tracker.given_id not in (None, sent.id)
        if not is_new and (described, now) == (sent.files.get("settings"), sent.state):
            return False
        if not self._is_open:
            self._open()
            if self.sent is not sent:  # nothing of it is there
                self._begin()
                return self.send(between_models)
        if sent.state != "running":
            self._tracker.state("running", time.time())  # an ended run may refuse more
            sent.state = "running"
        if described != sent.files.get("settings"):
            self._tracker.describe(settings, tags)
            self._note(sent.files, {"settings": described})
        for first in range(0, len(new), _AT_ONCE):
            some = new[first : first + _AT_ONCE]
            if points := [point for _, _, points in some for point in points]:
                self._tracker.points(points)
            self._note(sent.events, {name: count for name, count, _ in some})
        for name, file, like in files:
            self._send_file(name, file)
            self._note(sent.files, {name: like})
        if now != sent.state:
            self._tracker.state(now, self._last or time.time())
            sent.state = now
            self._note(sent.files, {})
        return True

    def close(self) -> None:
        """See to it that all has arrived, and note that."""
        self._tracker.close()
        if self._is_open:
            self.sent.save(self._run)

    def _open(self) -> None:
        """Open the run there; what is noted holds if it is the one that was noted."""
        created, sweep = self._request.created, self._what.sweep
        parent = None if sweep is None else About(*sweep[:2], created, lock=sweep[2])
        named = self._run.path.parts[-2:] if sweep is None else (sweep[0], *self._run.path.parts[-3:])
        own = sha256(f"{'/'.join(named)} {created!r}".encode(errors="replace")).hexdigest()[:32]
        id_ = self._tracker.given_id or self.sent.id
        about = About(own, self._run.id, created, parent, folder=self._run.tracking, id=id_)
        found, link = self._tracker.open(about)
        self._is_open = True
        if found != self.sent.id:
            self.sent = Sent(self.sent.tracker, self.sent.address, self._tracker.upload, found, link)
            self.sent.save(self._run)

    def _note(self, known: dict[str, Any], new: dict[str, Any]) -> None:
        known.update(new)
        self.sent.error = None
        if self._tracker.confirms:
            self.sent.save(self._run)

    def _new_events(self) -> Iterator[tuple[str, int, list[Point]]]:
        """Of each event that was not sent: its file, how many are there with it, and the points in it."""
        for name, file in event_files(self._run).items():
            for event in self._readers.setdefault(name, EventReader(file, keep_mmf_names=True)).poll():
                self._seen[name] = self._seen.get(name, 0) + 1
                points = [*self._points(event, name)]
                if self._seen[name] > self.sent.events.get(name, 0):
                    yield name, self._seen[name], points

    def _points(self, event: Event, file: str) -> Iterator[Point]:
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
        self._last = t
        if kind == "train_started":
            self._started = event
            if update < self._furthest:
                self._resumed_at.append(update)
                self._furthest = update
        elif kind == "checkpoint":
            sha256 = event.get("sha256", "")
            self._saved[sha256] = update
            self._best = sha256 if event.get("best") else self._best
        elif kind in ("train", "val") and not event.get("final"):  # that one's checkpoint may lie behind
            self._furthest = max(self._furthest, update)
        branch = f"/{len(self._resumed_at) + 1}" if self._resumed_at and kind != "predict" else ""
        for name, value in values.items():
            yield Point(name + branch, float(value), update, t)

    def _files(self, between_models: float) -> Iterator[tuple[str, Path, str]]:
        """Name, place and stamp of each file that is to be there."""
        run, wanted = self._run, self._what.models
        found = [run.request_file, run.checkpoints / "config.yaml", *sorted(run.reports.glob(f"*{_SCORES}"))]
        found += [file.with_name(file.name.removesuffix(_SCORES) + ".csv") for file in found[2:]]
        found += sorted(run.reports.glob("*.html")) if self._what.pages else []
        if wanted != "none" and time.time() >= self.sent.models + between_models:
            found.append(run.checkpoints / _CHECKPOINTS[wanted])
        for file in found:
            with suppress(FileNotFoundError):
                stat = file.stat()
                yield file.relative_to(run.path).as_posix(), file, f"{stat.st_size} {stat.st_mtime_ns}"

    def _send_file(self, name: str, file: Path) -> None:
        """Send a file as it is now, whatever takes its place meanwhile."""
        staged = self._run.tracking / f"{self.sent.place}.staged"
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
            if name.endswith(_SCORES):
                self._tracker.points([*self._scores(file)])
            is_model = file.suffix == ".ckpt"
            self._tracker.file(copy, file.parent.name if is_model or file.parent == self._run.reports else "")
            self.sent.models = time.time() if is_model else self.sent.models
        finally:
            remove_tree(staged)

    def _scores(self, file: Path) -> Iterator[Point]:
        """The scores of a prediction, at the update of its checkpoint; none of a record that is odd."""
        try:
            record = read_json(file)
            sha256, t = record["members"][0]["checkpoint_sha256"], float(record["created"])
            split = record["split"]
        except (LookupError, TypeError, ValueError):
            return
        update = self._saved.get(sha256, 0)
        by = f"update {update}/" if sha256 in self._saved and sha256 != self._best else ""
        for name, value in record.items():
            if isinstance(value, float) and is_number(value) and name not in ("created", "threshold"):
                yield Point(f"{split}/{by}{name}", value, update, t)

    def _settings(self) -> dict[str, str]:
        """What the run was asked for and how it began, for people, with secrets masked."""
        request = self._request
        told = {name: getattr(request, name) for name in ("preset", "model", "mmf", "init", "start")}
        told |= {f"split.{slot}": split for slot, split in request.splits.items()}
        told |= {key: value for key, value in leaves(request.settings) if key}
        told |= {name: self._started[name] for name in _FACTS if name in self._started}
        shown = {key: format_override_value(value) for key, value in told.items() if value is not None}
        return {key: "<secret>" if is_secret(key) else self._scrub(value) for key, value in shown.items()}

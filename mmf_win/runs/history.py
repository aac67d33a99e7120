"""State, progress and scores of runs, as read from their files."""

from __future__ import annotations

import errno
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from mmf_win.console import Timestamp, summarize_list
from mmf_win.dataset.coverage import Coverage
from mmf_win.errors import DataError
from mmf_win.files import disk_usage
from mmf_win.locking import is_locked
from mmf_win.protocol import AttemptOutcome, Event, read_events
from mmf_win.records import to_stored
from mmf_win.runs.folder import Run
from mmf_win.runs.lookup import list_runs, warn_if_time_uncertain
from mmf_win.runs.request import RunRequest, format_override_value
from mmf_win.runs.scores import RunScores, common_split, is_test_split, read_scores, val_auroc
from mmf_win.upstream.config import MMFW_GROUP, parse_yaml
from mmf_win.upstream.overrides import iter_leaves

_log = logging.getLogger(__name__)

_REQUEST_KEYS = {"model", "config", "start", "init", "mmf", "published_weights", "splits", "data_dir"}
# User settings that have their own column, or that concern only this machine.
_KEYS_IN_OTHER_COLUMNS = {"training.seed", "training.max_updates", "training.max_epochs", "env.user_dir"}
_KEYS_IN_OTHER_COLUMNS |= {f"{MMFW_GROUP}.updates", f"{MMFW_GROUP}.keep", f"{MMFW_GROUP}.teacher_sha256"}
_COVERAGE_COLUMNS = {"validated_on": "val", "tested_on": "test"}
# Keys that differ between any two runs or machines without affecting the result.
_UNCOMPARED_KEYS = {f"request.{key}" for key in ("created", "published", "preset_settings")}
_UNCOMPARED_KEYS |= {f"mmf.{key}" for key in ("env", "config", "config_override", "opts", "overrides")}


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run, one row of the list of runs.

    Attributes:
        id: ``<name>/<time>``.
        path: Folder of the run.
        preset: Preset that was trained.
        state: ``done``, ``running``, ``interrupted``, ``killed``, ``failed: <class>``, ``published`` for
            published weights (never trained here), or ``unreadable`` (the other fields are then unknown).
        updates, max_updates: Completed and total updates; ``None`` before training started.
        best_auroc: Validation AUROC of the best checkpoint, 0 to 1.
        validated_on: Coverage of that validation; before the first one, the split that will be used.
        test_auroc: AUROC of the newest prediction of a test split with the best checkpoint, 0 to 1.
        test_checkpoint: ``best``; ``update 300`` before there is a best; ``unknown`` if an older version
            trained or predicted and did not record the hash.
        tested_on: Coverage of that prediction; a list uses one split.
        seed: Random seed at the start of training.
        mmf: Version of MMF that trained the run.
        differs: User settings as ``KEY=VALUE`` that not all runs of the list share, overrides included.
        started: Seconds since the epoch.
        seconds: Training time over all attempts.
        size: Bytes on disk; hard links of the same file are counted once.
    """

    id: str
    path: str
    preset: str = ""
    state: str = "unreadable"
    updates: int | None = None
    max_updates: int | None = None
    best_auroc: float | None = None
    validated_on: Coverage | None = None
    test_auroc: float | None = None
    test_checkpoint: str | None = None
    tested_on: Coverage | None = None
    seed: int | None = None
    mmf: str | None = None
    differs: str | None = None
    started: Timestamp | None = None
    seconds: float = 0.0
    size: int = 0

    def columns(self) -> dict[str, Any]:
        """Return the values by column name; a ``Coverage`` becomes three columns, such as ``val_split``."""
        columns: dict[str, Any] = {}
        for name, value in vars(self).items():
            slot = _COVERAGE_COLUMNS.get(name)
            parts = {f"{slot}_{part.name}": getattr(value, part.name, None) for part in fields(Coverage)}
            columns |= parts if slot else {name: value}
        return columns


@dataclass(frozen=True)
class RunRecord:
    """Content of a run's files, each read once."""

    run: Run
    request: RunRequest
    events: Sequence[Event]
    scores: RunScores
    state: str

    @classmethod
    def read(cls, run: Run) -> RunRecord:
        """Read the files of a run.

        Returns:
            The record.

        Raises:
            DataError: The request, events or outcome of the run is damaged.
            OSError: A file or the lock cannot be read.
        """
        request, events = run.request(), read_run_events(run)
        scores = read_scores(run, events, request.published_sha256)
        return cls(run, request, events, scores, "published" if request.published_weights else run_state(run))

    def attempt_outcome(self, attempt: str) -> str | None:
        """Return the kind of an attempt's outcome, or ``None`` if it was killed or its file is damaged."""
        with suppress(DataError):
            outcome = AttemptOutcome.load(self.run.attempt(attempt).outcome_file)
            return outcome.kind if outcome else None
        return None

    @cached_property
    def summary(self) -> RunSummary:
        """Summary that compares the run with no other run, so ``differs`` lists all its user settings."""
        return _summarize_records([self])[self.run]


def summarize_runs(
    save_dir: Path, *, preset: str | None = None, state: str | None = None, limit: int | None = None
) -> list[RunSummary]:
    """Summarize the runs of a save dir, newest first; log a warning for each unreadable run.

    Args:
        save_dir: Save dir, or folder of a sweep.
        preset: Only runs of this preset.
        state: Only runs in this state; ``failed`` includes all classes.
        limit: Maximum number of runs.

    Returns:
        One summary per run.
    """
    records: dict[Run, RunRecord | None] = {}
    for run in list_runs(save_dir):
        if len(records) == limit:
            break
        record = None
        try:
            record = RunRecord.read(run)
        except (DataError, OSError) as error:
            _log.warning("run %s cannot be read: %s", run.id, error)
        record_preset, record_state = (record.request.preset, record.state) if record else ("", "unreadable")
        if preset in (None, record_preset) and state in (None, record_state.partition(":")[0]):
            warn_if_time_uncertain(run)
            records[run] = record
    summaries = _summarize_records([record for record in records.values() if record])
    return [summaries.get(run) or RunSummary(run.id, str(run.path), size=disk_usage(run.path)[0]) for run in records]


def training_progress(events: Sequence[Event]) -> tuple[int | None, int | None]:
    """Return completed and total updates according to the events (``None`` if unknown)."""
    # The final validation uses the best checkpoint, which may be older.
    counted = [event["update"] for event in events if "update" in event and not event.get("final")]
    limits = [event["max_updates"] for event in events if event.get("max_updates") is not None]
    return counted[-1] if counted else None, limits[-1] if limits else None


def _summarize_records(records: Sequence[RunRecord]) -> dict[Run, RunSummary]:
    """Return a summary of each run; all test scores in them are scores of the same split.

    If there are several runs, ``differs`` omits the user settings that all of them share.
    """
    split = common_split(filter(is_test_split, record.scores.scored_by_split) for record in records)
    settings = [_format_user_settings(record.request) for record in records]
    common = set.intersection(*map(set, settings)) if len(records) > 1 else set()
    differing = [" ".join(item for item in items if item not in common) for items in settings]
    pairs = zip(records, differing, strict=True)
    return {record.run: _summarize_record(record, split, items or None) for record, items in pairs}


def _summarize_record(record: RunRecord, test_split: str | None, differs: str | None) -> RunSummary:
    run, request, events, scores = record.run, record.request, record.events, record.scores
    update, limit = training_progress(events)
    val = request.splits.get("val")
    seeds = (e["seed"] for e in events if e["kind"] == "train_started" and "seed" in e)
    test = scores.scored_by_split.get(test_split or "")
    return RunSummary(
        id=run.id,
        path=str(run.path),
        preset=request.preset,
        state=record.state,
        updates=update,
        max_updates=limit
        or (None if request.training_number("max_epochs") else request.training_number("max_updates")),
        best_auroc=scores.best_auroc,
        validated_on=scores.validated_on or (Coverage(val) if val else None),
        test_auroc=test.auroc if test else None,
        test_checkpoint=test.checkpoint if test else None,
        tested_on=test.coverage if test else None,
        seed=next(seeds, request.training_number("seed")),
        mmf=request.mmf_version or None,
        differs=differs,
        started=Timestamp(request.created),
        seconds=round(_training_seconds(events), 1),
        size=disk_usage(run.path)[0],
    )


def _format_user_settings(request: RunRequest) -> list[str]:
    """Return the user settings of a run as ``KEY=VALUE``."""
    sources = {"init": request.init_weights, "start": request.start_checkpoint}
    values: dict[str, Any] = {name: Path(file).name for name, file in sources.items() if file}
    prefix = f"{MMFW_GROUP}."
    values |= {
        key.removeprefix(prefix): value
        for key, value in request.user_settings.items()
        if key not in _KEYS_IN_OTHER_COLUMNS and not (key.startswith(prefix) and value in (None, False))
    }
    return [f"{key}={format_override_value(value)}" for key, value in values.items()]


def describe_run(record: RunRecord) -> dict[str, Any]:
    """Return everything that the files of a run record: summary, request, attempts, scores and predictions.

    Raises:
        DataError: The outcome of the run is damaged.
        OSError: The outcome of the run cannot be read.
    """
    run, request, events = record.run, record.request, record.events
    request_values = to_stored(request)
    train_data = [event.get("data") for event in reversed(events) if event["kind"] == "train_started"]
    outcome = AttemptOutcome.load(run.outcome_file)
    return {
        **record.summary.columns(),
        "why": outcome.message or None if outcome else None,
        **{key: request_values[key] for key in request_values if key in _REQUEST_KEYS},
        "settings": request.user_settings,
        "loaded": [describe_loaded_weights(event) for event in events if event["kind"] == "loaded"],
        "trained_on": next((asdict(c) for c in map(Coverage.from_json, train_data) if c is not None), None),
        "attempts": [
            {key: cast(event[key]) for key, cast in (("attempt", str), ("t", Timestamp)) if key in event}
            for event in events
            if event["kind"] == "run_started"
        ],
        "validations": [
            {"update": event.get("update"), "auroc": score, **_coverage_columns(Coverage.from_json(event.get("data")))}
            for event in events
            if (score := val_auroc(event)) is not None and not event.get("final")
        ],
        "checkpoints": [str(path) for path in sorted(run.checkpoints.glob("*.ckpt"))],
        "predictions": [
            {"csv": str(p.csv), "checkpoint": p.checkpoint, "auroc": p.auroc, **_coverage_columns(p.coverage)}
            for p in sorted(record.scores.predictions, key=lambda p: p.csv)
        ],
    }


def diff_runs(first: Run, second: Run) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two runs differ, as key → values of both; ``None`` for a missing key.

    Keys starting with ``request.`` are from the run requests. Keys starting with ``mmf.`` are from the
    configuration that MMF resolved, and are compared only if both runs have one.

    Raises:
        DataError: The request or configuration of a run cannot be read.
    """
    one, other = read_comparable_config(first), read_comparable_config(second)
    resolved = all(any(key.startswith("mmf.") for key in config) for config in (one, other))
    keys = (key for key in sorted(one.keys() | other.keys()) if resolved or not key.startswith("mmf."))
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def read_comparable_config(run: Run) -> dict[str, Any]:
    """Return the settings of a run that :func:`diff_runs` compares, by key.

    Raises:
        DataError: The request or configuration cannot be read.
    """
    values, config = dict(iter_leaves(to_stored(run.request()), "request")), run.checkpoints / "config.yaml"
    if config.is_file():
        from omegaconf import OmegaConf

        try:  # without resolving interpolations
            mmf_config = OmegaConf.to_container(parse_yaml(config.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{config}: {error}") from None
        values.update(iter_leaves(mmf_config, "mmf"))
    return {
        key: value
        for key, value in values.items()
        if ".".join(key.split(".")[:2]) not in _UNCOMPARED_KEYS
        # An unset setting is equal to a missing key.
        and not (key.startswith(f"request.settings.{MMFW_GROUP}.") and value in (None, False))
    }


def run_state(run: Run) -> str:
    """Return the state of a trained run; on file systems without locks, a run never counts as running.

    Returns:
        One of the states of :class:`RunSummary`.

    Raises:
        DataError: The outcome is damaged.
        OSError: The outcome or the lock cannot be read.
    """
    try:
        if is_locked(run.training_lock_file):
            return "running"
    except OSError as error:
        if error.errno != errno.ENOLCK:
            raise
    outcome = AttemptOutcome.load(run.outcome_file)
    if outcome is None:
        return "killed"
    return {"ok": "done", "interrupted": "interrupted"}.get(outcome.kind, f"failed: {outcome.kind}")


def find_changed_splits(run: Run, current_data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the annotation files (stems) that changed since the run last trained and validated.

    Args:
        run: The run.
        current_data: For ``train`` and ``val``, the annotations in use now, with their ``sha256``.
    """
    changed, events = [], read_run_events(run)
    for slot, kind in (("train", "train_started"), ("val", "val")):
        recorded = [event["data"] for event in events if event["kind"] == kind and event.get("data")]
        if recorded and slot in current_data and recorded[-1].get("sha256") not in (None, current_data[slot]["sha256"]):
            changed.append(str(recorded[-1].get("split")))
    return changed


def read_run_events(run: Run) -> list[Event]:
    """Read the events of a run.

    Returns:
        The events.

    Raises:
        DataError: The file is not empty but contains no event.
    """
    events = read_events(run.events)
    if not events and run.events.exists() and run.events.stat().st_size:
        raise DataError(f"{run.events}: contains no events")
    return events


def find_attempt_start_event(events: list[Event]) -> Event | None:
    """Return the event that started an attempt's training or prediction, with the final micro-batch."""
    start_event: Event | None = None
    for event in events:
        if event["kind"] in ("train_started", "predict_started"):
            start_event = dict(event)
        elif event["kind"] == "micro_batch" and start_event is not None:
            start_event["micro_batch"], start_event["searching"] = event["rows"], not event["found"]
    return start_event


def describe_loaded_weights(event: Event) -> str:
    """Describe an event of the kind ``loaded`` in one line."""
    text = f"{event['source']}: {event['copied']:,} of the model's {event['total']:,} tensors"
    missing = event["missing"]
    return f"{text}; not in the file: {summarize_list(missing)}" if missing else text


def _coverage_columns(coverage: Coverage | None) -> dict[str, Any]:
    return {} if coverage is None else asdict(coverage)


def _training_seconds(events: Sequence[Event]) -> float:
    """Return the time between the first and last event of each attempt, summed over the attempts."""
    times: defaultdict[str | None, list[float]] = defaultdict(list)
    for event in events:
        if "t" in event:
            times[event.get("attempt")].append(event["t"])
    return float(sum(max(timestamps) - min(timestamps) for timestamps in times.values()))

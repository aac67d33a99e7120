"""The plain files through which the parent and the worker speak.

::

    parent ── request.json ──▶ worker       what to do
    parent ◀── events.jsonl ── worker       what happens; append-only, one JSON object a line
    parent ── stop ──────────▶ worker       an empty file: please save and leave
    parent ◀── exit.json ───── worker       how it ended; written last

Files need no signals and no sockets, so both systems behave alike, a killed parent loses nothing, and
``events.jsonl`` is the run's history. Readers skip kinds and fields that they do not know.

An event has ``t`` in seconds since the epoch, ``kind``, ``attempt``, and what belongs to its kind::

    run_started      pid, and the versions that a result depends on
    loaded           source (a file of weights, or the name of a model), copied, total (tensors of the model),
                     missing (names of those that the source did not set, the first of them)
    train_started    update (where it begins), max_updates, device, precision, batch, micro_batch, searching
                     (whether that is only to measure with), workers (of the DataLoader), processes (that
                     train together), seed, parameters (how many), known_fit (whether the micro-batch fitted
                     before), fit (what that depends on), data (as in Attempt; null where it is not known)
    micro_batch      rows (of a micro-batch from here on), found (whether this is what was looked for)
    train            update, max_updates, epoch, loss, lr, updates_per_s, max_mem_mib
    val              update, metrics, final (whether of the best checkpoint, after training), data (as above)
    saving           update; a checkpoint is about to be written
    checkpoint       update; it is written, with this sha256; best (whether also as the best one so far)
    note             text; something that the user should know
    alive            progress that has no event of its own
    predict_started  device, precision, batch, workers
    predict          done, total: rows
    checked          a Remark of one check before training; see dataset/remarks.py
    profiled         what was measured of a training that is profiled; see runs/profiling.py
    nonfinite        text (the message), update (done before), quantity (not finite: loss, gradient, weights),
                     bad_parameters; of a loss or gradient also module (the first one), inputs_finite (whether
                     its were), ids (of the pass), bad_ids (of its rows), bad_fields (of the batch)
    exported         seconds that the export of the model took
    serving          address, where a worker that stays warm waits for its parent; see answering.py
    run_ended        outcome
    attempt_failed   reason, next: what the next attempt has less of; written by the parent

Each is one write at the end of the file. A prediction has a file of its own in its attempt's folder, since
Windows does not keep the writes of two processes apart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Literal, Union, get_args, get_origin, get_type_hints

from mmf_win.errors import SHM_HINT, DataError
from mmf_win.files import json_bytes, naming, read_json, remove, require_end, write_json
from mmf_win.paths import Inside

Event = dict[str, Any]
Action = Literal["train", "predict"]
Outcome = Literal[
    "ok",
    "interrupted",
    "cuda_oom",
    "host_oom",
    "disk",
    "nan",
    "killed",
    "data",
    "checkpoint",
    "untrusted",
    "config",
    "mmf",
    "network",
    "internal",
]
"""How an attempt ends; ``disk``: no more can be written; ``untrusted``: a checkpoint could run code."""

Precision = Literal["fp32", "bf16", "fp16"]
"""What a model calculates with: numbers of 32 bits, or of 16 where that is exact enough."""

LATEST = 2**33
"""The end of time, in seconds since the epoch: every system and library can show an earlier one."""

_MOST = 2**63
_TYPES: dict[str, Any] = {  # of fields of events, in every kind that has them
    "t": float,
    **dict.fromkeys(("kind", "attempt", "outcome", "reason", "device", "precision", "text", "fit"), str),
    **dict.fromkeys(("sha256", "source", "address", "module"), str),
    **dict.fromkeys(("update", "epoch", "batch", "rows", "done", "total", "copied"), int),
    **dict.fromkeys(("workers", "processes", "seed"), int),
    **dict.fromkeys(("max_updates", "micro_batch", "parameters", "max_mem_mib"), int | None),
    **dict.fromkeys(("loss", "lr", "updates_per_s"), float | None),
    **dict.fromkeys(("searching", "known_fit", "found", "final", "best", "inputs_finite"), bool),
    **dict.fromkeys(("data", "metrics", "next"), dict | None),
    **dict.fromkeys(("missing", "bad_parameters", "bad_fields"), list[str]),
    **dict.fromkeys(("ids", "bad_ids"), list[int]),
}


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and the files in it that the worker writes."""

    path: Path

    events = Inside("events.jsonl")
    """Of all attempts to train."""
    exit_file = Inside("exit.json")
    """That of the last attempt to train; not there while it runs, nor where it was killed."""
    lock = Inside("lock")
    """Held while the run is being trained."""
    log = Inside("log.txt")
    """The whole output of the workers that trained."""


@dataclass(frozen=True)
class AttemptFolder:
    """The folder of one attempt, and the files in it."""

    path: Path

    request = Inside("request.json")
    stop = Inside("stop")
    exit = Inside("exit.json")
    config = Inside("mmf.yaml")
    """The MMF configuration made from the request."""
    reserve = Inside("reserve")
    """Takes up the room that ``exit.json`` needs on a full disk."""
    helper_exit = Inside("helper_exit.json")
    """Why a rank failed, or a process of a DataLoader could not begin: the first of them says it."""
    events = Inside("events.jsonl")
    """What happened in a prediction, since several may predict at once."""
    raw = Inside("raw")
    """Predictions as MMF wrote them."""
    log = Inside("log.txt")
    """The whole output of a worker that predicted."""
    logs = Inside("logs")
    trace = Inside("trace.json")
    """What torch saw of a few updates of a profiled training, for Chrome."""


@dataclass(frozen=True)
class Attempt:
    """What an attempt is to do; saved as ``attempts/<n>/request.json``.

    Attributes:
        action: train a model, or predict with one.
        model: MMF's name of the model.
        mmf: the folder that holds the packages ``mmf`` and ``mmf_cli``.
        attempt_dir: the attempt's folder, ``<run>/attempts/<n>``; it is named when the attempt begins.
        settings: a tree of MMF's configuration keys, merged over the model's own configuration.
        base_config: MMF configuration file to start from; relative ones are looked for in MMF's tree.
        checkpoint: the file that training starts from, or whose weights predict; ``settings`` name it too.
        precision: what the model calculates with; None for what MMF's configuration says.
        fast: take ways that change results by more than floating-point noise.
        keep: how many older checkpoints stay beside the best and the current one.
        micro_batch: rows of one forward pass in training, over all GPUs; None: what fitted, or else all.
        find_micro_batch: look for the largest that fits, when none is set and none is known.
        eval_batch: the same for validation and prediction; None for the whole batch.
        fits: micro-batches that fitted before, by what they depend on.
        data: MMF's name of a split → which annotations it reads, as ``{"split": "dev_unseen", "rows": 433,
            "full_rows": 540, "sha256": "…"}``; ``full_rows`` is null where it is not known.
        weights_alone: of the checkpoint, load the model's weights and nothing else.
        trust: load a checkpoint with classes that torch refuses, and run code that comes with a model.
        asks_hub: it may need more of the Hugging Face Hub than what is here.
        images: the folder of decoded images and, beside it, outputs of frozen models; None to keep none.
        annotations: the annotation file that is predicted; the result must have its ids.
        keep_annotations: leave a copy of it beside the result, since it is nowhere else.
        report: where the checked predictions go.
        export: the folder into which the model is exported once the rows are predicted; None not to.
        int8: export it with weights of 8 bits, too.
        serve: once the rows are predicted, stay, and answer what is asked.
        profile: updates of a training that is measured, and whose weights nobody wants; 0 for any other.
        total: after how many updates training ends, also where MMF counts epochs; None where only MMF knows.
        check: only check the model and its rows, and end before the first update.
        nproc: how many processes of this machine train together.
        nnodes: on how many machines.
        node_rank: which of them this is, from 0.
        rdzv: where several machines meet, as ``HOST:PORT``.
        teacher: id of a training row, as MMF has it → the teacher's probability that it is hateful.
        teacher_weight: the share of the teacher in the training loss.
    """

    action: Action
    model: str
    mmf: str
    attempt_dir: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    base_config: str | None = None
    checkpoint: str | None = None
    precision: Precision | None = None
    fast: bool = False
    keep: int = 1
    micro_batch: int | None = None
    find_micro_batch: bool = False
    eval_batch: int | None = None
    fits: dict[str, int] = field(default_factory=dict)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights_alone: bool = False
    trust: bool = False
    asks_hub: bool = True
    images: str | None = None
    annotations: str | None = None
    keep_annotations: bool = False
    report: str | None = None
    export: str | None = None
    int8: bool = False
    serve: bool = False
    profile: int = 0
    total: int | None = None
    check: bool = False
    nproc: int = 1
    nnodes: int = 1
    node_rank: int = 0
    rdzv: str | None = None
    teacher: dict[str, float] = field(default_factory=dict)
    teacher_weight: float = 0.0

    @property
    def run(self) -> RunFolder:
        """The run's files."""
        return RunFolder(Path(self.attempt_dir).parents[1])

    @property
    def attempt(self) -> AttemptFolder:
        """The attempt's files."""
        return AttemptFolder(Path(self.attempt_dir))

    @property
    def is_trial(self) -> bool:
        """Whether nobody wants its weights."""
        return self.check or self.profile > 0

    @property
    def events(self) -> Path:
        """Where the worker says what happens."""
        return self.run.events if self.action == "train" else self.attempt.events

    @property
    def log(self) -> Path:
        """Where the worker's output goes."""
        return self.run.log if self.action == "train" else self.attempt.log

    def save(self) -> None:
        """Write the request to its place."""
        write_json(self.attempt.request, asdict(self))

    def write_event(self, kind: str, **values: object) -> None:
        """Append one event, in one write; ``t`` is seconds since the epoch."""
        event = {"t": round(time.time(), 3), "kind": kind, "attempt": self.attempt.path.name, **values}
        with naming(self.events), self.events.open("a+b", buffering=0) as file:
            line = b"\n" * _is_torn(file) + json_bytes(event)
            while line:  # the last byte that fits on a disk is written without an error
                line = line[file.write(line) :]
            if kind == "saving":  # no power cut may leave a checkpoint of which nothing tells
                os.fsync(file.fileno())

    @classmethod
    def load(cls, path: Path) -> Attempt:
        """Read a request, skipping fields of later versions."""
        return cls(**known_fields(cls, read_json(path)))


@dataclass(frozen=True)
class Exit:
    """How an attempt ended.

    Attributes:
        message: one line for the user; empty when all went well.
        hint: what to do next, where the worker knows it.
        where: the innermost MMF or mmfw frame of the error, as ``file:line``.
        validating: whether the error came out of the scoring of the validation set.
        place: of a value that is not finite, what the event ``nonfinite`` says.
    """

    outcome: Outcome
    message: str = ""
    hint: str | None = None
    where: str | None = None
    validating: bool = False
    place: dict[str, Any] | None = None

    def save(self, path: Path) -> None:
        """Write the exit as JSON."""
        write_json(path, asdict(self))

    def record(self, asked: Attempt) -> None:
        """Write the exit of an attempt where it is looked for, as far as a full disk lets it."""
        with suppress(OSError):
            remove(asked.attempt.reserve)
            if self.place is not None:
                asked.write_event("nonfinite", **self.place)
            asked.write_event("run_ended", outcome=self.outcome)
        for file in (asked.attempt.exit, *([asked.run.exit_file] if asked.action == "train" else [])):
            with suppress(OSError):
                self.save(file)

    def save_first(self, path: Path) -> None:
        """Write the exit, unless another process has written one there."""
        with suppress(FileExistsError), path.open("xb") as file:
            file.write(json_bytes(asdict(self)))

    @classmethod
    def of_death(cls, code: int, who: str) -> Exit:
        """That of a process that said nothing, such as ``the worker``; a negative code is a signal."""
        if code == -9:
            return cls("killed", f"{who} was killed from outside (kill -9), or because memory ran out")
        if code == -7:
            return cls("host_oom", f"{who} died of a bus error, most likely as /dev/shm is full", SHM_HINT)
        return cls("internal", f"{who} exited unexpectedly (code {code})")

    @classmethod
    def load(cls, path: Path) -> Exit | None:
        """Read an exit, skipping fields of later versions; None without a file, DataError of another one."""
        try:
            return cls(**known_fields(cls, read_json(path)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            raise DataError(f"{path}: it does not say how training or a prediction ended") from None


def known_fields(kind: type, values: Any) -> dict[str, Any]:
    """Those of ``values``, read from JSON, that are fields of a dataclass.

    Raises ValueError where it is no object, or a value is not of its field's type.
    """
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    types = {name: hint for name, hint in get_type_hints(kind).items() if name in values}
    for name, hint in types.items():
        if not is_a(values[name], hint):
            raise ValueError(f"{name} cannot be {str(values[name])[:40]!r}")
    return {name: values[name] for name in types}


def is_a(value: Any, hint: Any) -> bool:
    """Whether a value that was read from JSON is of a type, as annotations write it."""
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return value in parts
    if get_origin(hint) in (Union, UnionType):
        return any(is_a(value, part) for part in parts)
    if get_origin(hint) in (list, tuple):
        return isinstance(value, list) and all(is_a(item, parts[0]) for item in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(is_a(item, parts[1]) for item in value.values())
    if hint in (int, float):
        return type(value) in (int, hint) and -_MOST < value < _MOST
    return hint is Any or isinstance(value, hint)


def _is_torn(file: BinaryIO) -> bool:
    """Whether the last line has no end, since its writer was killed or the disk was full."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


class EventReader:
    """Reads events as they come; each call of :meth:`poll` yields what is new since the last one."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def poll(self) -> Iterator[Event]:
        """New complete events; a torn last line is left for the next call."""
        require_end(self.path)
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return
        end = new.rfind(b"\n") + 1
        self._offset += end
        for line in new[:end].splitlines():
            try:
                event = json.loads(line, parse_constant=lambda _: None)  # JSON knows no NaN
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and _is_event(event):
                yield event


def _is_event(event: Event) -> bool:
    """Whether an event's fields have the types that the protocol gives them."""
    types = {name: float if type(value) in (int, float) else Any for name, value in event.items()} | _TYPES
    typed = all(is_a(value, types[name]) for name, value in event.items())
    return typed and "kind" in event and bool(0 <= event.get("t", 0) < LATEST)


def read_events(path: Path) -> list[Event]:
    """All complete events in ``path``; none when there is no such file."""
    return list(EventReader(path).poll())

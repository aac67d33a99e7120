"""Attempts: the folders and files of a run, and what one attempt is to do."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmf_win.files import write_json
from mmf_win.paths import Inside
from mmf_win.protocol.events import append_event
from mmf_win.records import read_record

Action = Literal["train", "predict"]

#: The precision of a model's calculations: 32 bits, or 16 where that is exact enough.
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and the files in it that the worker writes."""

    path: Path

    #: Events of all attempts to train.
    events = Inside("events.jsonl")
    #: The outcome of the last attempt to train; absent while it runs and if it was killed.
    exit_file = Inside("exit.json")
    #: Held while the run is being trained.
    lock = Inside("lock")
    #: The whole output of the workers that trained.
    log = Inside("log.txt")


@dataclass(frozen=True)
class AttemptFolder:
    """The folder of one attempt, and the files in it."""

    path: Path

    request = Inside("request.json")
    stop = Inside("stop")
    exit = Inside("exit.json")
    #: The MMF configuration made from the request.
    config = Inside("mmf.yaml")
    #: Takes up the room that ``exit.json`` needs on a full disk.
    reserve = Inside("reserve")
    #: The first reason why a rank failed, or why a process of a DataLoader could not begin.
    helper_exit = Inside("helper_exit.json")
    #: Events of a prediction; a file of its own, since several may predict at once.
    events = Inside("events.jsonl")
    #: Predictions as MMF wrote them.
    raw = Inside("raw")
    #: The whole output of a worker that predicted.
    log = Inside("log.txt")
    logs = Inside("logs")
    #: What torch saw of a few updates of a profiled training, for Chrome.
    trace = Inside("trace.json")


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
        report: where the predictions of an exported model go.
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
        # No power cut may leave a checkpoint that no event mentions.
        append_event(self.events, event, sync=kind == "saving")

    @classmethod
    def load(cls, path: Path) -> Attempt:
        """Read a request, skipping fields of later versions."""
        return read_record(path, cls)

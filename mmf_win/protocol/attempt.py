"""Attempts: the folders and files of a run, and what one attempt is to do."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from mmf_win.files import write_json
from mmf_win.paths import ChildPath
from mmf_win.protocol.events import append_event
from mmf_win.records import from_stored, read_record, stored_as, to_stored

#: The precision of a model's calculations: 32 bits, or 16 where that is exact enough.
Precision = Literal["fp32", "bf16", "fp16"]


#: Files in the folder of a run for all its trainings, and in that of each prediction.
EVENTS, LOG = "events.jsonl", "log.txt"


@dataclass(frozen=True)
class AttemptFolder:
    """The folder of one attempt, and the files in it."""

    path: Path

    request_file = ChildPath("request.json")
    stop_file = ChildPath("stop")
    outcome_file = ChildPath("exit.json")
    #: The MMF configuration made from the request.
    config = ChildPath("mmf.yaml")
    #: Takes up the room that ``exit.json`` needs on a full disk.
    reserve_file = ChildPath("reserve")
    #: The first reason why a rank failed, or why a process of a DataLoader could not begin.
    helper_outcome_file = ChildPath("helper_exit.json")
    #: Events of a prediction; a file of its own, since several may predict at once.
    events = ChildPath(EVENTS)
    #: Predictions as MMF wrote them.
    raw_predictions = ChildPath("raw")
    #: The whole output of a worker that predicted.
    log = ChildPath(LOG)
    logs = ChildPath("logs")
    #: What torch saw of a few updates of a profiled training, for Chrome.
    trace = ChildPath("trace.json")

    def is_training(self) -> bool:
        """Tell by its request whether this is an attempt to train; False for one of an earlier version.

        A damaged request counts as one to train, unless the attempt has a folder for predictions.
        """
        try:
            kind = read_record(self.request_file, _RequestKind).get("kind", "")
        except OSError:  # there is no request yet, or only another user may read it
            return False
        except ValueError:
            return not self.raw_predictions.exists()
        return issubclass(_TASK_TYPES.get(kind, PredictTask), TrainTask)


class _RequestKind(TypedDict, total=False):
    kind: str


@dataclass(frozen=True)
class TrainTask:
    """Train to the end of a run.

    Attributes:
        keep_checkpoints: how many older checkpoints stay beside the best and the current one.
        micro_batch: rows of one forward pass in training, over all GPUs; None: what fitted, or else all.
        find_micro_batch: look for the largest that fits, when none is set and none is known.
        known_micro_batches: micro-batches that fitted before, by what they depend on.
        splits_read: MMF's name of a split → which annotations it reads, as ``{"split": "dev_unseen",
            "rows": 433, "full_rows": 540, "sha256": "…"}``; ``full_rows`` is null where it is not known.
        only_weights: of the checkpoint, load the model's weights and nothing else.
        total_updates: after how many updates training ends, also where MMF counts epochs; None where only
            MMF knows.
        nproc: how many processes of this machine train together.
        nnodes: on how many machines.
        node_rank: which of them this is, from 0.
        rdzv: where several machines meet, as ``HOST:PORT``.
        teacher_probas: id of a training row, as MMF has it → the teacher's probability that it is hateful.
        teacher_weight: the share of the teacher in the training loss.
    """

    keep_checkpoints: int = field(default=1, metadata=stored_as("keep"))
    micro_batch: int | None = None
    find_micro_batch: bool = False
    known_micro_batches: dict[str, int] = field(default_factory=dict, metadata=stored_as("fits"))
    splits_read: dict[str, dict[str, Any]] = field(default_factory=dict, metadata=stored_as("data"))
    only_weights: bool = field(default=False, metadata=stored_as("weights_alone"))
    total_updates: int | None = field(default=None, metadata=stored_as("total"))
    nproc: int = 1
    nnodes: int = 1
    node_rank: int = 0
    rdzv: str | None = None
    teacher_probas: dict[str, float] = field(default_factory=dict, metadata=stored_as("teacher"))
    teacher_weight: float = 0.0


@dataclass(frozen=True)
class CheckTask(TrainTask):
    """Check the model and its rows, and end before the first update."""


@dataclass(frozen=True)
class ProfileTask(TrainTask):
    """Measure a training of so many updates, whose weights nobody wants."""

    updates: int = 0


@dataclass(frozen=True)
class PredictTask:
    """Predict the rows of an annotation file; a process of an exported model writes them to
    ``predictions_file``.
    """

    annotations_file: str = field(metadata=stored_as("annotations"))
    predictions_file: str | None = field(default=None, metadata=stored_as("report"))


@dataclass(frozen=True)
class ExportTask(PredictTask):
    """Predict, and export the model into a folder; with ``int8`` with weights of 8 bits, too."""

    export_dir: str = field(default="", metadata=stored_as("folder"))
    int8: bool = False


@dataclass(frozen=True)
class ServeTask(PredictTask):
    """Predict, stay, and answer what is asked."""


AttemptTask = TrainTask | PredictTask
_TASK_TYPES: dict[str, type[AttemptTask]] = {
    "train": TrainTask,
    "check": CheckTask,
    "profile": ProfileTask,
    "predict": PredictTask,
    "export": ExportTask,
    "serve": ServeTask,
}


@dataclass(frozen=True)
class AttemptRequest:
    """The work of one attempt, saved as ``attempts/<n>/request.json``.

    Attributes:
        task: what it does; the file names its kind.
        model: MMF's name of the model.
        mmf_root: the folder that holds the packages ``mmf`` and ``mmf_cli``.
        attempt_dir: the attempt's folder, ``<run>/attempts/<n>``; it is named when the attempt begins.
        settings: a tree of MMF's configuration keys, merged over the model's own configuration.
        base_config: MMF configuration file to start from; relative ones are looked for in MMF's tree.
        checkpoint: the file that training starts from, or whose weights predict; ``settings`` name it too.
        precision: what the model calculates with; None for what MMF's configuration says.
        fast: take ways that change results by more than floating-point noise.
        eval_batch: rows of one forward pass in validation and prediction; None for the whole batch.
        trust: load a checkpoint with classes that torch refuses, and run code that comes with a model.
        may_query_hub: it may need more of the Hugging Face Hub than what is here.
        image_cache_dir: the folder of decoded images and, beside it, outputs of frozen models; None to keep
            none.
    """

    task: AttemptTask
    model: str
    mmf_root: str = field(metadata=stored_as("mmf"))
    attempt_dir: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    base_config: str | None = None
    checkpoint: str | None = None
    precision: Precision | None = None
    fast: bool = False
    eval_batch: int | None = None
    trust: bool = False
    may_query_hub: bool = field(default=True, metadata=stored_as("asks_hub"))
    image_cache_dir: str | None = field(default=None, metadata=stored_as("images"))

    @property
    def folder(self) -> AttemptFolder:
        """The attempt's files."""
        return AttemptFolder(Path(self.attempt_dir))

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.attempt_dir).parents[1]

    @property
    def is_training(self) -> bool:
        """Tell whether the task is to train, or to begin to."""
        return isinstance(self.task, TrainTask)

    @property
    def train_task(self) -> TrainTask:
        """Return the task of a training; for another kind of task, the defaults of one."""
        return self.task if isinstance(self.task, TrainTask) else TrainTask()

    @property
    def discards_weights(self) -> bool:
        """Whether nobody wants its weights."""
        return isinstance(self.task, (CheckTask, ProfileTask))

    @property
    def profile_updates(self) -> int:
        """The updates of a training that is measured; 0 for any other."""
        return self.task.updates if isinstance(self.task, ProfileTask) else 0

    @property
    def events(self) -> Path:
        """Where the worker says what happens."""
        return self.run_dir / EVENTS if self.is_training else self.folder.events

    @property
    def log(self) -> Path:
        """Where the worker's output goes."""
        return self.run_dir / LOG if self.is_training else self.folder.log

    def save(self) -> None:
        """Write the request to its place."""
        [kind] = (name for name, task in _TASK_TYPES.items() if task is type(self.task))
        write_json(self.folder.request_file, {"kind": kind, **to_stored(self)})

    def write_event(self, kind: str, **values: object) -> None:
        """Append one event, in one write; ``t`` is seconds since the epoch."""
        event = {"t": round(time.time(), 3), "kind": kind, "attempt": self.folder.path.name, **values}
        # No power cut may leave a checkpoint that no event mentions.
        append_event(self.events, event, sync=kind == "saving")

    @classmethod
    def load(cls, path: Path) -> AttemptRequest:
        """Read a request, skipping fields of later versions."""
        values = read_record(path, dict[str, Any])
        task = from_stored(values["task"], _TASK_TYPES[values["kind"]])
        return from_stored(values, cls, task=task)

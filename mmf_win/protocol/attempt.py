"""Attempts: their folders and files, and the request for one attempt."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from mmf_win.files import write_json
from mmf_win.paths import ChildPath
from mmf_win.protocol.events import append_event
from mmf_win.records import from_stored, read_record, stored_as, to_stored

#: Precision of a model's calculations: 32 bits, or mixed precision with 16 bits.
Precision = Literal["fp32", "bf16", "fp16"]


#: Names of files that are in the run's folder for training attempts, and in the attempt's folder for others.
EVENTS, LOG = "events.jsonl", "log.txt"


@dataclass(frozen=True)
class AttemptFolder:
    """Folder of an attempt with the paths of its files."""

    path: Path

    request_file = ChildPath("request.json")
    stop_file = ChildPath("stop")
    outcome_file = ChildPath("exit.json")
    #: MMF configuration, written from the request.
    config = ChildPath("mmf.yaml")
    #: Reserves the disk space of ``exit.json`` in case the disk gets full.
    reserve_file = ChildPath("reserve")
    #: The first error of a rank, or of a DataLoader process at its start.
    helper_outcome_file = ChildPath("helper_exit.json")
    #: Events of a prediction; several predictions may run at once.
    events = ChildPath(EVENTS)
    #: Predictions as MMF wrote them.
    raw_predictions = ChildPath("raw")
    #: Output of a worker that predicts.
    log = ChildPath(LOG)
    logs = ChildPath("logs")
    #: torch.profiler's trace of a few updates, for Chrome.
    trace = ChildPath("trace.json")

    def is_training(self) -> bool:
        """Return whether the request is for training; False for a request of an earlier version.

        An attempt with a damaged request counts as training if it has no folder of predictions.

        Returns:
            True for training; False also if there is no readable request.
        """
        try:
            kind = read_record(self.request_file, _RequestKind).get("kind", "")
        except OSError:  # not written yet, or readable only by another user
            return False
        except ValueError:
            return not self.raw_predictions.exists()
        return issubclass(_TASK_TYPES.get(kind, PredictTask), TrainTask)


class _RequestKind(TypedDict, total=False):
    kind: str


@dataclass(frozen=True)
class TrainTask:
    """Training to the end of a run.

    Attributes:
        keep_checkpoints: Number of older checkpoints to keep in addition to the best and the last one.
        micro_batch: Rows of one forward pass in training, over all GPUs; None: a known one, or the batch
            size.
        find_micro_batch: Search for the largest micro-batch that fits, if none is set or known.
        known_micro_batches: Micro-batches that fitted before, by the settings that they depend on.
        splits_read: MMF's name of a split → the annotations that are read, as ``{"split": "dev_unseen",
            "rows": 433, "full_rows": 540, "sha256": "…"}``; ``full_rows`` is null if it is not known.
        only_weights: Load only the weights of the model from the checkpoint.
        total_updates: Number of updates after which training ends, also if MMF's configuration counts epochs;
            None if only MMF can calculate it.
        nproc: Number of training processes on this machine.
        nnodes: Number of machines.
        node_rank: Rank of this machine, from 0.
        rdzv: Rendezvous endpoint of several machines, as ``HOST:PORT``.
        teacher_probas: MMF's ID of a training row → the teacher's probability that it is hateful.
        teacher_weight: Weight of the teacher in the training loss, from 0 to 1.
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
    """Checks of the model and its rows, without any update."""


@dataclass(frozen=True)
class ProfileTask(TrainTask):
    """Measurement of ``updates`` training updates, whose weights are discarded."""

    updates: int = 0


@dataclass(frozen=True)
class PredictTask:
    """Prediction of the rows of an annotation file.

    Attributes:
        annotations_file: The annotation file.
        predictions_file: The file to which the process of an exported model writes the predictions.
    """

    annotations_file: str = field(metadata=stored_as("annotations"))
    predictions_file: str | None = field(default=None, metadata=stored_as("report"))


@dataclass(frozen=True)
class ExportTask(PredictTask):
    """Prediction, and export of the model to a folder; with ``int8``, also with 8-bit weights."""

    export_dir: str = field(default="", metadata=stored_as("folder"))
    int8: bool = False


@dataclass(frozen=True)
class ServeTask(PredictTask):
    """Prediction, followed by answers to requests."""


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
    """Request for one attempt, saved as ``attempts/<n>/request.json``.

    Attributes:
        task: The task; its kind is stored as ``kind``.
        model: MMF's name of the model.
        mmf_root: The folder that contains the packages ``mmf`` and ``mmf_cli``.
        attempt_dir: The attempt's folder, ``<run>/attempts/<n>``; set when the attempt begins.
        settings: A tree of MMF's configuration keys, merged over the configuration of the model.
        base_config: MMF configuration file to start from; a relative path is in MMF's tree.
        checkpoint: The file that training resumes or whose weights predict; also in ``settings``.
        precision: Precision of the model's calculations; None for that of MMF's configuration.
        fast: Use optimizations that change results by more than floating-point noise.
        eval_batch: Rows of one forward pass in validation and prediction; None for the batch size.
        trust: Load a checkpoint with classes that torch refuses, and run code that belongs to a model.
        may_query_hub: The attempt may need files of the Hugging Face Hub that are not cached.
        image_cache_dir: The folder of decoded images, with outputs of frozen models next to it; None for no
            cache.
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
        """The attempt's folder."""
        return AttemptFolder(Path(self.attempt_dir))

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.attempt_dir).parents[1]

    @property
    def is_training(self) -> bool:
        """True if the task is a training, also one that ends before the first update."""
        return isinstance(self.task, TrainTask)

    @property
    def train_task(self) -> TrainTask:
        """The task of a training; for other tasks, a training with default values."""
        return self.task if isinstance(self.task, TrainTask) else TrainTask()

    @property
    def discards_weights(self) -> bool:
        """True for a training whose weights are not saved."""
        return isinstance(self.task, (CheckTask, ProfileTask))

    @property
    def profile_updates(self) -> int:
        """Number of updates to measure; 0 if the task is not a measurement."""
        return self.task.updates if isinstance(self.task, ProfileTask) else 0

    @property
    def events(self) -> Path:
        """The file of the worker's events."""
        return self.run_dir / EVENTS if self.is_training else self.folder.events

    @property
    def log(self) -> Path:
        """The file of the worker's output."""
        return self.run_dir / LOG if self.is_training else self.folder.log

    def save(self) -> None:
        """Write the request to the attempt's folder."""
        [kind] = (name for name, task in _TASK_TYPES.items() if task is type(self.task))
        write_json(self.folder.request_file, {"kind": kind, **to_stored(self)})

    def write_event(self, kind: str, **values: object) -> None:
        """Append an event with the current time."""
        event = {"t": round(time.time(), 3), "kind": kind, "attempt": self.folder.path.name, **values}
        # No power cut may leave a checkpoint that no event mentions.
        append_event(self.events, event, sync=kind == "saving")

    @classmethod
    def load(cls, path: Path) -> AttemptRequest:
        """Read a request; fields of later versions are skipped."""
        values = read_record(path, dict[str, Any])
        task = from_stored(values["task"], _TASK_TYPES[values["kind"]])
        return from_stored(values, cls, task=task)

"""What was asked for: by one command, and over the life of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from mmf_win.protocol import Precision
from mmf_win.runs.overrides import BATCH_SIZE, PRECISION, TOTAL, lasting, set_by
from mmf_win.upstream.config import ConfigParts

_KEYS = {
    "updates": TOTAL,
    "epochs": TOTAL,
    "batch_size": BATCH_SIZE,
    "seed": frozenset({"training.seed"}),
    "detect_anomaly": frozenset({"training.detect_anomaly"}),
    "precision": PRECISION,
}
OF_ONE_COMMAND = ("detect_anomaly", "trust", "retry", "use_known_fits", "stop_timeout")
"""What holds for one command, and not for the run when it resumes."""


@dataclass(frozen=True)
class RunRequest(ConfigParts):
    """What a run was asked for; saved as ``<run>/request.json``.

    A command fills in what its user chose, and leaves the rest to a preset or to the run that is resumed
    (:meth:`over`).

    Attributes:
        preset: the preset's name; from a command also its file, and empty where none is named.
        overrides: the user's ``KEY=VALUE`` overrides.
        splits: for each of ``train``, ``val`` and ``test``, the annotation file's stem.
        data_dir: MMF's data folder.
        preset_file: where the user's own preset lay; None for one of mmfw's.
        seed: the random seed.
        batch_size: rows an update, over all GPUs.
        auto_batch: look for the largest micro-batch that fits into memory.
        updates: the run's total, also when it resumes.
        epochs: the same as passes over the training rows.
        detect_anomaly: autograd's anomaly detection, which makes training slower; for one command.
        precision: what the model calculates with; None for what MMF's configuration says.
        fast: take ways that change results by more than floating-point noise.
        keep: how many older checkpoints stay beside the best and the current one.
        allow_missing: leave out rows without features or image.
        trust: load the checkpoint even if it holds classes that torch refuses; for one command.
        retry: try again with less, when memory runs out; for one command.
        use_known_fits: begin with the micro-batch that fitted before; for one command.
        stop_timeout: seconds without progress after which a worker that was asked to stop is killed; for one
            command.
        start: the checkpoint of another run that this one started from.
        init: the weights that training began with: a file, or a key of MMF's zoo.
        published_weights: for a run that was never trained, the key of its weights in MMF's zoo.
        published_sha256: the hash of these weights.
        mmf: version of the MMF that trained it.
        published: what the paper reports for the preset.
        created: seconds since the epoch.
    """

    preset: str = ""
    overrides: list[str] = field(default_factory=list)
    splits: dict[str, str] = field(default_factory=dict)
    data_dir: str = ""
    preset_file: str | None = None
    seed: int | None = None
    batch_size: int | None = None
    auto_batch: bool | None = None
    updates: int | None = None
    epochs: int | None = None
    detect_anomaly: bool = False
    precision: Precision | None = None
    fast: bool | None = None
    keep: int | None = None
    allow_missing: bool = False
    trust: bool = False
    retry: bool = True
    use_known_fits: bool = True
    stop_timeout: float = 30.0
    start: str | None = None
    init: str | None = None
    published_weights: str | None = None
    published_sha256: str | None = None
    mmf: str = ""
    published: dict[str, Any] = field(default_factory=dict)
    created: float = field(default_factory=time.time)

    @property
    def keys(self) -> dict[str, frozenset[str]]:
        """The attributes that were chosen → MMF's keys that set the same."""
        return {name: keys for name, keys in _KEYS.items() if getattr(self, name)}

    def over(self, earlier: RunRequest) -> RunRequest:
        """``earlier`` with what is asked for now.

        An option also replaces the override that set the same before, and a new total the old one, however
        that was given.
        """
        chosen = ("seed", "batch_size", "auto_batch", "keep", "precision", "fast")
        replaced = {key for keys in self.keys.values() for key in keys}
        replaced |= {override.partition("=")[0] for override in self.overrides}
        of_mmf = any(set_by(override, PRECISION) for override in self.overrides)
        new_total = self.updates is not None or self.epochs is not None
        total = self if new_total else earlier
        total_of_mmf = any(set_by(override, TOTAL) for override in self.overrides)
        return replace(
            earlier,
            **({"precision": None} if of_mmf else {})
            | {name: value for name in chosen if (value := getattr(self, name)) is not None},
            **{name: getattr(self, name) for name in OF_ONE_COMMAND},
            updates=total.updates,
            epochs=None if total_of_mmf else total.epochs,
            allow_missing=self.allow_missing or earlier.allow_missing,
            overrides=[*lasting(earlier.overrides, replaced), *self.overrides],
        )

"""Run requests, which are saved, and the options of a single command."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from mmf_win.paths import expand_home
from mmf_win.protocol import Precision
from mmf_win.records import convert_to, stored_as
from mmf_win.upstream.config import MMFW_GROUP, ConfigSpec, Settings, merge_settings, set_nested_value
from mmf_win.upstream.overrides import escape_interpolation, iter_leaves

# Keys of ``checkpoint`` that choose what a run starts from; a resumed run starts from its own checkpoint.
_START_KEY_PREFIXES = ("resume", "reset", "zoo_config_override")
_TOTAL_KEYS = {"max_updates", "max_epochs"}


@dataclass(frozen=True, kw_only=True)
class MmfwSettings:
    """Settings in the ``mmfw`` group, for which MMF has no key; ``None`` if not set.

    Attributes:
        updates: Total updates (``--updates``); also determines how often a run validates and saves.
        epochs: Total passes over the training rows.
        precision: Precision of the model; by default that of MMF's configuration.
        fast: Allow optimizations that change results by more than floating-point noise.
        auto_batch: Search for the largest micro-batch that fits into memory.
        keep: Number of older checkpoints to keep in addition to the best and the current one.
        allow_missing: Exclude rows with missing features or images.
        teacher: Absolute path of the teacher's prediction file for distillation.
        teacher_weight: Weight of the teacher in the training loss, 0 to 1.
        teacher_sha256: SHA-256 of that file when training began.
    """

    updates: int | None = None
    epochs: int | None = None
    precision: Precision | None = None
    fast: bool | None = None
    auto_batch: bool | None = None
    keep: int | None = None
    allow_missing: bool | None = None
    teacher: str | None = None
    teacher_weight: float | None = None
    teacher_sha256: str | None = None


@dataclass(frozen=True)
class RunRequest(ConfigSpec):
    """Request of a run, saved as ``<run>/request.json``.

    ``settings`` contain everything that differs from MMF's defaults: the settings of the preset, and merged
    into them the options and overrides of each command that trained the run.

    Attributes:
        preset: Name of the preset.
        preset_settings: The part of ``settings`` that came from the preset.
        splits: Stem of the annotation file for each of ``train``, ``val`` and ``test``.
        data_dir: Data dir of MMF.
        preset_file: Path of a user's preset; ``None`` for one of mmfw's.
        start_checkpoint: Checkpoint of another run that this run started from.
        init_weights: Initial weights: a file, or a key of MMF's zoo.
        published_weights: Key of published weights in MMF's zoo, for a run that was never trained.
        published_sha256: SHA-256 of these weights.
        mmf_version: Version of MMF that trained the run.
        published_scores: Results of the paper for the preset.
        created: Seconds since the epoch.
    """

    preset: str = ""
    preset_settings: Settings = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    data_dir: str = ""
    preset_file: str | None = None
    start_checkpoint: str | None = field(default=None, metadata=stored_as("start"))
    init_weights: str | None = field(default=None, metadata=stored_as("init"))
    published_weights: str | None = None
    published_sha256: str | None = None
    mmf_version: str = field(default="", metadata=stored_as("mmf"))
    published_scores: dict[str, Any] = field(default_factory=dict, metadata=stored_as("published"))
    created: float = field(default_factory=time.time)

    @property
    def mmfw_settings(self) -> MmfwSettings:
        """Settings in the ``mmfw`` group.

        Raises:
            ValueError: A value has the wrong type.
        """
        return convert_to(self.settings.get(MMFW_GROUP, {}), MmfwSettings)

    def training_number(self, name: str) -> int | None:
        """Return a value of ``training``, such as ``seed``, or ``None`` if it is not an integer."""
        training = self.settings.get("training")
        value = training.get(name) if isinstance(training, dict) else None
        return value if isinstance(value, int) else None

    @property
    def user_settings(self) -> dict[str, Any]:
        """Settings that differ from the preset, by dotted key."""
        preset_values = dict(iter_leaves(self.preset_settings))
        missing = object()
        leaves = iter_leaves(self.settings)
        return {key: value for key, value in leaves if key and preset_values.get(key, missing) != value}

    @property
    def settings_to_validate(self) -> Settings:
        """Settings that MMF must accept.

        For a trained run, these are only the user settings, so it can be resumed even if another version of
        MMF has dropped a key of its preset.
        """
        if not self.mmf_version:
            return self.mmf_settings
        settings: Settings = {}
        for key, value in self.user_settings.items():
            set_nested_value(settings, key, value)
        settings.pop(MMFW_GROUP, None)
        return settings

    def merged_with(self, overrides: Settings) -> RunRequest:
        """Return a copy with ``overrides`` merged in; settings that they contradict are set to ``None``.

        For example, ``training.fp16`` resets ``mmfw.precision``, and a new ``mmfw.teacher`` resets the hash of the
        previous one.
        """
        training, settings = overrides.get("training") or {}, self.settings
        if "fp16" in training:
            settings = merge_settings(settings, {MMFW_GROUP: {"precision": None}})
        if not _TOTAL_KEYS.isdisjoint(training):
            settings = merge_settings(settings, {MMFW_GROUP: {"epochs": None}})
        if "teacher" in overrides.get(MMFW_GROUP, {}):
            settings = merge_settings(settings, {MMFW_GROUP: {"teacher_sha256": None}})
        # If both batch sizes are overrides, MMF decides.
        by_option = "auto_batch" in overrides.get(MMFW_GROUP, {})
        if by_option and "batch_size" in training and "batch_size_per_device" in settings.get("training", {}):
            settings = merge_settings(settings, {"training": {"batch_size_per_device": None}})
        return replace(self, settings=merge_settings(settings, overrides))


@dataclass(frozen=True, kw_only=True)
class CommandOptions(MmfwSettings):
    """Options of a single command.

    ``settings`` are merged into those of the run, which stores them. Of the attributes of this class, the run
    stores only ``seed``, ``batch_size`` and ``overrides``; the others apply to this command only.

    Attributes:
        seed: Random seed; ``None`` for that of the run.
        batch_size: Rows per update over all GPUs; ``auto`` keeps them and searches for the micro-batch.
        overrides: ``KEY=VALUE`` arguments as given.
        detect_anomaly: Use autograd's anomaly detection, which slows down training.
        trust: Load checkpoints with classes that torch refuses, and run third-party code.
        retry: Retry with smaller limits after out-of-memory.
        use_known_fits: Start with the micro-batch that fitted before.
        stop_timeout: Seconds without progress after which a worker that was asked to stop is killed.
        dry_run: Write and download nothing.
        cpu: Use no GPU.
        nproc: Number of processes on this machine; ``auto`` for one per GPU; ``None`` for one.
        nnodes: Number of machines.
        node_rank: Rank of this machine, from 0.
        rdzv: Rendezvous endpoint of several machines, as ``HOST:PORT``.
    """

    seed: int | None = None
    batch_size: int | Literal["auto"] | None = None
    overrides: Sequence[str] = ()
    detect_anomaly: bool = False
    trust: bool = False
    retry: bool = True
    use_known_fits: bool = True
    stop_timeout: float = 30
    dry_run: bool = False
    cpu: bool = False
    nproc: int | Literal["auto"] | None = None
    nnodes: int = 1
    node_rank: int | None = None
    rdzv: str | None = None

    @property
    def settings(self) -> Settings:
        """Settings of the options that were given."""
        mmfw_settings = {option.name: getattr(self, option.name) for option in fields(MmfwSettings)}
        training = {"seed": self.seed, "max_updates": self.updates}
        if self.batch_size is not None:
            mmfw_settings["auto_batch"] = self.batch_size == "auto"
            training["batch_size"] = None if self.batch_size == "auto" else self.batch_size
        mmfw_settings |= {"allow_missing": self.allow_missing or None}
        if self.teacher is not None:  # may be empty, as an unset variable of the shell
            mmfw_settings["teacher"] = escape_interpolation(str(expand_home(self.teacher).absolute()))
        values = {"training": _drop_unset(training), MMFW_GROUP: _drop_unset(mmfw_settings)}
        if self.updates or self.epochs:
            values["training"]["max_epochs"] = None  # otherwise MMF would count epochs, in its own way
            values[MMFW_GROUP] |= {"updates": self.updates, "epochs": self.epochs}
        return _drop_unset(values)


def drop_start_settings(settings: Settings) -> Settings:
    """Return the settings without the keys that choose what a run starts from.

    These are keys of ``checkpoint`` such as ``resume_file`` and ``reset``. A run does not store them, because it
    resumes from its own checkpoint.
    """
    checkpoint = settings.get("checkpoint")
    if not isinstance(checkpoint, dict):
        return settings
    kept = {key: value for key, value in checkpoint.items() if not key.startswith(_START_KEY_PREFIXES)}
    others = {key: value for key, value in settings.items() if key != "checkpoint"}
    return {**others, "checkpoint": kept} if kept else others


def _drop_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != {}}


def format_override_value(value: Any) -> str:
    """Return a value as it is written after ``KEY=``."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""What a run was asked for, and what one command asks for."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from mmf_win.paths import expand_home
from mmf_win.protocol import Precision
from mmf_win.records import convert_to
from mmf_win.upstream.config import MMFW_GROUP, ConfigSpec, Settings, merge_settings, set_nested_value
from mmf_win.upstream.overrides import escape_interpolation, iter_leaves

# What starts a run must not steer where it resumes from.
_START_KEY_PREFIXES = ("resume", "reset", "zoo_config_override")
_TOTAL_KEYS = {"max_updates", "max_epochs"}


@dataclass(frozen=True, kw_only=True)
class MmfwSettings:
    """The group ``mmfw`` of a run's settings: what MMF has no key for; None for what nobody chose.

    Attributes:
        updates: the total of ``--updates``, which also says how often a run validates and saves.
        epochs: the total as passes over the training rows.
        precision: what the model calculates with; by default what MMF's configuration says.
        fast: take ways that change results by more than floating-point noise.
        auto_batch: look for the largest micro-batch that fits into memory.
        keep: how many older checkpoints stay beside the best and the current one.
        allow_missing: leave out rows without features or image.
        teacher: the absolute path of a prediction file that training learns from, too.
        teacher_weight: the teacher's share of the training loss.
        teacher_sha256: the hash of that file when training began.
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
    """What a run was asked for; saved as ``<run>/request.json``.

    ``settings`` are all that differ from MMF's defaults: those of the preset, and merged over them the
    options and overrides of each command that trained the run.

    Attributes:
        preset: the preset's name.
        preset_settings: the part of ``settings`` that came from there.
        splits: for each of ``train``, ``val`` and ``test``, the annotation file's stem.
        data_dir: MMF's data folder.
        preset_file: where the user's own preset lay; None for one of mmfw's.
        start: the checkpoint of another run that this one started from.
        init: the weights that training began with: a file, or a key of MMF's zoo.
        published_weights: for a run that was never trained, the key of its weights in MMF's zoo.
        published_sha256: the hash of these weights.
        mmf: version of the MMF that trained it.
        published: what the paper reports for the preset.
        created: seconds since the epoch.
    """

    preset: str = ""
    preset_settings: Settings = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    data_dir: str = ""
    preset_file: str | None = None
    start: str | None = None
    init: str | None = None
    published_weights: str | None = None
    published_sha256: str | None = None
    mmf: str = ""
    published: dict[str, Any] = field(default_factory=dict)
    created: float = field(default_factory=time.time)

    @property
    def mmfw_settings(self) -> MmfwSettings:
        """What MMF has no key for. Raises ValueError where a value is not of its type."""
        return convert_to(self.settings.get(MMFW_GROUP, {}), MmfwSettings)

    def training_number(self, name: str) -> int | None:
        """What was chosen of ``training``, such as ``seed`` or ``max_updates``, where that is a number."""
        training = self.settings.get("training")
        value = training.get(name) if isinstance(training, dict) else None
        return value if isinstance(value, int) else None

    @property
    def user_settings(self) -> dict[str, Any]:
        """Key → value of the settings that are not the preset's."""
        preset_values = dict(iter_leaves(self.preset_settings))
        missing = object()
        leaves = iter_leaves(self.settings)
        return {key: value for key, value in leaves if key and preset_values.get(key, missing) != value}

    @property
    def settings_to_validate(self) -> Settings:
        """The settings that MMF must know.

        Of a run that was trained, these are what the user chose: what MMF drops of its preset must not keep
        it from going on.
        """
        if not self.mmf:
            return self.mmf_settings
        settings: Settings = {}
        for key, value in self.user_settings.items():
            set_nested_value(settings, key, value)
        settings.pop(MMFW_GROUP, None)
        return settings

    def merged_with(self, overrides: Settings) -> RunRequest:
        """This request with changes over its settings; what says the same in another way gives way."""
        training, settings = overrides.get("training") or {}, self.settings
        if "fp16" in training:
            settings = merge_settings(settings, {MMFW_GROUP: {"precision": None}})
        if not _TOTAL_KEYS.isdisjoint(training):
            settings = merge_settings(settings, {MMFW_GROUP: {"epochs": None}})
        if "teacher" in overrides.get(MMFW_GROUP, {}):
            settings = merge_settings(settings, {MMFW_GROUP: {"teacher_sha256": None}})
        by_option = "auto_batch" in overrides.get(
            MMFW_GROUP, {}
        )  # beside an override, MMF decides which holds
        if by_option and "batch_size" in training and "batch_size_per_device" in settings.get("training", {}):
            settings = merge_settings(settings, {"training": {"batch_size_per_device": None}})
        return replace(self, settings=merge_settings(settings, overrides))


@dataclass(frozen=True, kw_only=True)
class CommandOptions(MmfwSettings):
    """Options of one command.

    ``settings`` are merged over those of the run, which remembers them. The attributes of this class but
    ``seed`` and ``batch_size`` hold for the command alone, but for the overrides.

    Attributes:
        seed: the random seed; None for what the run has already.
        batch_size: rows an update, over all GPUs; ``auto`` leaves them, and looks for the micro-batch.
        overrides: ``KEY=VALUE``, as typed.
        detect_anomaly: autograd's anomaly detection, which makes training slower.
        trust: load the checkpoint even if it holds classes that torch refuses, and run code of others.
        retry: try again with less, when memory runs out.
        use_known_fits: begin with the micro-batch that fitted before.
        stop_timeout: seconds without progress after which a worker that was asked to stop is killed.
        dry_run: nothing may be written or downloaded.
        cpu: use no GPU.
        nproc: how many processes of this machine train together; ``auto`` for one a GPU; None for one.
        nnodes: on how many machines, of which this is number ``node_rank``; they meet at ``rdzv``.
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
        """The settings that the options choose; those that are not given are not in them."""
        mmfw_settings = {option.name: getattr(self, option.name) for option in fields(MmfwSettings)}
        training = {"seed": self.seed, "max_updates": self.updates}
        if self.batch_size is not None:
            mmfw_settings["auto_batch"] = self.batch_size == "auto"
            training["batch_size"] = None if self.batch_size == "auto" else self.batch_size
        mmfw_settings |= {"allow_missing": self.allow_missing or None}
        if self.teacher is not None:  # it may be empty, as an unset variable of the shell is
            mmfw_settings["teacher"] = escape_interpolation(str(expand_home(self.teacher).absolute()))
        values = {"training": _drop_unset(training), MMFW_GROUP: _drop_unset(mmfw_settings)}
        if self.updates or self.epochs:
            values["training"]["max_epochs"] = None  # else MMF would count epochs instead, or in its own way
            values[MMFW_GROUP] |= {"updates": self.updates, "epochs": self.epochs}
        return _drop_unset(values)


def drop_start_settings(settings: Settings) -> Settings:
    """The settings without those that hold for the start alone; a run keeps no others."""
    checkpoint = settings.get("checkpoint")
    if not isinstance(checkpoint, dict):
        return settings
    kept = {key: value for key, value in checkpoint.items() if not key.startswith(_START_KEY_PREFIXES)}
    others = {key: value for key, value in settings.items() if key != "checkpoint"}
    return {**others, "checkpoint": kept} if kept else others


def _drop_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != {}}


def format_override_value(value: Any) -> str:
    """A value as one types it after ``KEY=``."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

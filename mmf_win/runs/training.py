"""Starting a run, and going on with one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from mmf_win.console import say
from mmf_win.dataset.annotations import choose_splits, near_dataset
from mmf_win.errors import DatasetError, UsageError
from mmf_win.paths import Places
from mmf_win.runs import checkpoints, history, launch, presets, zoo_weights
from mmf_win.runs.folder import Run, RunRequest
from mmf_win.runs.overrides import BATCH_SIZE, lasting, require_optimizer_kept, require_trainable
from mmf_win.runs.retry import Start

PUBLISHED = "published"
"""What stands for a preset's published weights."""

_SUFFIXES = (".ckpt", ".pth", ".pt")


@dataclass(frozen=True)
class Options:
    """What the user chose on the command line; None leaves it to the preset, or to the run that goes on.

    Attributes:
        seed: the random seed.
        batch_size: rows an update, over all GPUs; ``auto`` leaves them, and finds how many fit at once.
        updates: the run's total, also when it resumes.
        epochs: the same as passes over the training rows.
        detect_anomaly: autograd's anomaly detection, which makes training slower; for this time only.
        keep: how many older checkpoints stay beside the best and the current one.
        allow_missing: leave out rows without features or image.
        trust: load the checkpoint even if it holds classes that torch refuses; for this time only.
        memory: what to do about it.
        overrides: ``KEY=VALUE`` words for MMF.
    """

    seed: int | None = None
    batch_size: int | Literal["auto"] | None = None
    updates: int | None = None
    epochs: int | None = None
    detect_anomaly: bool = False
    keep: int | None = None
    allow_missing: bool = False
    trust: bool = False
    memory: launch.Memory = field(default_factory=launch.Memory)
    overrides: tuple[str, ...] = ()

    @property
    def keys(self) -> dict[str, frozenset[str]]:
        """The options that were given → the keys of MMF that say the same."""
        total = frozenset({"training.max_updates", "training.max_epochs"})
        said = {
            "--updates": (self.updates, total),
            "--epochs": (self.epochs, total),
            "--batch-size": (None if self.batch_size == "auto" else self.batch_size, BATCH_SIZE),
            "--seed": (self.seed, frozenset({"training.seed"})),
            "--detect-anomaly": (self.detect_anomaly or None, frozenset({"training.detect_anomaly"})),
        }
        return {option: keys for option, (value, keys) in said.items() if value is not None}

    def over(self, request: RunRequest) -> RunRequest:
        """``request`` with what was chosen.

        An option also replaces the ``KEY=VALUE`` word that said the same before, and a new total the old one,
        however that was given.
        """
        total = self.updates is not None or self.epochs is not None
        replaced = {key for keys in self.keys.values() for key in keys}
        replaced |= {word.partition("=")[0] for word in self.overrides}
        return replace(
            request,
            seed=request.seed if self.seed is None else self.seed,
            batch_size=self.batch_size if isinstance(self.batch_size, int) else request.batch_size,
            auto_batch=request.auto_batch if self.batch_size is None else self.batch_size == "auto",
            updates=self.updates if total else request.updates,
            epochs=self.epochs if total else request.epochs,
            detect_anomaly=self.detect_anomaly,
            keep=request.keep if self.keep is None else self.keep,
            allow_missing=self.allow_missing or request.allow_missing,
            overrides=[*lasting(request.overrides, replaced), *self.overrides],
        )


def start(
    preset_name: str,
    name: str | None,
    places: Places,
    options: Options,
    *,
    init: str | None = None,
    source: str | None = None,
) -> Run:
    """Train a preset from update 0.

    Args:
        preset_name: a preset's name or file.
        name: the folder's name; None for the preset's.
        places: MMF's folders.
        options: what the user chose.
        init: the weights to begin with: :data:`PUBLISHED`, or a file; None for those that MMF begins with.
        source: where to look first for published weights.

    Returns:
        The finished run.

    Raises:
        MmfwError: the class says how it ended.
    """
    require_trainable(options.overrides, options.keys, resumes=init is not None)
    request = _request(preset_name, places, options)
    begin = Start(trust=options.trust)
    if init is not None:
        if init == PUBLISHED:
            preset = presets.load(preset_name)
            file = zoo_weights.fetch(preset, places, source)
            request = replace(request, init=preset.zoo)
        else:
            file = checkpoints.checked(Path(init).expanduser().absolute())
            request = replace(request, init=str(file))
        begin = replace(begin, checkpoint=file, weights_alone=True)
    return launch.start(request, name or request.preset, places, begin, memory=options.memory)


def resume(
    wanted: str,
    preset_name: str | None,
    name: str | None,
    data_dir: Path | None,
    save_dir: Path | None,
    options: Options,
) -> Run:
    """Go on with a run.

    ``best`` and ``last`` go on in the folder of the newest run (of the preset, if one is named), and a run's
    id, name or folder in that of the run, from its last checkpoint. A file starts a new run from that
    checkpoint, with the configuration of the run that it belongs to unless a preset is named.

    Args:
        wanted: ``best``, ``last``, a checkpoint's path, or a run's id, name or folder.
        preset_name: a preset's name or file.
        name: the new run's folder, when ``wanted`` is a file; None for the preset's name.
        data_dir: MMF's data folder; None for the one that the run used.
        save_dir: where runs are kept.
        options: what the user chose.

    Returns:
        The finished run.

    Raises:
        MmfwError: the class says how it ended.
    """
    require_trainable(options.overrides, options.keys, resumes=True)
    require_optimizer_kept(options.overrides)
    places = Places.resolve(data_dir, save_dir)
    run, which = _to_go_on_with(wanted, preset_name, places)
    if run is None:
        checkpoint = checkpoints.checked(Path(wanted).expanduser().absolute())
        return _start_from(checkpoint, preset_name, name, data_dir, places, options)
    if name is not None:
        raise UsageError("--name is for a new run; one that goes on keeps its own")
    checkpoint = checkpoints.announced(checkpoints.choose(run, which))
    request, places = _with_data(options.over(run.request()), data_dir, places)
    say(f"going on with run {run.id} from {checkpoint.name}")
    launch.train(run, request, places, Start(checkpoint, trust=options.trust), memory=options.memory)
    return run


def _to_go_on_with(wanted: str, preset_name: str | None, places: Places) -> tuple[Run | None, str]:
    """The run whose folder to go on in, and from which of its checkpoints; None for a checkpoint's file."""
    preset = presets.load(preset_name).name if preset_name else None
    if wanted in ("best", "last"):
        return history.find(places.save_dir, None, preset, trained=True), wanted
    path = Path(wanted).expanduser()
    if path.is_file() or (path.suffix in _SUFFIXES and not path.is_dir()):
        return None, wanted
    run = history.find(places.save_dir, wanted, preset)
    zoo_weights.require_trained(run)
    return run, "last"


def _start_from(
    checkpoint: Path,
    preset_name: str | None,
    name: str | None,
    data_dir: Path | None,
    places: Places,
    options: Options,
) -> Run:
    owner = history.owner(checkpoint)
    if owner is not None:
        zoo_weights.require_trained(owner, checkpoint)
    if preset_name is not None:
        request = _request(preset_name, places, options)
    elif owner is not None:
        request = replace(options.over(owner.request()), init=None, created=time.time())
        request, places = _with_data(request, data_dir, places)
    else:
        raise UsageError(
            f"{checkpoint} does not lie in a run's folder, so its configuration is not known",
            hint="name the preset that it was trained with: mmfw train PRESET --resume PATH",
        )
    request = replace(request, start=str(checkpoint))
    begin = Start(checkpoint, trust=options.trust)
    return launch.start(request, name or request.preset, places, begin, memory=options.memory)


def _with_data(request: RunRequest, data_dir: Path | None, places: Places) -> tuple[RunRequest, Places]:
    """The run's own data folder, or the one named now, which the run then remembers."""
    places = Places.resolve(data_dir or Path(request.data_dir), places.save_dir)
    _require_dataset(places)
    if data_dir is not None:
        request = replace(request, data_dir=str(places.data_dir), splits=choose_splits(places.dataset))
    return request, places


def _request(preset_name: str, places: Places, options: Options) -> RunRequest:
    preset = presets.load(preset_name)
    _require_dataset(places)
    return options.over(presets.request(preset, choose_splits(places.dataset), places))


def _require_dataset(places: Places) -> None:
    if not places.dataset.split("train").is_file():
        raise DatasetError(
            f"there is no Hateful Memes dataset in {places.data_dir}",
            hint=near_dataset(places.dataset),
        )

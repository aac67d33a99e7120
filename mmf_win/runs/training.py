"""Starting a run, and going on with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmf_win.console import say
from mmf_win.dataset.annotations import choose_splits
from mmf_win.errors import DatasetError, UsageError
from mmf_win.paths import Places
from mmf_win.runs import checkpoints, history, launch, presets
from mmf_win.runs.folder import Run, RunRequest


@dataclass(frozen=True)
class Options:
    """What the user chose on the command line; None leaves it to the preset, or to the run that goes on.

    Attributes:
        seed: the random seed.
        batch_size: rows an update, over all GPUs.
        updates: the run's total, also when it resumes.
        epochs: the same as passes over the training rows.
        detect_anomaly: autograd's anomaly detection, which makes training slower.
        overrides: ``KEY=VALUE`` words for MMF.
    """

    seed: int | None = None
    batch_size: int | None = None
    updates: int | None = None
    epochs: int | None = None
    detect_anomaly: bool = False
    overrides: tuple[str, ...] = ()

    def over(self, request: RunRequest) -> RunRequest:
        """``request`` with what was chosen; a new total replaces the old one, however it was given."""
        updates, epochs = request.updates, request.epochs
        if self.updates is not None or self.epochs is not None:
            updates, epochs = self.updates, self.epochs
        return replace(
            request,
            seed=request.seed if self.seed is None else self.seed,
            batch_size=self.batch_size or request.batch_size,
            updates=updates,
            epochs=epochs,
            detect_anomaly=self.detect_anomaly or request.detect_anomaly,
            overrides=[*request.overrides, *self.overrides],
        )


def start(preset_name: str, name: str | None, places: Places, options: Options) -> Run:
    """Train a preset from its beginning.

    Args:
        preset_name: a preset's name or file.
        name: the folder's name; None for the preset's.
        places: MMF's folders.
        options: what the user chose.

    Returns:
        The finished run.

    Raises:
        MmfwError: the class says how it ended.
    """
    request = _request(preset_name, places, options)
    mmf = launch.usable_mmf()
    run = Run.create(places.save_dir, name or request.preset)
    launch.train(run, replace(request, mmf=mmf.version), places)
    return run


def resume(
    wanted: str, preset_name: str | None, data_dir: Path | None, save_dir: Path | None, options: Options
) -> Run:
    """Go on with a run.

    ``best`` and ``last`` go on in the folder of the newest run (of the preset, if one is named); a path
    starts a new run from that checkpoint, with the configuration of the run that it belongs to unless a
    preset is named.

    Args:
        wanted: ``best``, ``last`` or a checkpoint's path.
        preset_name: a preset's name or file.
        data_dir: MMF's data folder; None for the one that the run used.
        save_dir: where runs are kept.
        options: what the user chose.

    Returns:
        The finished run.

    Raises:
        MmfwError: the class says how it ended.
    """
    places = Places.resolve(data_dir, save_dir)
    if wanted not in ("best", "last"):
        return _start_from(
            checkpoints.checked(Path(wanted).expanduser().absolute()), preset_name, data_dir, places, options
        )
    preset = presets.load(preset_name).name if preset_name else None
    run = history.find(places.save_dir, None, preset)
    choice = checkpoints.choose(run, wanted)
    for broken in choice.passed_over:
        say(f"{broken}: {checkpoints.problem(broken)}; using {choice.path.name} instead")
    request = options.over(run.request())
    places = Places.resolve(data_dir or Path(request.data_dir), save_dir)
    _require_dataset(places)
    say(f"going on with run {run.id} from {choice.path.name}")
    launch.train(run, request, places, choice.path)
    return run


def check_overrides(words: Sequence[str]) -> None:
    """Make sure that every word is a ``KEY=VALUE`` that may be handed to MMF.

    Raises:
        UsageError: it is not, or an option of mmfw has to be used instead.
    """
    options = {"env.save_dir": "--save-dir", "env.data_dir": "--data-dir", "env.report_dir": None}
    for word in words:
        key, equals, _ = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{word}: not a KEY=VALUE of MMF", hint="for example training.num_workers=2")
        if key in options:
            instead = options[key]
            raise UsageError(
                f"{key} is set by mmfw, which keeps every run in a folder of its own",
                hint=f"use {instead}" if instead else "the reports lie in the run's folder",
            )


def _start_from(
    checkpoint: Path, preset_name: str | None, data_dir: Path | None, places: Places, options: Options
) -> Run:
    owner = next((Run(p) for p in checkpoint.parents if Run(p).request_file.is_file()), None)
    if preset_name is not None:
        request = _request(preset_name, places, options)
    elif owner is not None:
        request = options.over(owner.request())
        places = Places.resolve(data_dir or Path(request.data_dir), places.save_dir)
        _require_dataset(places)
    else:
        raise UsageError(
            f"{checkpoint} does not lie in a run's folder, so its configuration is not known",
            hint="name the preset that it was trained with: mmfw train PRESET --resume PATH",
        )
    run = Run.create(places.save_dir, request.preset)
    launch.train(run, replace(request, start=str(checkpoint)), places, checkpoint)
    return run


def _request(preset_name: str, places: Places, options: Options) -> RunRequest:
    preset = presets.load(preset_name)
    _require_dataset(places)
    request = RunRequest(
        preset=preset.name,
        model=preset.model,
        config=preset.config,
        settings=preset.settings,
        overrides=[],
        splits=choose_splits(places.dataset),
        data_dir=str(places.data_dir),
        offline=preset.offline,
        published=preset.published,
    )
    return options.over(request)


def _require_dataset(places: Places) -> None:
    if not places.dataset.split("train").is_file():
        raise DatasetError(
            f"there is no Hateful Memes dataset in {places.data_dir}",
            hint="make it with: mmfw convert --zip ARCHIVE, or name its folder with --data-dir",
        )

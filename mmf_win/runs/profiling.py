"""Profiles the training of a preset or a run: trains a little of it in a folder that is removed again."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mmf_win.errors import Interrupted, MmfwError, UsageError
from mmf_win.paths import Places, expanded, new_folder
from mmf_win.protocol import AttemptFolder, read_events
from mmf_win.protocol.data_wait import Waiting
from mmf_win.records import known_fields
from mmf_win.runs import checkpoints, lookup, presets, training
from mmf_win.runs.attempts import Display
from mmf_win.runs.request import Once
from mmf_win.upstream.config import Tree, merge

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Profile:
    """Where the time of a training goes; all times are seconds.

    Attributes:
        name: the preset's, or the run's id.
        folder: holds PyTorch's trace.
        checkpoint_interval, evaluation_interval: updates, in the training that this stands for.
        max_updates: its total; None where it counts epochs.
        device: ``cpu``, or the GPU's name.
        batch: rows an update.
        spent: phase → what it takes of an update; no second is in two of them.
        waiting: how long it waits for its rows.
        checkpoint, validation: what one takes.
        gpu_busy: the share of the traced updates in which a GPU worked; None without one.
        images_once: whether images are decoded in the first epoch and kept for the others.
    """

    name: str
    folder: Path
    checkpoint_interval: int
    evaluation_interval: int
    max_updates: int | None
    device: str
    batch: int
    spent: dict[str, float]
    waiting: Waiting
    checkpoint: float
    validation: float
    gpu_busy: float | None
    images_once: bool


def profile(
    wanted: str | None,
    once: Once,
    updates: int,
    output: Path | None,
    data_dir: Path | None,
    save_dir: Path | None,
    *,
    display: Display,
) -> Profile:
    """Train some updates as a preset or a run would, and measure them.

    A validation comes after half of them and at the end, and MMF saves after each, and in the end once more.
    Nothing stays but the trace, or where the training fails, its log; the class of the MmfwError says why.

    Args:
        wanted: a preset, or else a run; None for the newest run.
        updates: how many, from 6.
        output: a folder that is made for the result; None for ``profiles/<time>`` where runs are kept.
        data_dir: MMF's data folder; None for the one that the run used, or the default.
    """
    name, start = start_of(wanted, once, data_dir, save_dir)
    prepared = training.prepare(start)
    intervals, first = read_intervals(prepared.config["training"]), prepared.first
    place = expanded(output).absolute() if output else start.places.save_dir / "profiles"
    if output and place.exists():
        raise UsageError(f"{place} is there already", hint="name a new folder")
    disk = next(each for each in (place, *place.parents) if each.exists())
    with TemporaryDirectory(prefix=".mmfw-profile-", dir=disk, ignore_cleanup_errors=True) as scratch:
        here = replace(start.places, save_dir=Path(scratch))
        first = replace(first, profile=updates, settings=merge(first.settings, _shortened(updates)))
        try:
            trained = training.carry_out(replace(prepared, places=here, first=first), display)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted("interrupted; nothing is kept") from None
        except MmfwError as error:
            if error.log is not None and error.log.is_file():
                kept = Path(shutil.move(error.log, _new_folder(place, output)))
                error.hint = error.hint and error.hint.replace(str(error.log), str(kept))
            raise
        *_, profiled = (event for event in read_events(trained.events) if event["kind"] == "profiled")
        folder = _new_folder(place, output)
        shutil.move(AttemptFolder(trained.path / "attempts" / profiled["attempt"]).trace, folder)
    measured = known_fields(Profile, {**profiled, "waiting": Waiting(**profiled["waiting"])})
    return Profile(name, folder, *intervals, **measured)


def start_of(
    wanted: str | None, once: Once, data_dir: Path | None, save_dir: Path | None
) -> tuple[str, training.Start]:
    """The training of a preset, or that of a run from its beginning, and what it is called."""
    places = Places.resolve(data_dir, save_dir)
    if wanted is not None and (wanted in presets.names() or expanded(wanted).is_file()):
        start = training.new(wanted, once, places)  # even where a run has the preset's name
        return start.request.preset, start
    run = lookup.find_run(places.save_dir, wanted)
    start = training.of_request(run.request(), once, data_dir, save_dir)
    if (weights := start.request.init or start.request.start) is None:
        return run.id, start
    if not Path(weights).is_file():
        _log.warning("run %s began with %s, which is no file here; this begins without it", run.id, weights)
        return run.id, start
    request = replace(start.request, start=None)  # of which the counts are left out
    start = replace(start, request=request, checkpoint=checkpoints.checked(weights), weights_alone=True)
    return run.id, start


def read_intervals(config: Tree) -> tuple[int, int, int | None]:
    """Read the numbers of updates that a training has between saves, between validations, and in all.

    Args:
        config: MMF's ``training`` settings.

    Returns:
        The interval of checkpoints, the interval of validations, and the last update, if it has one.

    Raises:
        UsageError: A setting is no positive number of updates.
    """
    for key in ("checkpoint_interval", "evaluation_interval"):
        if not isinstance(updates := config[key], int) or updates < 1:
            raise UsageError(f"training.{key} is {updates}, and must be a number of updates")
    total = None if config.get("max_epochs") else config["max_updates"]
    total = total if isinstance(total, int) else None
    return config["checkpoint_interval"], config["evaluation_interval"], total


def _shortened(updates: int) -> Tree:
    """MMF's keys for a training of so few updates."""
    training = {
        "max_updates": updates,
        "max_epochs": None,
        "checkpoint_interval": updates,
        "evaluation_interval": updates // 2,
        "log_interval": min(10, max(1, updates // 5)),
        "early_stop": {"enabled": False},
    }
    return {"run_type": "train", "training": training}


def _new_folder(place: Path, output: Path | None) -> Path:
    """The folder of the result: ``place`` itself where the user named it, else one in it."""
    if output is None:
        return new_folder(place)
    place.mkdir(parents=True)
    return place

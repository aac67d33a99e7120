"""Profiles the training of a preset or a run: trains a little of it in a folder that is removed again."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mmf_win.errors import Interrupted, MmfwError, TrainingError, UnknownPreset, UsageError
from mmf_win.files import remove_tree
from mmf_win.locking import is_locked
from mmf_win.paths import Places
from mmf_win.phases import Phases
from mmf_win.protocol import AttemptFolder, read_events
from mmf_win.runs import needs, plan, presets, search, training
from mmf_win.runs.attempts import Display, silent
from mmf_win.runs.folder import Run
from mmf_win.runs.overrides import without
from mmf_win.runs.own_code import with_own_code
from mmf_win.runs.request import RunRequest
from mmf_win.runs.search import all_runs
from mmf_win.threads import processors

_log = logging.getLogger(__name__)

PYTHON = "Python itself"
"""What the modules of Python's own library are counted as."""

_TRACE, _LOG = "trace.json", "log.txt"
_SCRATCH = ".mmfw-profiling-"  # unlike the folder of a result, which may lie beside it
_AN_HOUR = 3600.0
_IMPORT = re.compile(r"^import time: +(\d+) \| +\d+ \| *([\w.]+)$", re.MULTILINE)
_FIRST_IMPORT = "import time: self [us]"
_TOTAL = frozenset({"training.max_updates", "training.max_epochs"})


@dataclass(frozen=True)
class Profile:
    """Where the time of a training goes.

    Attributes:
        name: the preset's, or the run's id.
        phases: what the worker measured.
        start: seconds from the worker's first step to the first update.
        imports: package → seconds that its modules took until then, without those that they import; nothing
            on Windows.
        checkpoint_interval, evaluation_interval: updates, in the training that this stands for.
        max_updates: its total; None where it counts epochs.
    """

    name: str
    phases: Phases
    start: float
    imports: dict[str, float]
    checkpoint_interval: int
    evaluation_interval: int
    max_updates: int | None = None


def profile(
    wanted: str | None,
    asked: RunRequest,
    updates: int,
    output: Path,
    data_dir: Path | None,
    save_dir: Path | None,
    *,
    display: Display = silent,
) -> Profile:
    """Train some updates as a preset or a run would, and measure them.

    A validation comes after half of them and at the end, and MMF saves after each, and in the end once more.
    Nothing stays but the trace, or where the training fails, its log. Checkpoints are written where runs are
    kept, so that the time they take is that of this disk.

    Args:
        wanted: a preset, or else a run; None for the newest run.
        asked: what the user chose.
        updates: how many, from 6.
        output: where the trace goes; it exists.
        data_dir: MMF's data folder; None for the one that the run used, or the default.
        save_dir: where runs are kept.
        display: shows the training.

    Raises:
        MmfwError: the class says how it ended.
    """
    run = _run_of(wanted, save_dir)
    asked = asked if run else replace(asked, preset=wanted or "")
    request, places = training.asked_of(asked, run, data_dir, save_dir)
    intervals = _intervals(request, places, asked.overrides)
    _remove_left(places.save_dir)
    _note_load()
    short = replace(
        request,
        updates=updates,
        epochs=None,
        overrides=[
            *without(request.overrides, _TOTAL),
            "run_type=train",
            f"training.checkpoint_interval={updates}",
            f"training.evaluation_interval={updates // 2}",
            "training.early_stop.enabled=False",
        ],
    )
    with _scratch(places.save_dir, output) as scratch:
        here = replace(places, save_dir=scratch)
        trained = training.profile(short, here, asked.overrides, updates, display=display)
        found = _read(trained, run.id if run else request.preset, intervals)
        shutil.move(_last_attempt(trained).trace, output / _TRACE)
        return found


def _note_load() -> None:
    """Say when other programs may make the figures larger; Windows does not tell."""
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > processors() / 2:
        _log.warning("this machine has been busy (load %.1f), which may show in the figures", load)


def _run_of(wanted: str | None, save_dir: Path | None) -> Run | None:
    """The run that is meant; None where it is a preset. The name of both is the preset."""
    places = Places.resolve(None, save_dir)
    if wanted is None:
        return search.find(places.save_dir, None)
    if wanted in presets.names() or Path(wanted).expanduser().is_file():
        return None
    if (run := next(search.named(places.save_dir, wanted), None)) is None:
        raise UnknownPreset(f"there is neither a preset nor a run named {wanted}")
    return run


def _remove_left(save_dir: Path) -> None:
    """Remove what killed profiles have left; one that has just begun is not locked yet."""
    for folder in save_dir.glob(f"{_SCRATCH}*"):
        is_old = time.time() - folder.stat().st_mtime > _AN_HOUR
        is_name = any(folder.glob("*/request.json"))  # somebody has named runs so
        if is_old and not is_name and not any(is_locked(run.lock) for run in all_runs(folder)):
            remove_tree(folder)


def _intervals(request: RunRequest, places: Places, typed: list[str]) -> tuple[int, int, int | None]:
    """After how many updates the training as it was asked for saves, validates, and ends."""
    mmf = needs.mmf_for(request)
    request = with_own_code(request, typed, mmf.root, f"preset {request.preset}")
    first = plan.training(mmf, request, places, None, weights_alone=False)
    config = needs.config_of(first, request, places)["training"]
    total = config["max_updates"] if isinstance(config["max_updates"], int) else None
    return _interval(config, "checkpoint_interval"), _interval(config, "evaluation_interval"), total


def _interval(config: Mapping[str, object], key: str) -> int:
    if not isinstance(updates := config[key], int) or updates < 1:
        raise UsageError(f"training.{key} is {updates}, and must be a number of updates")
    return updates


@contextmanager
def _scratch(save_dir: Path, output: Path) -> Iterator[Path]:
    """A folder for runs, removed in the end; of a training that fails, the log is put into ``output``."""
    missing = [folder for folder in (save_dir, *save_dir.parents) if not folder.exists()]
    save_dir.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=save_dir))
    try:
        yield scratch
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted("interrupted; nothing is kept") from None
    except MmfwError as error:
        if error.log is not None and error.log.is_file():
            kept = output / _LOG
            log = error.log.read_bytes().decode(errors="replace")
            kept.write_text(_IMPORT.sub("", log).lstrip(), encoding="utf-8")
            error.hint = error.hint and error.hint.replace(str(error.log), str(kept))
            error.action, error.log = "profile", kept
        raise
    finally:
        remove_tree(scratch)
        for folder in missing:
            with suppress(OSError):  # something else is in it by now
                folder.rmdir()


def _last_attempt(run: Run) -> AttemptFolder:
    return AttemptFolder(max((run.path / "attempts").iterdir(), key=lambda folder: int(folder.name)))


def _read(run: Run, name: str, intervals: tuple[int, int, int | None]) -> Profile:
    attempt = _last_attempt(run)
    try:
        phases = Phases.load(attempt.phases)
    except (OSError, ValueError) as error:
        raise TrainingError(f"the training was not measured to its end ({error})") from None
    times = {e["kind"]: e["t"] for e in read_events(run.events) if e["attempt"] == attempt.name}
    log = run.log.read_bytes()[: phases.log_at_start].decode(errors="replace")
    start = times["train_started"] - times["run_started"]
    return Profile(name, phases, start, imports_of(log), *intervals)


def imports_of(log: str) -> dict[str, float]:
    """The seconds that imports took by top-level package, the longest first.

    Args:
        log: the output of a Python that was told to time its imports, up to where that ends. Of several
            Pythons one after the other, the last counts.
    """
    packages: Counter[str] = Counter()
    for microseconds, module in _IMPORT.findall(log.rpartition(_FIRST_IMPORT)[2]):
        package = module.partition(".")[0]
        packages[PYTHON if package in sys.stdlib_module_names else package] += int(microseconds)
    return {package: spent / 1e6 for package, spent in packages.most_common()}

"""A run on disk.

::

    <save dir>/<name>/<YYYY-mm-ddTHH-MM-SS>/
      request.json      what was asked for
      events.jsonl      what happened
      exit.json         how the last training attempt ended
      log.txt           the worker's whole output
      events.out.tfevents.*    curves for TensorBoard
      attempts/<n>/     each attempt's request, MMF configuration and exit
      lock              held by the worker that trains
      logs/             MMF's own logs
      checkpoints/      MMF's own folder: best.ckpt, current.ckpt, models/, *_final.pth, config.yaml
      reports/          predictions and their metrics
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import Any

from mmf_win.errors import DataError
from mmf_win.files import read_json, write_json
from mmf_win.paths import new_folder, portable_name, timestamp
from mmf_win.protocol import AttemptFolder, Exit


@dataclass(frozen=True)
class RunRequest:
    """What the user asked for, as a run remembers it.

    Attributes:
        preset: the preset's name.
        preset_file: where the user's own preset lay; None for one of mmfw's.
        model: MMF's name of the model.
        config: MMF's configuration to start from.
        settings: the preset's own keys.
        overrides: the user's ``KEY=VALUE`` words.
        splits: for each of ``train``, ``val`` and ``test``, the annotation file's stem.
        data_dir: MMF's data folder.
        offline: MMF must download nothing.
        seed, batch_size, updates, epochs: the options of the same names.
        auto_batch: look for the most rows at once that fit into memory.
        detect_anomaly: autograd's anomaly detection was asked for.
        keep: how many older checkpoints stay beside the best and the current one.
        allow_missing: rows without features or image are left out.
        start: the checkpoint of another run that this one started from.
        init: the weights that training began with: a file, or a key of MMF's zoo.
        published_weights: for a run that was never trained, the key of its weights in MMF's zoo.
        published_sha256: the hash of these weights.
        mmf: version of the MMF that trained it.
        published: what the paper reports for the preset.
        created: seconds since the epoch.
    """

    preset: str
    model: str
    config: str | None
    settings: dict[str, Any]
    overrides: list[str]
    splits: dict[str, str]
    data_dir: str
    preset_file: str | None = None
    offline: bool = False
    seed: int | None = None
    batch_size: int | None = None
    auto_batch: bool = False
    updates: int | None = None
    epochs: int | None = None
    detect_anomaly: bool = False
    keep: int = 1
    allow_missing: bool = False
    start: str | None = None
    init: str | None = None
    published_weights: str | None = None
    published_sha256: str | None = None
    mmf: str = ""
    published: dict[str, Any] = field(default_factory=dict)
    created: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Run:
    """The folder of one run, and the names in it."""

    path: Path

    @classmethod
    def create(cls, save_dir: Path, name: str) -> Run:
        """A new, empty run folder."""
        return cls(new_folder(save_dir / portable_name(name)))

    @property
    def id(self) -> str:
        """``<name>/<time>``, which every command understands."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def request_file(self) -> Path:
        """What was asked for; a folder without it is no run."""
        return self.path / "request.json"

    @property
    def events(self) -> Path:
        """What happened."""
        return self.path / "events.jsonl"

    @property
    def exit_file(self) -> Path:
        """How the last attempt ended."""
        return self.path / "exit.json"

    @property
    def log(self) -> Path:
        """The worker's whole output."""
        return self.path / "log.txt"

    @property
    def lock(self) -> Path:
        """Held by the worker that trains."""
        return self.path / "lock"

    @property
    def logs(self) -> Path:
        """MMF's own logs."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """MMF's save_dir."""
        return self.path / "checkpoints"

    @property
    def reports(self) -> Path:
        """Predictions and their metrics."""
        return self.path / "reports"

    def report(self, split: str) -> Path:
        """A new prediction file for ``split``."""
        name = f"hateful_memes_{self.path.parent.name}_{split}_{timestamp()}"
        numbered = (f"{name}-{n}" if n > 1 else name for n in count(1))
        return next(path for stem in numbered if not (path := self.reports / f"{stem}.csv").exists())

    def new_attempt(self) -> AttemptFolder:
        """A new folder under ``attempts``, numbered on from the last."""
        attempts = self.path / "attempts"
        attempts.mkdir(exist_ok=True)
        numbers = [int(entry.name) for entry in attempts.iterdir() if entry.name.isdecimal()]
        attempt = AttemptFolder(attempts / str(max(numbers, default=0) + 1))
        attempt.path.mkdir()
        return attempt

    def save_request(self, request: RunRequest) -> None:
        """Remember what was asked for."""
        write_json(self.request_file, asdict(request))

    def request(self) -> RunRequest:
        """What was asked for.

        Raises:
            DataError: the run's request cannot be read.
        """
        try:
            values = read_json(self.request_file)
            known = {f.name for f in fields(RunRequest)}
            return RunRequest(**{key: value for key, value in values.items() if key in known})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{self.request_file}: not the request of a run ({error})") from None

    def exit(self) -> Exit | None:
        """How the last attempt ended; None while it runs, and when it was killed."""
        try:
            return Exit.load(self.exit_file)
        except (OSError, ValueError, TypeError, AttributeError):
            return None

"""A run with predictions, and the memes that it predicted, as a report finds them on disk."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from mmf_win.dataset.coverage import SplitSummary
from mmf_win.dataset.prediction_file import Prediction, write_predictions
from mmf_win.demo.synthetic import Picture, draw_meme
from mmf_win.files import json_bytes
from mmf_win.integrity.manifest import Manifest, ManifestEntry, ManifestSource
from mmf_win.paths import DatasetPaths, MmfPaths
from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from mmf_win.runs.folder import Run
from tests.worlds import run_requests
from tests.worlds.tools import requires_package

SPLIT = "test_seen"
PUBLISHED_SCORES = {
    "val": {"accuracy": 58.20, "auroc": 68.57},
    "test": {"accuracy": [60.06, 0.97], "auroc": [67.92, 0.87]},
}
START_TIME = 1_000_000.0

requires_pages = requires_package("PIL", "jinja2", "matplotlib", "numpy")
"""For a test that makes the page of a run."""


@dataclass(frozen=True)
class ReportWorld:
    """A data folder and a save folder."""

    data: Path
    save: Path
    random: Random = field(default_factory=lambda: Random(0))  # decides what the runs predict

    @property
    def dataset(self) -> DatasetPaths:
        """The folder of the memes."""
        return MmfPaths.resolve(self.data).dataset

    def write_annotations(self, memes: Sequence[dict[str, Any]], split: str = SPLIT) -> None:
        """Write an annotation file."""
        self.dataset.annotations.mkdir(parents=True, exist_ok=True)
        self.dataset.annotation_file(split).write_bytes(b"".join(json_bytes(meme) for meme in memes))

    def add_run(self, name: str = "mmbt_grid", stamp: str = "2026-01-01T00-00-00", **changes: Any) -> Run:
        """A run of an hour ago that went well and left events."""
        run = Run(self.save / name / stamp)
        run.reports.mkdir(parents=True)
        splits = {"train": "train", "val": "dev_unseen", "test": SPLIT}
        values = {"preset": "mmbt_grid", "model": "mmbt", "config": None, "splits": splits, "seed": 1}
        values |= {"data_dir": str(self.data), "mmf": "1.0.0rc10", "published": PUBLISHED_SCORES, "created": START_TIME}
        asked = run_requests.make_run_request(**{**values, **changes})
        run.save_request(asked)
        started = {
            "seed": asked.training_number("seed") or 4_000,
            "max_updates": asked.training_number("max_updates") or 120,
        }
        write_events(run, attempt_events("1", 0, 120, **started))
        create_train_attempt(run)
        AttemptOutcome("ok").save(run.outcome_file)
        return run

    def add_predictions(self, run: Run, split: str = SPLIT, *, skill: float = 0.25) -> Path:
        """Predictions of a split that know its labels a little."""
        lines = self.dataset.annotation_file(split).read_text(encoding="utf-8").splitlines()
        csv = run.reports / f"hateful_memes_{run.path.parent.name}_{split}_2026-01-01T00-00-01.csv"
        predictions = []
        for meme in map(json.loads, lines):
            centre = 0.5 + skill * (meme.get("label", 0) - 0.5)
            proba = min(1.0, max(0.0, self.random.gauss(centre, 0.2)))
            predictions.append(Prediction(str(int(meme["id"])), proba, int(proba > 0.5)))
        write_predictions(csv, predictions)
        return csv

    def add_predicted_run(self, *names: str, split: str = SPLIT, skill: float = 0.25, **changes: Any) -> Run:
        """A run that predicted a split."""
        run = self.add_run(*names, **changes)
        self.add_predictions(run, split, skill=skill)
        return run


def make(folder: Path, groups: int = 8, *, draw_images: bool = True) -> ReportWorld:
    """Memes in groups of four: two texts, each on two pictures, so that all are confounders of others.

    Drawing their images takes Pillow.
    """
    world = ReportWorld(folder / "data", folder / "save")
    (world.dataset.images / "img").mkdir(parents=True)
    memes: list[dict[str, Any]] = []
    for group in range(groups):
        pictures = [Picture.random(world.random, crowded=crowded) for crowded in (True, False)]
        for place in range(4):
            text = f"look how many {'people' if place % 2 else 'friends'} number {group}"
            id_ = f"{1000 + 4 * group + place:05}"
            label = (place % 2) ^ (place // 2)
            memes.append({"id": id_, "img": f"img/{id_}.png", "label": label, "text": text})
            if draw_images:
                world.dataset.images.joinpath(memes[-1]["img"]).write_bytes(draw_meme(pictures[place // 2], text))
    world.write_annotations(memes)
    return world


def attempt_events(
    name: str, first: int, last: int, *, val_data: Any = None, **train_started_fields: Any
) -> list[dict[str, Any]]:
    """The events of an attempt to train from one update to another."""
    begin = START_TIME + 1000 * int(name)

    def event(update: int, kind: str, **values: Any) -> dict[str, Any]:
        return {"t": begin + update - first, "kind": kind, "attempt": name, "update": update, **values}

    versions = {"python": "3.11.7", "torch": "2.13.0"}
    events = [
        {"t": begin, "kind": "run_started", "attempt": name, **versions},
        event(first, "train_started", max_updates=120, device="cuda:0", batch=32, seed=1) | train_started_fields,
    ]
    for update in range(first + 10, last + 1, 10):
        figures = {"loss": 0.7 - update / 400, "lr": 1e-5 * (1 - update / 240)}
        figures |= {"updates_per_s": 2.0 + (update % 3) / 10, "max_mem_mib": 9000 + update}
        events.append(event(update, "train", max_updates=120, epoch=1, **figures))
        if update % 30 == 0:
            auroc = 0.5 + update / 600
            metrics = {"auroc": auroc, "accuracy": 0.5, "loss": 0.69}
            events.append(event(update, "val", metrics=metrics, final=False, data=val_data))
    return events


def create_train_attempt(run: Run, number: int = 1) -> None:
    """Make the folder of an attempt to train, whose outcome is that of the run."""
    folder = run.attempt(number).path
    folder.mkdir(parents=True)
    AttemptRequest(TrainTask(), "mmbt", "mmf", str(folder)).save()


def write_events(run: Run, events: Sequence[dict[str, Any]]) -> None:
    """Have the run's events be these."""
    run.events.write_bytes(b"".join(map(json_bytes, events)))


def make_sweep_runs(
    world: ReportWorld, count: int, predicted_count: int
) -> tuple[list[Run], dict[Run, dict[str, object]]]:
    """Runs of which each is better than the one before, and their settings."""
    runs, settings = [], {}
    for n in range(count):
        run = world.add_run(f"task{n:02}", overrides=[f"optimizer.params.lr={n}e-6"])
        events = attempt_events("1", 0, 120, seed=1)
        for event in events:
            if event["kind"] == "val":
                event["metrics"]["auroc"] += n / 1000
        write_events(run, events)
        if n < predicted_count:
            world.add_predictions(run)
        runs.append(run)
        start = f"elsewhere/a/checkpoint/of/seed/{n % 4}"
        settings[run] = {"optimizer.params.lr": 1e-6 * 2**n, "freeze": n % 2 == 0, "модель": start}
    return runs, settings


def visible_text(page: Path | str) -> str:
    """Return the visible text of a page, without markup."""
    html = page if isinstance(page, str) else page.read_text(encoding="utf-8")
    return " ".join(re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL).split())


def record_excluded_memes(world: ReportWorld, count: int) -> None:
    """Have the dataset be one that was converted without some memes of the split."""
    content = world.dataset.annotation_file(SPLIT).read_bytes()
    rows = len(content.splitlines())
    files = {f"annotations/{SPLIT}.jsonl": ManifestEntry(sha256(content).hexdigest(), len(content))}
    summary = asdict(SplitSummary(rows, None, None, count, tuple(map(str, range(count)))))
    source = ManifestSource("memes.zip", 1, 1, "")
    Manifest(world.dataset.root, files, "archive", source, {"splits": {SPLIT: summary}}).save()

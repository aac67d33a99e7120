"""Runs with predictions and their memes, as reports read them from disk."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from mmf_win.records import to_stored
from mmf_win.runs.folder import Run
from tests.worlds import run_requests
from tests.worlds.tools import requires_package

SPLIT = "test_seen"
PUBLISHED_SCORES = {
    "val": {"accuracy": 58.20, "auroc": 68.57},
    "test": {"accuracy": [60.06, 0.97], "auroc": [67.92, 0.87]},
}
START_TIME = 1_000_000.0

requires_report_packages = requires_package("PIL", "jinja2", "matplotlib", "numpy")
"""Mark for a test that writes a report."""


@dataclass(frozen=True)
class ReportWorld:
    """Data folder and save folder with runs to report on."""

    data: Path
    save: Path
    random: Random = field(default_factory=lambda: Random(0))  # for the predictions of the runs

    @property
    def dataset(self) -> DatasetPaths:
        """Return the folder of the dataset."""
        return MmfPaths.resolve(self.data).dataset

    def write_annotations(self, memes: Sequence[dict[str, Any]], split: str = SPLIT) -> None:
        """Write an annotation file."""
        self.dataset.annotations.mkdir(parents=True, exist_ok=True)
        self.dataset.annotation_file(split).write_bytes(b"".join(json_bytes(meme) for meme in memes))

    def add_run(self, name: str = "mmbt_grid", stamp: str = "2026-01-01T00-00-00", **changes: Any) -> Run:
        """Write a finished run with events and return it."""
        run = Run(self.save / name / stamp)
        run.reports.mkdir(parents=True)
        splits = {"train": "train", "val": "dev_unseen", "test": SPLIT}
        values = {"preset": "mmbt_grid", "model": "mmbt", "config": None, "splits": splits, "seed": 1}
        values |= {
            "data_dir": str(self.data),
            "mmf_version": "1.0.0rc10",
            "published_scores": PUBLISHED_SCORES,
            "created": START_TIME,
        }
        request = run_requests.make_run_request(**{**values, **changes})
        run.save_request(request)
        started = {
            "seed": request.training_number("seed") or 4_000,
            "max_updates": request.training_number("max_updates") or 120,
        }
        write_events(run, attempt_events("1", 0, 120, **started))
        create_train_attempt(run)
        AttemptOutcome("ok").save(run.outcome_file)
        return run

    def add_predictions(self, run: Run, split: str = SPLIT, *, skill: float = 0.25) -> Path:
        """Write random predictions of a split and return their file; ``skill`` shifts them towards the labels."""
        lines = self.dataset.annotation_file(split).read_text(encoding="utf-8").splitlines()
        csv = run.reports / f"hateful_memes_{run.path.parent.name}_{split}_2026-01-01T00-00-01.csv"
        predictions = []
        for meme in map(json.loads, lines):
            mean = 0.5 + skill * (meme.get("label", 0) - 0.5)
            proba = min(1.0, max(0.0, self.random.gauss(mean, 0.2)))
            predictions.append(Prediction(str(int(meme["id"])), proba, int(proba > 0.5)))
        write_predictions(csv, predictions)
        return csv

    def add_predicted_run(self, *names: str, split: str = SPLIT, skill: float = 0.25, **changes: Any) -> Run:
        """Write a finished run with predictions of a split and return it."""
        run = self.add_run(*names, **changes)
        self.add_predictions(run, split, skill=skill)
        return run


def make(folder: Path, groups: int = 8, *, draw_images: bool = True) -> ReportWorld:
    """Write memes in groups of four confounders: each of two texts on each of two pictures.

    Drawing the images requires Pillow.
    """
    world = ReportWorld(folder / "data", folder / "save")
    (world.dataset.images / "img").mkdir(parents=True)
    memes: list[dict[str, Any]] = []
    for group in range(groups):
        pictures = [Picture.random(world.random, crowded=crowded) for crowded in (True, False)]
        for position in range(4):
            text = f"look how many {'people' if position % 2 else 'friends'} number {group}"
            id_ = f"{1000 + 4 * group + position:05}"
            label = (position % 2) ^ (position // 2)
            memes.append({"id": id_, "img": f"img/{id_}.png", "label": label, "text": text})
            if draw_images:
                world.dataset.images.joinpath(memes[-1]["img"]).write_bytes(draw_meme(pictures[position // 2], text))
    world.write_annotations(memes)
    return world


def attempt_events(
    name: str, first: int, last: int, *, val_data: Any = None, **train_started_fields: Any
) -> list[dict[str, Any]]:
    """Return the events of an attempt that trains from update ``first`` to update ``last``."""
    start = START_TIME + 1000 * int(name)

    def event(update: int, kind: str, **values: Any) -> dict[str, Any]:
        return {"t": start + update - first, "kind": kind, "attempt": name, "update": update, **values}

    versions = {"python": "3.11.7", "torch": "2.13.0"}
    events = [
        {"t": start, "kind": "run_started", "attempt": name, **versions},
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
    """Create the folder of a training attempt of a run."""
    folder = run.attempt(number).path
    folder.mkdir(parents=True)
    AttemptRequest(TrainTask(), "mmbt", "mmf", str(folder)).save()


def write_events(run: Run, events: Sequence[dict[str, Any]]) -> None:
    """Replace the events of a run."""
    run.events.write_bytes(b"".join(map(json_bytes, events)))


def make_sweep_runs(
    world: ReportWorld, count: int, predicted_count: int
) -> tuple[list[Run], dict[Run, dict[str, object]]]:
    """Write runs with increasing scores; return them, and the settings of each run.

    Args:
        world: Folders of the runs.
        count: Number of runs.
        predicted_count: Number of runs with predictions.
    """
    runs, settings = [], {}
    for index in range(count):
        run = world.add_run(f"task{index:02}", overrides=[f"optimizer.params.lr={index}e-6"])
        events = attempt_events("1", 0, 120, seed=1)
        for event in events:
            if event["kind"] == "val":
                event["metrics"]["auroc"] += index / 1000
        write_events(run, events)
        if index < predicted_count:
            world.add_predictions(run)
        runs.append(run)
        start = f"elsewhere/a/checkpoint/of/seed/{index % 4}"
        settings[run] = {"optimizer.params.lr": 1e-6 * 2**index, "freeze": index % 2 == 0, "модель": start}
    return runs, settings


def visible_text(page: Path | str) -> str:
    """Return the visible text of a page, without markup."""
    html = page if isinstance(page, str) else page.read_text(encoding="utf-8")
    return " ".join(re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL).split())


def record_excluded_memes(world: ReportWorld, count: int) -> None:
    """Write a manifest of a dataset that was converted without ``count`` memes of the split."""
    content = world.dataset.annotation_file(SPLIT).read_bytes()
    rows = len(content.splitlines())
    files = {f"annotations/{SPLIT}.jsonl": ManifestEntry(sha256(content).hexdigest(), len(content))}
    summary = to_stored(SplitSummary(rows, None, None, count, tuple(map(str, range(count)))))
    source = ManifestSource("memes.zip", 1, 1, "")
    Manifest(world.dataset.root, files, "archive", source, {"splits": {SPLIT: summary}}).save()

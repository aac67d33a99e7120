"""Predicts splits with one set of weights or several, labels, blends and scores the result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from mmf_win import __version__
from mmf_win.bridge.install import usable_mmf
from mmf_win.console import Progress, say
from mmf_win.dataset.annotations import count_rows, labels_of, read_rows, require_split
from mmf_win.dataset.predictions import Prediction, read_predictions, write_predictions
from mmf_win.errors import DatasetError, UsageError
from mmf_win.files import write_json
from mmf_win.integrity.digest import file_digest
from mmf_win.paths import Places, new_folder
from mmf_win.protocol import read_events
from mmf_win.results import ensemble, record
from mmf_win.results.members import Member
from mmf_win.results.threshold import DEFAULT, best_accuracy, label
from mmf_win.runs import launch


@dataclass(frozen=True)
class Result:
    """A prediction file, with its record beside it.

    Attributes:
        csv: the file.
        title: whose prediction it is.
        record: see :mod:`mmf_win.results.record`.
    """

    csv: Path
    title: str
    record: dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What the user chose.

    Attributes:
        splits: annotation files' stems; none for the test split of the first run.
        kind: how to blend, a key of :data:`~mmf_win.results.ensemble.KINDS`; None not to.
        best_threshold: choose the threshold on the validation split.
        data_dir: MMF's data folder; None for each run's own.
        overrides: the user's ``KEY=VALUE`` words, after those of the run.
        batch_size: memes a batch; None for the run's own.
        retry: try again with less, when memory runs out.
    """

    splits: Sequence[str] = ()
    kind: str | None = None
    best_threshold: bool = False
    data_dir: Path | None = None
    overrides: tuple[str, ...] = ()
    batch_size: int | None = None
    retry: bool = True


def predict(members: Sequence[Member], save_dir: Path, options: Options) -> Iterator[Result]:
    """The results for each split: of every member, then of the ensemble.

    Args:
        members: at least one.
        save_dir: where the predictions of an ensemble are kept; a member's lie in its run.
        options: what the user chose.

    Raises:
        MmfwError: the class says what went wrong.
    """
    if options.kind is not None and len(members) < 2:
        raise UsageError(
            "an ensemble needs two members or more",
            hint="name several runs, or --checkpoint best --checkpoint last",
        )
    team = _Team(members, save_dir, options)
    first = members[0].run.request()
    splits = list(dict.fromkeys(options.splits)) or [first.splits["test"]]
    validation = first.splits["val"]
    for split in [*splits, validation] if options.best_threshold else splits:
        team.require(split)
    Thread(target=_import_metrics, name="mmfw-import").start()
    for split in splits:
        yield from team.results(split, validation if options.best_threshold else None)


def _import_metrics() -> None:
    """scikit-learn takes more than a second, in which the worker imports MMF."""
    # Who needs it will say what is missing. A prediction that is refused at once ends the process meanwhile,
    # and what imports then is told so by a RuntimeError.
    with suppress(ImportError, RuntimeError):
        import_module("mmf_win.results.metrics")


@dataclass
class _Team:
    """The members, and what is known of them so far; nothing is predicted or hashed twice."""

    members: Sequence[Member]
    save_dir: Path
    options: Options
    _csvs: dict[tuple[Member, str], Path] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)

    def require(self, split: str) -> None:
        """See to it that every member has the split, and the same one where they are blended.

        Raises:
            DatasetError: it is not there, without memes, or not the same everywhere.
        """
        for member in self.members:
            file = require_split(self._places(member).dataset, split)
            if not count_rows(file):
                raise DatasetError(f"{file}: there are no memes in it")
        files = {self._annotations(member, split) for member in self.members}
        if self.options.kind and len({self._sha256(file) for file in files}) > 1:
            raise DatasetError(
                f"the runs have different files for {split}: {', '.join(sorted(map(str, files)))}",
                hint="name one data folder for all with --data-dir",
            )

    def results(self, split: str, validation: str | None) -> Iterator[Result]:
        """Of every member, then of the ensemble; the threshold is chosen on ``validation``."""
        alone = self.options.kind is None
        # The validation split comes first, so that the newest predictions of a run are those asked for.
        blended = self._threshold(self.members, validation) if validation and not alone else None
        for member in self.members:
            threshold = self._threshold([member], validation) if alone and validation else None
            yield self._finished(self._csv(member, split), [member], split, threshold)
        if not alone:
            yield self._finished(self._blended_csv(split), self.members, split, blended)

    def _threshold(self, members: Sequence[Member], split: str) -> float:
        """The threshold that is best on the validation split.

        Raises:
            DatasetError: the split has no labels to choose by.
        """
        annotations = self._annotations(members[0], split)
        labels = labels_of(read_rows(annotations))
        if labels is None:
            raise DatasetError(f"{annotations}: without labels no threshold can be chosen on it")
        return best_accuracy(labels, self._probas(members, split))

    def _finished(self, csv: Path, members: Sequence[Member], split: str, threshold: float | None) -> Result:
        """Label, score and record the predictions in ``csv``."""
        value = DEFAULT if threshold is None else threshold
        predictions = read_predictions(csv)
        labelled = [replace(row, label=label(row.proba, value)) for row in predictions]
        if labelled != predictions:
            write_predictions(csv, labelled)
        annotations = self._annotations(members[0], split)
        validation = members[0].run.request().splits["val"]
        kind = self.options.kind if len(members) > 1 else None
        facts = record.scores(read_rows(annotations), labelled, value, kind) | {
            "threshold_from": "default" if threshold is None else f"best accuracy on {validation}",
            "split": split,
            "annotations": str(annotations),
            "annotations_sha256": self._sha256(annotations),
            "ensemble": kind,
            "members": [
                {
                    "run": member.run.id,
                    "checkpoint": str(member.checkpoint),
                    "checkpoint_sha256": self._sha256(member.checkpoint),
                }
                for member in members
            ],
            "versions": _versions(members[0]),
            "created": round(time.time(), 3),
        }
        if len({self._sha256(member.checkpoint) for member in members}) < len(members):
            say("note: some of the members have the same weights, and count as often as they are named")
        write_json(record.path_beside(csv), facts)
        names = members[0].name if len(members) == 1 else f"{self.options.kind} of {len(members)}"
        return Result(csv, names, facts)

    def _csv(self, member: Member, split: str) -> Path:
        """The member's predictions; made when they are first asked for."""
        if (member, split) not in self._csvs:
            say(f"predicting {split} with {member.name}")
            self._csvs[member, split] = launch.predict(
                member.run,
                self._places(member),
                checkpoint=member.checkpoint,
                split=split,
                overrides=self.options.overrides,
                batch_size=self.options.batch_size,
                retry=self.options.retry,
            )
        return self._csvs[member, split]

    def _blended_csv(self, split: str) -> Path:
        rows = read_rows(self._annotations(self.members[0], split))
        probas = self._probas(self.members, split)
        csv = new_folder(self.save_dir / "ensembles") / f"hateful_memes_{self.options.kind}_{split}.csv"
        write_predictions(
            csv, [Prediction(r.shown_id, p, label(p)) for r, p in zip(rows, probas, strict=True)]
        )
        return csv

    def _probas(self, members: Sequence[Member], split: str) -> list[float]:
        columns = [[row.proba for row in read_predictions(self._csv(m, split))] for m in members]
        return columns[0] if self.options.kind is None else ensemble.blend(self.options.kind, columns)

    def _places(self, member: Member) -> Places:
        return Places.resolve(self.options.data_dir or Path(member.run.request().data_dir), self.save_dir)

    def _annotations(self, member: Member, split: str) -> Path:
        return self._places(member).dataset.split(split)

    def _sha256(self, path: Path) -> str:
        if path not in self._digests:
            with Progress(f"hashing {path.name}", path.stat().st_size) as progress:
                self._digests[path] = file_digest(path, progress=progress.advance).hex()
        return self._digests[path]


def _versions(member: Member) -> dict[str, str]:
    """What the worker that predicted said of itself; the members are all predicted with the same."""
    started = [event for event in read_events(member.run.events) if event["kind"] == "run_started"]
    said = started[-1] if started else {}
    named = ("python", "torch", "transformers")
    known: dict[str, str] = {key: str(said[key]) for key in named if key in said}
    return {"mmfw": __version__, "mmf": usable_mmf().version, **known}

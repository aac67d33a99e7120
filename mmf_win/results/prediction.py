"""Predicts splits with one set of weights or several, labels, blends and scores the result."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from mmf_win.console import Timestamp
from mmf_win.dataset.annotations import labels_of
from mmf_win.dataset.coverage import coverage
from mmf_win.dataset.own_memes import annotations_beside
from mmf_win.dataset.predictions import Prediction, read_predictions, write_predictions
from mmf_win.errors import CheckpointError, DatasetError, UsageError
from mmf_win.files import remove, write_json
from mmf_win.integrity.digest import hash_file
from mmf_win.paths import Places, expanded, new_file, new_folder
from mmf_win.protocol import Event
from mmf_win.results import probabilities, saved_metrics
from mmf_win.results.probabilities import DEFAULT_THRESHOLD, best_accuracy, label
from mmf_win.runs import checkpoints, lookup, predicting
from mmf_win.runs.attempts import Display
from mmf_win.runs.folder import Run, reading
from mmf_win.runs.pinning import PinnedCheckpoint, pinned
from mmf_win.runs.request import CommandOptions
from mmf_win.runs.targets import Target
from mmf_win.upstream.install import usable_mmf

_log = logging.getLogger(__name__)

Predict: TypeAlias = Callable[..., tuple[Path, list[Event]]]
"""What predicts, called as :func:`mmf_win.runs.predicting.predict` is."""


@dataclass(frozen=True)
class RunCheckpoint:
    """The checkpoint that predicts, which may be another run's, and the run that knows the configuration."""

    run: Run
    checkpoint: Path

    @property
    def name(self) -> str:
        """What the user reads."""
        return f"{self.checkpoint.name} of run {self.run.id}"


@dataclass(frozen=True)
class Result:
    """A prediction file, with its record beside it.

    Attributes:
        run: whose checkpoint predicted; None for an ensemble.
        title: whose prediction it is, in words.
        memes: what was predicted, as the user calls it.
        metrics: the record, see :mod:`mmf_win.results.saved_metrics`.
    """

    csv: Path
    run: Run | None
    title: str
    memes: str
    metrics: dict[str, Any]


@dataclass(frozen=True)
class PredictionOptions:
    """What the user chose.

    Attributes:
        split: annotation files' stems; none for the test split of the first run.
        memes: a table of own memes to predict instead of splits, at most one.
        image, text: one meme to predict instead, with :func:`predict_one`.
        features: an LMDB of region features to read instead of the dataset's.
        output: where prediction files and their records go; None for each run's reports, and for a new folder
            of the ensemble.
        ensemble: how to blend, a key of :data:`~mmf_win.results.probabilities.KINDS`; None not to.
        threshold: ``best-accuracy`` to choose it on the validation split.
        data_dir: MMF's data folder; None for each run's own.
        asked: batch size, overrides and the like; they win over those of each run.
        by: what predicts.
    """

    split: Sequence[str] = ()
    memes: Sequence[Path] = ()
    image: Sequence[Path] = ()
    text: str | None = None
    features: Path | None = None
    output: Path | None = None
    ensemble: str | None = None
    threshold: str = "0.5"
    data_dir: Path | None = None
    asked: CommandOptions = field(default_factory=CommandOptions)
    by: Predict = predicting.predict


def choose_checkpoints(save_dir: Path, runs: Sequence[str], wanted: Sequence[str]) -> list[RunCheckpoint]:
    """Every wanted checkpoint of every run.

    Args:
        save_dir: where runs are kept.
        runs: ids, names or folders. Without any, a checkpoint's path stands for its own run, and ``best`` and
            ``last`` for the newest that has a checkpoint.
        wanted: ``best``, ``last`` or paths.

    Raises UsageError where there is no such run, or one is named twice, and CheckpointError where there is no
    such checkpoint, or it is broken.
    """
    names: Sequence[str | None] = runs or [None]
    members = [_choose(save_dir, name, which) for name in names for which in wanted]
    if twice := next((member for member in members if members.count(member) > 1), None):
        raise UsageError(f"{twice.name} is named twice")
    return members


def _choose(save_dir: Path, name: str | None, which: str) -> RunCheckpoint:
    def of(run: Run) -> RunCheckpoint:
        run.request()  # tells how the model is made
        return RunCheckpoint(run, checkpoints.choose(run, which))

    own = lookup.owner(expanded(which).absolute()) if name is None else None
    if own is None and which in ("best", "last"):
        return lookup.newest(save_dir, name, of)
    return of(own or lookup.find_run(save_dir, name))


def predict(
    members: Sequence[RunCheckpoint], save_dir: Path, options: PredictionOptions, display: Display
) -> Iterator[Result]:
    """The results for each split, or for own memes: of every member, then of the ensemble.

    Predictions of an ensemble are kept in ``save_dir``, unless the options name a folder.
    """
    team = _Team(members, save_dir, options, display)
    first = members[0].run.request()
    validation = team.checked_target(first.splits["val"]) if options.threshold == "best-accuracy" else None
    with team.held(), TemporaryDirectory(prefix="mmfw-memes-", ignore_cleanup_errors=True) as scratch:
        if options.memes:
            targets = [Target.of_table(options.memes[0], Path(scratch))]
        else:
            splits = list(dict.fromkeys(options.split)) or [first.splits["test"]]
            targets = [team.checked_target(split) for split in splits]
        for target in targets:
            yield from team.results(target, validation)


def predict_one(
    members: Sequence[RunCheckpoint], save_dir: Path, options: PredictionOptions, display: Display
) -> list[float]:
    """The probability that one meme is hateful: of each member, or of the ensemble alone. Leaves no files."""
    if options.ensemble == "rank":
        raise UsageError("ranks need several memes", hint="mean and logit blend probabilities")
    with TemporaryDirectory(prefix="mmfw-memes-", ignore_cleanup_errors=True) as scratch:
        team = _Team(members, save_dir, replace(options, output=Path(scratch)), display)
        with team.held():
            target = Target.of_image(options.image[0], options.text or "", Path(scratch))
            probas = [read_predictions(team.predicted(member, target)[0])[0].proba for member in members]
    kind = options.ensemble
    return probas if kind is None else probabilities.blend(kind, [[p] for p in probas])


@dataclass
class _Team:
    """The members, and what is known of them so far; nothing is predicted or hashed twice.

    Raises UsageError where an ensemble of one is asked for.
    """

    members: Sequence[RunCheckpoint]
    save_dir: Path
    options: PredictionOptions
    display: Display
    _pins: dict[RunCheckpoint, PinnedCheckpoint] = field(default_factory=dict)
    _made: dict[tuple[RunCheckpoint, str], tuple[Path, list[Event]]] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.options.ensemble is not None and len(self.members) < 2:
            hint = "name several runs, or several checkpoints of one"
            raise UsageError("an ensemble needs two members or more", hint=hint)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the members' checkpoints as they are, and the runs that have them from being removed."""
        by_name = self.options.by is predicting.predict  # an exported model is read from its own folder
        with ExitStack() as stack:
            for member in self.members:
                pin = pinned(member.run, member.checkpoint, by_name=by_name)
                self._pins[member] = stack.enter_context(pin)
                if other := lookup.owner(member.checkpoint):
                    stack.enter_context(reading(other))
            yield

    def checked_target(self, split: str) -> Target:
        """The split, once it is sure that every member has it, and the same one where they are blended.

        Raises DatasetError where it is not there, without memes, or not the same everywhere.
        """
        targets = [Target.of_split(self._places(member), split) for member in self.members]
        files = {target.annotations for target in targets}
        if self.options.ensemble and len({self._sha256(file) for file in files}) > 1:
            message = f"the runs have different files for {split}: {', '.join(sorted(map(str, files)))}"
            raise DatasetError(message, hint="name one data folder for all")
        return targets[0]

    def results(self, target: Target, validation: Target | None) -> Iterator[Result]:
        """Of every member, then of the ensemble; the threshold is chosen on ``validation``."""
        alone = self.options.ensemble is None
        # The validation split comes first, so that the newest predictions of a run are those asked for.
        blended = self._threshold(self.members, None if alone else validation)
        for member in self.members:
            threshold = self._threshold([member], validation if alone else None)
            csv, _ = self.predicted(member, target)
            yield self._finished(csv, [member], target, *threshold)
        if not alone:
            yield self._finished(self._blended_csv(target), self.members, target, *blended)

    def _threshold(self, members: Sequence[RunCheckpoint], validation: Target | None) -> tuple[float, str]:
        """The threshold that is best on the validation split, and where it is from.

        Raises DatasetError where the split has no labels to choose by.
        """
        if validation is None:
            return DEFAULT_THRESHOLD, "default"
        target = self.target_for(members[0], validation)
        labels = labels_of(target.rows)
        if labels is None:
            raise DatasetError(f"{target.source}: without labels no threshold can be chosen on it")
        return best_accuracy(labels, self._probas(members, target)), f"best accuracy on {target.name}"

    def _finished(
        self, csv: Path, members: Sequence[RunCheckpoint], target: Target, threshold: float, origin: str
    ) -> Result:
        """Label, score and record the predictions in ``csv``."""
        predictions = read_predictions(csv)
        labelled = [replace(row, label=label(row.proba, threshold)) for row in predictions]
        if labelled != predictions:
            write_predictions(csv, labelled)
        target = self.target_for(members[0], target)
        kind = self.options.ensemble if len(members) > 1 else None
        dataset, began = self._places(members[0]).dataset, self._began_with(members[0], target)
        versions = {} if "mmf" in began else {"mmf": usable_mmf().version}  # the same for all members
        packages = ("mmfw", "python", "torch", "transformers", "mmf", "onnxruntime")
        versions |= {key: str(began[key]) for key in packages if key in began}
        facts = saved_metrics.scores(target.rows, labelled, threshold, kind) | {
            "threshold_from": origin,
            "split": target.name,
            "full_rows": None if target.is_own else coverage(dataset, target.name).full_rows,
            "annotations": str(target.source),
            "annotations_sha256": self._sha256(target.source),
            "ensemble": kind,
            "members": [
                {
                    "run": member.run.id,
                    "checkpoint": str(member.checkpoint),
                    "checkpoint_sha256": self._pins[member].sha256(),
                    "precision": self._began_with(member, target).get("precision", "fp32"),
                }
                for member in members
            ],
            "versions": versions,
            "created": Timestamp(round(time.time(), 3)),
        }
        if len({member["checkpoint_sha256"] for member in facts["members"]}) < len(members):
            _log.warning("some of the members have the same weights, and count as often as they are named")
        write_json(saved_metrics.path_beside(csv), facts)
        if kind is None:
            return Result(csv, members[0].run, members[0].name, target.title, facts)
        return Result(csv, None, f"{kind} of {len(members)}", target.title, facts)

    def predicted(self, member: RunCheckpoint, target: Target) -> tuple[Path, list[Event]]:
        """The member's predictions, made when first asked for, and what the worker said meanwhile."""
        if (member, target.name) not in self._made:
            _log.info("predicting %s with %s", target.title, member.name)
            self._made[member, target.name] = self.options.by(
                member.run,
                self._places(member),
                self.options.asked,
                checkpoint=self._pins[member].path,
                target=self.target_for(member, target),
                # The validation split beside own memes has the dataset's features.
                features=self.options.features if target.is_own or not self.options.memes else None,
                folder=self.options.output,
                display=self.display,
            )
            try:
                self._pins[member].require_unchanged()
            except CheckpointError:
                remove(self._made[member, target.name][0])
                raise
        return self._made[member, target.name]

    def _blended_csv(self, target: Target) -> Path:
        probas = self._probas(self.members, target)
        folder = self.options.output or new_folder(self.save_dir / "ensembles")
        with new_file(folder, f"hateful_memes_{self.options.ensemble}_{target.name}_", ".csv") as csv:
            if target.is_own:
                shutil.copyfile(target.annotations, annotations_beside(csv))
            rows = zip(target.rows, probas, strict=True)
            write_predictions(csv, [Prediction(row.shown_id, p, label(p)) for row, p in rows])
        return csv

    def _probas(self, members: Sequence[RunCheckpoint], target: Target) -> list[float]:
        made = [self.predicted(member, target) for member in members]
        columns = [[row.proba for row in read_predictions(csv)] for csv, _ in made]
        kind = self.options.ensemble
        return columns[0] if kind is None else probabilities.blend(kind, columns)

    def _began_with(self, member: RunCheckpoint, target: Target) -> Event:
        """What the worker that predicted said as it began: its versions and precision."""
        kinds = ("run_started", "predict_started")
        _, events = self.predicted(member, target)
        return {key: value for event in events if event["kind"] in kinds for key, value in event.items()}

    def _places(self, member: RunCheckpoint) -> Places:
        return Places.resolve(self.options.data_dir or Path(member.run.request().data_dir), self.save_dir)

    def target_for(self, member: RunCheckpoint, target: Target) -> Target:
        """The target as a member has it: a split lies in its own data folder."""
        if target.is_own:
            return target
        return replace(target, annotations=self._places(member).dataset.split(target.name))

    def _sha256(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = hash_file(path, f"hashing {path.name}")
        return self._digests[path]

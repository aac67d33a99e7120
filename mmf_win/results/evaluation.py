"""Predicts splits with one set of weights or several, labels, blends and scores the result."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

from mmf_win.console import Timestamp
from mmf_win.dataset.annotations import labels_of
from mmf_win.dataset.coverage import Coverage, load_coverage
from mmf_win.dataset.prediction_file import Prediction, write_predictions
from mmf_win.dataset.user_memes import user_annotations_path
from mmf_win.errors import DatasetError, UsageError
from mmf_win.files import remove, write_json
from mmf_win.paths import MmfPaths, create_timestamped_dir, expand_home, reserve_file
from mmf_win.protocol import Event
from mmf_win.results import blending, metrics_file
from mmf_win.results.blending import DEFAULT_THRESHOLD, apply_threshold, best_accuracy_threshold
from mmf_win.results.report.scored_split import ScoredMeme, ScoredSplit
from mmf_win.runs import checkpoints, lookup, prediction
from mmf_win.runs.attempts import DisplayFactory
from mmf_win.runs.checkpoints import CheckedFile, PinnedCheckpoint, pin_checkpoint
from mmf_win.runs.folder import Run, usage_lock
from mmf_win.runs.request import CommandOptions
from mmf_win.runs.targets import PredictionTarget
from mmf_win.upstream.install import require_mmf

_log = logging.getLogger(__name__)

#: What predicts, called as :func:`mmf_win.runs.prediction.predict_target` is.
PredictFunction: TypeAlias = Callable[..., tuple[list[float], Event]]


@dataclass(frozen=True)
class RunCheckpoint:
    """The checkpoint that predicts, which may be another run's, and the run that knows the configuration.

    ``checked`` is what was read of the file, if it was.
    """

    run: Run
    checkpoint: Path
    checked_file: CheckedFile | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What the user reads."""
        return f"{self.checkpoint.name} of run {self.run.id}"


@dataclass(frozen=True)
class PredictionResult:
    """A prediction file, with its record beside it.

    Attributes:
        record: see :mod:`mmf_win.results.metrics_file`.
        run: whose checkpoint predicted; None for an ensemble.
        title: whose prediction it is, in words.
    """

    scored: ScoredSplit
    record: dict[str, Any]
    run: Run | None
    title: str


@dataclass(frozen=True)
class PredictionOptions:
    """What the user chose.

    Attributes:
        split: annotation files' stems; none for the test split of the first run.
        memes: a table of own memes to predict instead of splits, at most one.
        image, text: one meme to predict instead, with :func:`predict_meme`.
        features: an LMDB of region features to read instead of the dataset's.
        output: where prediction files and their records go; None for each run's reports, and for a new folder
            of the ensemble.
        ensemble: how to blend, a key of :data:`~mmf_win.results.blending.BLEND_METHODS`; None not to.
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
    command_options: CommandOptions = field(default_factory=CommandOptions)
    predict_function: PredictFunction = prediction.predict_target


def select_checkpoints(
    save_dir: Path, run_specs: Sequence[str], checkpoint_specs: Sequence[str]
) -> list[RunCheckpoint]:
    """Every wanted checkpoint of every run.

    Args:
        save_dir: where runs are kept.
        runs: ids, names or folders. Without any, a checkpoint's path stands for its own run, and ``best`` and
            ``last`` for the newest that has a checkpoint.
        wanted: ``best``, ``last`` or paths.

    Raises UsageError where there is no such run, or one is named twice, and CheckpointError where there is no
    such checkpoint, or it is broken.
    """
    names: Sequence[str | None] = run_specs or [None]
    members = [_select_checkpoint(save_dir, name, which) for name in names for which in checkpoint_specs]
    if twice := next((member for member in members if members.count(member) > 1), None):
        raise UsageError(f"{twice.name} is named twice")
    return members


def _select_checkpoint(save_dir: Path, run_spec: str | None, checkpoint_spec: str) -> RunCheckpoint:
    def select_in_run(run: Run) -> RunCheckpoint:
        run.request()  # tells how the model is made
        file = checkpoints.select_checkpoint(run, checkpoint_spec)
        return RunCheckpoint(run, file.path, file)

    own = lookup.run_containing(expand_home(checkpoint_spec).absolute()) if run_spec is None else None
    if own is None and checkpoint_spec in ("best", "last"):
        return lookup.first_usable_run(save_dir, run_spec, select_in_run)
    return select_in_run(own or lookup.find_run(save_dir, run_spec))


def predict_and_score(
    members: Sequence[RunCheckpoint], save_dir: Path, options: PredictionOptions, display: DisplayFactory
) -> Iterator[PredictionResult]:
    """The results for each split, or for own memes: of every member, then of the ensemble.

    Predictions of an ensemble are kept in ``save_dir``, unless the options name a folder. Raises UsageError
    and DatasetError as the methods of :class:`_Evaluation`.
    """
    splits, blends = members[0].run.request().splits, options.ensemble is not None
    with (
        TemporaryDirectory(prefix="mmfw-memes-", ignore_cleanup_errors=True) as scratch,
        _open_evaluation(members, save_dir, options, display) as team,
    ):
        validation = splits["val"] if options.threshold == "best-accuracy" else None
        if validation is not None:
            team.require_split(validation)
        if options.memes:
            team.set_user_target(PredictionTarget.from_table(options.memes[0], Path(scratch)))
        else:
            team.target_names = list(dict.fromkeys(options.split)) or [splits["test"]]
            for split in team.target_names:
                team.require_split(split)
        for name in team.target_names:
            # The validation split comes first, so that the newest predictions of a run are those asked for.
            of_all = team.choose_threshold(team.members, validation if blends else None)
            for member in team.members:
                of_one = team.choose_threshold([member], None if blends else validation)
                yield team.evaluate_target([member], name, *of_one)
            if blends:
                yield team.evaluate_target(team.members, name, *of_all)


def predict_meme(
    members: Sequence[RunCheckpoint], save_dir: Path, options: PredictionOptions, display: DisplayFactory
) -> list[float]:
    """The probability that one meme is hateful: of each member, or of the ensemble alone. Leaves no files."""
    kind = options.ensemble
    if kind == "rank":
        raise UsageError("ranks need several memes", hint="mean and logit blend probabilities")
    with (
        TemporaryDirectory(prefix="mmfw-memes-", ignore_cleanup_errors=True) as scratch,
        _open_evaluation(members, save_dir, replace(options, output=Path(scratch)), display) as team,
    ):
        team.set_user_target(PredictionTarget.from_image(options.image[0], options.text or "", Path(scratch)))
        probas = [team.predict_member(member, *team.target_names).probas for member in team.members]
    return [of_one[0] for of_one in probas] if kind is None else blending.blend(kind, probas)


class _MemberPrediction(NamedTuple):
    """A prediction: the name of its file, and what the worker said as it began: versions and precision."""

    csv: Path
    probas: list[float]
    start_event: Event


@dataclass
class _Member:
    """A checkpoint that predicts, whose bytes stay as they are.

    Attributes:
        made: what it has predicted so far, by the names of the targets.
    """

    run_checkpoint: RunCheckpoint
    pin: PinnedCheckpoint
    mmf_paths: MmfPaths
    predictions: dict[str, _MemberPrediction] = field(default_factory=dict)


@contextmanager
def _open_evaluation(
    members: Sequence[RunCheckpoint], save_dir: Path, options: PredictionOptions, display: DisplayFactory
) -> Iterator[_Evaluation]:
    """Keep the members' checkpoints as they are, and the runs that have them from being removed.

    Raises UsageError where an ensemble of one is asked for.
    """
    if options.ensemble is not None and len(members) < 2:
        hint = "name several runs, or several checkpoints of one"
        raise UsageError("an ensemble needs two members or more", hint=hint)
    by_name = (
        options.predict_function is prediction.predict_target
    )  # an exported model is read from its own folder
    with ExitStack() as stack:
        held = []
        for each in members:
            pin = pin_checkpoint(each.run, each.checkpoint, use_link=by_name, checked_file=each.checked_file)
            data_dir = options.data_dir or Path(each.run.request().data_dir)
            held.append(_Member(each, stack.enter_context(pin), MmfPaths.resolve(data_dir, save_dir)))
            if other := lookup.run_containing(each.checkpoint):
                stack.enter_context(usage_lock(other))
        yield _Evaluation(held, save_dir, options, display, stack)


@dataclass
class _Evaluation:
    """The members, none of which predicts anything twice.

    Attributes:
        stack: reserves the names of prediction files until the end.
        asked: the targets whose predictions are finished, by name; others are written as they are made.
        own: memes of the user's own.
    """

    members: list[_Member]
    save_dir: Path
    options: PredictionOptions
    display: DisplayFactory
    stack: ExitStack
    target_names: list[str] = field(default_factory=list)
    user_target: PredictionTarget | None = None
    _split_target: Callable[[MmfPaths, str], PredictionTarget] = field(
        default_factory=lambda: cache(PredictionTarget.from_split)
    )

    def set_user_target(self, target: PredictionTarget) -> None:
        """Let all members predict own memes."""
        self.user_target, self.target_names = target, [target.name]

    def find_target(self, member: _Member, name: str) -> PredictionTarget:
        """A target as a member has it: a split lies in its own data folder."""
        own = self.user_target
        return own if own is not None and own.name == name else self._split_target(member.mmf_paths, name)

    def require_split(self, split: str) -> None:
        """Make sure that every member has a split, and the same one where they are blended.

        Raises DatasetError where it is not there, without memes, or not the same everywhere.
        """
        targets = [self.find_target(member, split) for member in self.members]
        files = {target.annotation_file.path: target.sha256 for target in targets}
        if self.options.ensemble and len(set(files.values())) > 1:
            message = f"the runs have different files for {split}: {', '.join(sorted(map(str, files)))}"
            raise DatasetError(message, hint="name one data folder for all")

    def choose_threshold(self, members: Sequence[_Member], validation: str | None) -> tuple[float, str]:
        """The threshold that is best on the validation split, and where it is from.

        Raises DatasetError where the split has no labels to choose by.
        """
        if validation is None:
            return DEFAULT_THRESHOLD, "default"
        target = self.find_target(members[0], validation)
        labels = labels_of(target.rows)
        if labels is None:
            raise DatasetError(f"{target.source}: without labels no threshold can be chosen on it")
        made = [self.predict_member(member, validation) for member in members]
        return best_accuracy_threshold(
            labels, self._blend_predictions(made)
        ), f"best accuracy on {validation}"

    def predict_member(self, member: _Member, name: str) -> _MemberPrediction:
        """The predictions of a member, made when they are first asked for."""
        if name in member.predictions:
            return member.predictions[name]
        target, options, csvs = self.find_target(member, name), self.options, list[Path]()
        report = member.run_checkpoint.run.reserve_prediction_file(name, options.output)
        _log.info("predicting %s with %s", target.title, member.run_checkpoint.name)
        probas, began = options.predict_function(
            member.run_checkpoint.run,
            member.mmf_paths,
            options.command_options,
            checkpoint=member.pin.path,
            target=target,
            # The validation split beside own memes has the dataset's features.
            features=options.features if target.is_user_data or not options.memes else None,
            display=self.display,
            begin=lambda: csvs.append(self.stack.enter_context(report)),
        )
        member.pin.require_unchanged()
        made = member.predictions[name] = _MemberPrediction(csvs[0], probas, began)
        if name not in self.target_names:
            _write_prediction_files(made.csv, target, _label_memes(target, probas, DEFAULT_THRESHOLD))
        return made

    def evaluate_target(
        self, members: Sequence[_Member], name: str, threshold: float, origin: str
    ) -> PredictionResult:
        """Predict, label, score and record a target, by one member or by the ensemble of all."""
        options, first = self.options, members[0]
        kind, target = options.ensemble if len(members) > 1 else None, self.find_target(first, name)
        made = [self.predict_member(member, name) for member in members]
        csv, probas = made[0].csv, self._blend_predictions(made)
        if kind is not None:
            folder = options.output or create_timestamped_dir(self.save_dir / "ensembles")
            csv = self.stack.enter_context(reserve_file(folder, f"hateful_memes_{kind}_{name}_", ".csv"))
        memes = _label_memes(target, probas, threshold)
        _write_prediction_files(csv, target, memes)
        covered = Coverage(target.title, len(memes))
        if not target.is_user_data:
            covered = load_coverage(first.mmf_paths.dataset, target.annotation_file)
        began = made[0].start_event
        versions = {} if "mmf" in began else {"mmf": require_mmf().version}  # the same for all members
        packages = ("mmfw", "python", "torch", "transformers", "mmf", "onnxruntime")
        facts: dict[str, Any] = {
            "threshold": threshold,
            "threshold_from": origin,
            "split": name,
            "full_rows": covered.full_rows,
            "annotations": str(target.source),
            "annotations_sha256": target.sha256,
            "ensemble": kind,
            "members": [
                {
                    "run": member.run_checkpoint.run.id,
                    "checkpoint": str(member.run_checkpoint.checkpoint),
                    "checkpoint_sha256": member.pin.sha256(),
                    "precision": each.start_event.get("precision", "fp32"),
                }
                for member, each in zip(members, made, strict=True)
            ],
            "versions": versions | {key: str(began[key]) for key in packages if key in began},
            "created": Timestamp(round(time.time(), 3)),
        }
        if len({member["checkpoint_sha256"] for member in facts["members"]}) < len(members):
            _log.warning("some of the members have the same weights, and count as often as they are named")
        annotations = user_annotations_path(csv) if target.is_user_data else target.annotation_file.path
        scored = ScoredSplit(csv, name, annotations, target.annotation_file.sha256, memes, facts, covered)
        record = scored.score_record | facts
        write_json(metrics_file.metrics_path(csv), record)
        title = first.run_checkpoint.name if kind is None else f"{kind} of {len(members)}"
        return PredictionResult(scored, record, first.run_checkpoint.run if kind is None else None, title)

    def _blend_predictions(self, predictions: Sequence[_MemberPrediction]) -> list[float]:
        kind, columns = self.options.ensemble, [each.probas for each in predictions]
        return columns[0] if kind is None or len(predictions) == 1 else blending.blend(kind, columns)


def _label_memes(
    target: PredictionTarget, probas: Sequence[float], threshold: float
) -> tuple[ScoredMeme, ...]:
    return tuple(
        ScoredMeme(row, p, apply_threshold(p, threshold)) for row, p in zip(target.rows, probas, strict=True)
    )


def _write_prediction_files(csv: Path, target: PredictionTarget, memes: Sequence[ScoredMeme]) -> None:
    """Write a submission, and beside it a copy of the annotations of own memes, which are nowhere else."""
    try:
        if target.is_user_data:
            shutil.copyfile(target.annotation_file.path, user_annotations_path(csv))
        write_predictions(csv, [Prediction(meme.row.display_id, meme.proba, meme.decision) for meme in memes])
    except BaseException:
        remove(user_annotations_path(csv))
        raise

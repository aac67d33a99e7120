"""Predict splits with one or more checkpoints, and label, blend and score the predictions."""

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
from mmf_win.dataset.annotations import collect_labels
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

#: A function that predicts, with the interface of :func:`mmf_win.runs.prediction.predict_target`.
PredictFunction: TypeAlias = Callable[..., tuple[list[float], Event]]


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint that predicts, and the run that provides the configuration.

    Attributes:
        run: Run whose configuration is used.
        checkpoint: Checkpoint file, possibly of another run.
        checked_file: Verified content of the file, if it has been read already.
    """

    run: Run
    checkpoint: Path
    checked_file: CheckedFile | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Name of the checkpoint and its run, for messages."""
        return f"{self.checkpoint.name} of run {self.run.id}"


@dataclass(frozen=True)
class PredictionResult:
    """A prediction file and its metrics record, which are saved next to each other.

    Attributes:
        scored: Predictions with the annotations of their memes.
        record: Saved metrics; see :mod:`mmf_win.results.metrics_file`.
        run: Run whose checkpoint predicted; ``None`` for an ensemble.
        title: Name of the predictor, for messages.
    """

    scored: ScoredSplit
    record: dict[str, Any]
    run: Run | None
    title: str


@dataclass(frozen=True)
class PredictionOptions:
    """Options of a prediction.

    Attributes:
        split: Stems of annotation files; empty for the test split of the first run.
        memes: Table of the user's memes to predict instead of splits, at most one.
        image: Image of a single meme to predict instead, with :func:`predict_meme`.
        text: Text of that meme.
        features: LMDB of region features to use instead of the dataset's.
        output: Folder of the prediction files and their records; ``None`` for each run's reports, and for a
            new folder per ensemble.
        ensemble: Key of :data:`~mmf_win.results.blending.BLEND_METHODS`; ``None`` for no ensemble.
        threshold: ``best-accuracy`` to choose the threshold on the validation split.
        data_dir: MMF's data folder; ``None`` for the data folder of each run.
        command_options: Batch size, overrides and the like, which take precedence over those of each run.
        predict_function: Function that predicts.
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
    """Return every requested checkpoint of every requested run, ordered by run.

    Args:
        save_dir: Folder of the runs.
        run_specs: IDs, names or folders of runs. If empty, a checkpoint path selects the run that contains
            it, and ``best`` and ``last`` select the newest run that has a checkpoint.
        checkpoint_specs: ``best``, ``last`` or paths.

    Raises:
        UsageError: A run does not exist, or a checkpoint is listed twice.
        CheckpointError: A checkpoint does not exist or is damaged.
    """
    names: Sequence[str | None] = run_specs or [None]
    members = [_select_checkpoint(save_dir, name, spec) for name in names for spec in checkpoint_specs]
    if duplicate := next((member for member in members if members.count(member) > 1), None):
        raise UsageError(f"{duplicate.name} is passed twice")
    return members


def _select_checkpoint(save_dir: Path, run_spec: str | None, checkpoint_spec: str) -> RunCheckpoint:
    def select_in_run(run: Run) -> RunCheckpoint:
        run.request()  # raises if the configuration cannot be read
        file = checkpoints.select_checkpoint(run, checkpoint_spec)
        return RunCheckpoint(run, file.path, file)

    owner = lookup.find_run_containing(expand_home(checkpoint_spec).absolute()) if run_spec is None else None
    if owner is None and checkpoint_spec in ("best", "last"):
        return lookup.find_first_usable_run(save_dir, run_spec, select_in_run)
    return select_in_run(owner or lookup.find_run(save_dir, run_spec))


def predict_and_score(
    members: Sequence[RunCheckpoint], save_dir: Path, options: PredictionOptions, display: DisplayFactory
) -> Iterator[PredictionResult]:
    """Yield the results of each split, or of the user's memes: one per member, then that of the ensemble.

    Predictions of ensembles are saved in ``save_dir`` unless the options name a folder.

    Raises:
        UsageError: An ensemble has fewer than two members, or a run or option is invalid.
        DatasetError: A split is missing, empty, unlabelled although a threshold is chosen on it, or differs
            between the members of an ensemble.
    """
    splits, is_ensemble = members[0].run.request().splits, options.ensemble is not None
    with (
        TemporaryDirectory(prefix="mmfw-memes-", ignore_cleanup_errors=True) as scratch,
        _open_evaluation(members, save_dir, options, display) as session,
    ):
        validation = splits["val"] if options.threshold == "best-accuracy" else None
        if validation is not None:
            session.require_split(validation)
        if options.memes:
            session.set_user_target(PredictionTarget.from_table(options.memes[0], Path(scratch)))
        else:
            session.target_names = list(dict.fromkeys(options.split)) or [splits["test"]]
            for split in session.target_names:
                session.require_split(split)
        for name in session.target_names:
            # Predict the validation split first: the newest predictions of a run must be the requested ones.
            ensemble_threshold = session.choose_threshold(session.members, validation if is_ensemble else None)
            for member in session.members:
                member_threshold = session.choose_threshold([member], None if is_ensemble else validation)
                yield session.evaluate_target([member], name, *member_threshold)
            if is_ensemble:
                yield session.evaluate_target(session.members, name, *ensemble_threshold)


def predict_meme(
    members: Sequence[RunCheckpoint], save_dir: Path, options: PredictionOptions, display: DisplayFactory
) -> list[float]:
    """Return the probability that one meme is hateful, of each member or only of the ensemble.

    Leaves no files behind.

    Raises:
        UsageError: The ensemble method is ``rank``, or an ensemble has fewer than two members.
    """
    method = options.ensemble
    if method == "rank":
        raise UsageError("rank cannot blend the predictions of a single meme", hint="use mean or logit")
    with (
        TemporaryDirectory(prefix="mmfw-memes-", ignore_cleanup_errors=True) as scratch,
        _open_evaluation(members, save_dir, replace(options, output=Path(scratch)), display) as session,
    ):
        session.set_user_target(PredictionTarget.from_image(options.image[0], options.text or "", Path(scratch)))
        probas = [session.predict_member(member, *session.target_names).probas for member in session.members]
    return [column[0] for column in probas] if method is None else blending.blend(method, probas)


class _MemberPrediction(NamedTuple):
    """A prediction file, its probabilities, and the worker's start event with versions and precision."""

    csv: Path
    probas: list[float]
    start_event: Event


@dataclass
class _Member:
    """A checkpoint that predicts, with its content pinned and its finished predictions by target name."""

    run_checkpoint: RunCheckpoint
    pin: PinnedCheckpoint
    mmf_paths: MmfPaths
    predictions: dict[str, _MemberPrediction] = field(default_factory=dict)


@contextmanager
def _open_evaluation(
    members: Sequence[RunCheckpoint], save_dir: Path, options: PredictionOptions, display: DisplayFactory
) -> Iterator[_Evaluation]:
    """Pin the members' checkpoints and keep the runs that contain them from being removed."""
    if options.ensemble is not None and len(members) < 2:
        hint = "pass several runs, or several checkpoints of a run"
        raise UsageError("an ensemble needs at least two members", hint=hint)
    # An exported model is read from its own folder and needs no link.
    use_link = options.predict_function is prediction.predict_target
    with ExitStack() as stack:
        pinned = []
        for member in members:
            pin = pin_checkpoint(member.run, member.checkpoint, use_link=use_link, checked_file=member.checked_file)
            data_dir = options.data_dir or Path(member.run.request().data_dir)
            pinned.append(_Member(member, stack.enter_context(pin), MmfPaths.resolve(data_dir, save_dir)))
            if owner := lookup.find_run_containing(member.checkpoint):
                stack.enter_context(usage_lock(owner))
        yield _Evaluation(pinned, save_dir, options, display, stack)


@dataclass
class _Evaluation:
    """Evaluation of several members; each member predicts a target only once.

    Attributes:
        stack: Holds the reservations of prediction files until the end.
        target_names: Requested targets, whose files :meth:`evaluate_target` writes. The files of other
            targets are written as soon as they are predicted.
        user_target: The user's memes.
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
        """Make all members predict the user's memes."""
        self.user_target, self.target_names = target, [target.name]

    def find_target(self, member: _Member, name: str) -> PredictionTarget:
        """Return a target for a member; a split is read from the member's own data folder."""
        if self.user_target is not None and self.user_target.name == name:
            return self.user_target
        return self._split_target(member.mmf_paths, name)

    def require_split(self, split: str) -> None:
        """Raise ``DatasetError`` unless all members have a split, and those of an ensemble the same file."""
        targets = [self.find_target(member, split) for member in self.members]
        files = {target.annotation_file.path: target.sha256 for target in targets}
        if self.options.ensemble and len(set(files.values())) > 1:
            message = f"the runs use different files for {split}: {', '.join(sorted(map(str, files)))}"
            raise DatasetError(message, hint="use one data folder for all runs")

    def choose_threshold(self, members: Sequence[_Member], validation: str | None) -> tuple[float, str]:
        """Return the best threshold on the validation split, or the default one, and its origin."""
        if validation is None:
            return DEFAULT_THRESHOLD, "default"
        target = self.find_target(members[0], validation)
        labels = collect_labels(target.rows)
        if labels is None:
            raise DatasetError(f"{target.source}: a threshold cannot be chosen without labels")
        predictions = [self.predict_member(member, validation) for member in members]
        return best_accuracy_threshold(labels, self._blend_predictions(predictions)), f"best accuracy on {validation}"

    def predict_member(self, member: _Member, name: str) -> _MemberPrediction:
        """Return a member's predictions of a target, predicting on first use."""
        if name in member.predictions:
            return member.predictions[name]
        target, options, csvs = self.find_target(member, name), self.options, list[Path]()
        reservation = member.run_checkpoint.run.reserve_prediction_file(name, options.output)
        _log.info("predicting %s with %s", target.title, member.run_checkpoint.name)
        probas, start_event = options.predict_function(
            member.run_checkpoint.run,
            member.mmf_paths,
            options.command_options,
            checkpoint=member.pin.path,
            target=target,
            # A validation split that is predicted in addition to user data uses the dataset's features.
            features=options.features if target.is_user_data or not options.memes else None,
            display=self.display,
            begin=lambda: csvs.append(self.stack.enter_context(reservation)),
        )
        member.pin.require_unchanged()
        result = member.predictions[name] = _MemberPrediction(csvs[0], probas, start_event)
        if name not in self.target_names:
            _write_prediction_files(result.csv, target, _label_memes(target, probas, DEFAULT_THRESHOLD))
        return result

    def evaluate_target(self, members: Sequence[_Member], name: str, threshold: float, origin: str) -> PredictionResult:
        """Predict, label, score and record a target with one member or with the ensemble of several."""
        options, first = self.options, members[0]
        method, target = options.ensemble if len(members) > 1 else None, self.find_target(first, name)
        predictions = [self.predict_member(member, name) for member in members]
        csv, probas = predictions[0].csv, self._blend_predictions(predictions)
        if method is not None:
            folder = options.output or create_timestamped_dir(self.save_dir / "ensembles")
            csv = self.stack.enter_context(reserve_file(folder, f"hateful_memes_{method}_{name}_", ".csv"))
        memes = _label_memes(target, probas, threshold)
        _write_prediction_files(csv, target, memes)
        coverage = Coverage(target.title, len(memes))
        if not target.is_user_data:
            coverage = load_coverage(first.mmf_paths.dataset, target.annotation_file)
        start_event = predictions[0].start_event
        versions = {} if "mmf" in start_event else {"mmf": require_mmf().version}  # the same for all members
        packages = ("mmfw", "python", "torch", "transformers", "mmf", "onnxruntime")
        facts: dict[str, Any] = {
            "threshold": threshold,
            "threshold_from": origin,
            "split": name,
            "full_rows": coverage.full_rows,
            "annotations": str(target.source),
            "annotations_sha256": target.sha256,
            "ensemble": method,
            "members": [
                {
                    "run": member.run_checkpoint.run.id,
                    "checkpoint": str(member.run_checkpoint.checkpoint),
                    "checkpoint_sha256": member.pin.sha256(),
                    "precision": member_prediction.start_event.get("precision", "fp32"),
                }
                for member, member_prediction in zip(members, predictions, strict=True)
            ],
            "versions": versions | {key: str(start_event[key]) for key in packages if key in start_event},
            "created": Timestamp(round(time.time(), 3)),
        }
        if len({member["checkpoint_sha256"] for member in facts["members"]}) < len(members):
            _log.warning("some ensemble members have identical weights; each member is counted")
        annotations = user_annotations_path(csv) if target.is_user_data else target.annotation_file.path
        scored = ScoredSplit(csv, name, annotations, target.annotation_file.sha256, memes, facts, coverage)
        record = scored.score_record | facts
        write_json(metrics_file.metrics_path(csv), record)
        title = first.run_checkpoint.name if method is None else f"{method} of {len(members)}"
        return PredictionResult(scored, record, first.run_checkpoint.run if method is None else None, title)

    def _blend_predictions(self, predictions: Sequence[_MemberPrediction]) -> list[float]:
        method, columns = (self.options.ensemble, [result.probas for result in predictions])
        return columns[0] if method is None or len(predictions) == 1 else blending.blend(method, columns)


def _label_memes(target: PredictionTarget, probas: Sequence[float], threshold: float) -> tuple[ScoredMeme, ...]:
    return tuple(ScoredMeme(row, p, apply_threshold(p, threshold)) for row, p in zip(target.rows, probas, strict=True))


def _write_prediction_files(csv: Path, target: PredictionTarget, memes: Sequence[ScoredMeme]) -> None:
    """Write a submission and, for the user's memes, a copy of their annotations next to it."""
    try:
        if target.is_user_data:
            shutil.copyfile(target.annotation_file.path, user_annotations_path(csv))
        write_predictions(csv, [Prediction(meme.row.display_id, meme.proba, meme.decision) for meme in memes])
    except BaseException:
        remove(user_annotations_path(csv))
        raise

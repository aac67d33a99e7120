"""``mmfw predict``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from click.core import ParameterSource

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.commands.progress import RunDisplay
from mmf_win.commands.track import find_sweep_of_run, select_enabled_trackers, tracking_options
from mmf_win.console import print_json, print_result, print_status
from mmf_win.dataset.annotations import require_split
from mmf_win.dataset.published_results import find_paper_splits
from mmf_win.dataset.region_features import find_lmdb
from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.export.exported_model import ExportedModel
from mmf_win.paths import MmfPaths
from mmf_win.results import evaluation
from mmf_win.results.blending import BLEND_METHODS
from mmf_win.results.evaluation import PredictionOptions, PredictionResult, RunCheckpoint
from mmf_win.results.metrics_file import METRIC_TITLES
from mmf_win.runs.lookup import find_run
from mmf_win.runs.override_rules import require_predictable, split_arguments
from mmf_win.runs.published_weights import get_or_create_run
from mmf_win.runs.request import CommandOptions
from mmf_win.sweeps.folder import find_sweep
from mmf_win.sweeps.table import build_table
from mmf_win.tracking.follower import manage_followers
from mmf_win.tracking.tracker import require_no_env_run_id
from mmf_win.tracking.upload import UploadOptions
from mmf_win.upstream.install import require_packages


@dataclass(frozen=True)
class _WeightOptions:
    """Options that select the weights, named as on the command line except for ``--with``."""

    checkpoint: tuple[str, ...]
    published: str | None
    best_of: str | None
    exported: Path | None
    source: str | None


# Options about prediction files, which --image does not write.
_FILE_OPTIONS = {"threshold": "--threshold", "output": "--output", "report": "--report", "trackers": "--track"}


@click.command(cls=Command)
@options.positional_arguments("[RUN ...] [KEY=VALUE ...]", "RUN")
@click.option(
    "--checkpoint",
    multiple=True,
    show_default="best",
    metavar="best|last|PATH",
    shell_complete=options.make_completer("best", "last"),
    help="Checkpoint to use; may be repeated.",
)
@click.option(
    "--published",
    metavar="PRESET",
    shell_complete=options.make_completer("PRESET"),
    help="Use the fine-tuned weights that MMF's zoo publishes for PRESET, downloaded if necessary.",
)
@click.option("--best-of", metavar="SWEEP", help="Use all seeds of the best combination, by validation AUROC.")
@click.option(
    "--with",
    "exported",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Use the exported model in DIR (without region features). Predictions are saved in its run.",
)
@options.source
@options.trust
@options.split(
    "Name of an annotation file, such as test_seen; may be repeated.  [default: the run's test split, or "
    "with --published the paper's splits, dev_seen and test_seen]",
    multiple=True,
)
@click.option(
    "--memes",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Predict your own memes: a .csv or .jsonl file with img (or image) and text, and optionally id and "
    "label. Image paths are relative to the file.",
)
@click.option(
    "--image",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Print the probability that one meme is hateful: this image with --text. Writes no files.",
)
@click.option("--text", metavar="TEXT", help="Text of the meme in --image.")
@click.option(
    "--features",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="LMDB",
    help="Region features of these memes, built by `mmfw features add`.  [default: the data folder's]",
)
@click.option(
    "--ensemble",
    type=click.Choice(list(BLEND_METHODS)),
    help="Blend the predictions of the runs and checkpoints into one.",
)
@click.option(
    "--threshold",
    type=click.Choice(["0.5", "best-accuracy"]),
    default="0.5",
    show_default=True,
    help="Probability above which a meme is labelled hateful. best-accuracy selects it on the validation "
    "split, which is then predicted, too.",
)
@options.number("--batch-size", help_text="Memes per batch.  [default: the run's]")
@options.precision
@options.fast
@click.option(
    "--report/--no-report", default=True, help="Write a report page next to the predictions, which takes a few seconds."
)
@options.output(
    "Folder for prediction files, scores and pages. They get new names, so that nothing is overwritten. "
    "`mmfw report` and `mmfw runs` do not search there.  [default: the run's reports]"
)
@tracking_options
@options.stop_timeout
@options.no_retry
@options.data_dir
@options.save_dir_and_json
@options.collect_options(command_options=CommandOptions, weights=_WeightOptions, prediction_options=PredictionOptions)
def command(
    arguments: tuple[str, ...],
    weights: _WeightOptions,
    prediction_options: PredictionOptions,
    report: bool,
    trackers: tuple[str, ...],
    upload_options: UploadOptions,
    save_dir: Path,
    as_json: bool,
) -> None:
    """Predict splits, or your own memes, with trained runs or published weights.

    Writes id,proba,label in the order of the annotations, with exactly their ids, and scores the result if
    the split has labels. RUN is a run's id, name or folder; the default is the newest run. Several runs or
    checkpoints are predicted one by one; --ensemble also blends them. Each prediction file gets a report
    page with the same name next to it. --json prints one object per prediction file, each on one line.

    Examples:
      mmfw predict                              the newest run's best checkpoint, on its test split
      mmfw predict mmbt_grid                    the newest run of that name
      mmfw predict mmbt_grid --split dev_seen --split test_seen -o predictions
      mmfw predict --checkpoint model.ckpt
      mmfw predict --with model --split dev_seen    with a model exported by `mmfw export`
      mmfw predict --published mmbt_grid        MMF's published weights, on the paper's splits
      mmfw predict mmbt_grid vilbert_cc visual_bert_coco --ensemble rank
      mmfw predict --best-of mmbt_grid          all seeds of a sweep's best combination
      mmfw predict --checkpoint best --checkpoint last --ensemble mean
      mmfw predict --threshold best-accuracy
      mmfw predict mmbt_grid --image cat.jpg --text "look at this cat"
      mmfw predict mmbt_grid --track mlflow     upload scores and predictions to MLflow
      mmfw predict mmbt_grid --memes own.csv    a table: img, text, and optionally id and label
      mmfw predict visual_bert --memes own.csv --features own.lmdb
    """
    _require_one_input(prediction_options)
    active_trackers = select_enabled_trackers(trackers, upload_options)
    followers = manage_followers(active_trackers, upload_options, find_sweep_of_run)
    follow = click.get_current_context().with_resource(followers)
    runs, overrides = split_arguments(arguments)
    command_options = replace(prediction_options.command_options, overrides=overrides)
    features, memes, image = prediction_options.features, prediction_options.memes, prediction_options.image
    require_predictable(command_options, features=features, memes=memes, image=image)
    prediction_options = replace(prediction_options, command_options=command_options)
    _require_one_source(weights, prediction_options, runs)
    members, prediction_options = _choose_members(weights, prediction_options, runs, save_dir)
    if len({member.run for member in members}) > 1:
        require_no_env_run_id(active_trackers)
    output = prediction_options.output and prediction_options.output.absolute()
    prediction_options = replace(prediction_options, output=output, features=find_lmdb(features) if features else None)
    if image:
        probas = evaluation.predict_meme(members, save_dir, prediction_options, RunDisplay)
        _print_probas(probas, members, prediction_options.ensemble, as_json)
        if trackers:  # set by MMFW_TRACK
            print_status("warning: predictions of --image are not uploaded")
        return
    for result in evaluation.predict_and_score(members, save_dir, prediction_options, RunDisplay):
        _print_result(result, prediction_options.data_dir, report=report, as_json=as_json)
    if output and trackers:
        print_status("warning: predictions written to --output are not uploaded")
    for run in dict.fromkeys(member.run for member in members):
        follow(run)


def _require_one_input(prediction_options: PredictionOptions) -> None:
    """Reject several kinds of input, and with ``--image`` options about prediction files."""
    split, memes, image = prediction_options.split, prediction_options.memes, prediction_options.image
    inputs = {"--split": split, "--memes": memes, "--image": image}
    used = [option for option, value in inputs.items() if value]
    if len(used) > 1:
        raise UsageError(f"{' and '.join(used)} select different memes; use one")
    if (count := len([*memes, *image])) > 1:
        raise UsageError(f"{used[0]} is set {count} times", hint="use one; --memes reads a table of memes")
    if (not image) != (prediction_options.text is None):
        raise UsageError("--image and --text require each other", hint='use --text "" if there is no text')
    context = click.get_current_context()
    for name, option in _FILE_OPTIONS.items() if image else ():
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and context.params[name] not in ("0.5", False):
            message = f"{option} cannot be combined with --image, which writes no prediction files"
            raise UsageError(message, hint="use --memes FILE or --split SPLIT to write prediction files")


def _require_one_source(weights: _WeightOptions, prediction_options: PredictionOptions, runs: Sequence[str]) -> None:
    """Reject several sources of weights, and options that one of them excludes."""
    preset, command_options = weights.published, prediction_options.command_options
    if weights.exported:
        conflicting: dict[str, object] = {"RUN": runs, "KEY=VALUE": command_options.overrides}
        conflicting |= {"--checkpoint": weights.checkpoint, "--published": preset, "--best-of": weights.best_of}
        conflicting |= {"--source": weights.source, "--features": prediction_options.features}
        conflicting |= {"--batch-size": command_options.batch_size, "--precision": command_options.precision}
        conflicting |= {"--fast": command_options.fast}
        if used := [name for name, value in conflicting.items() if value not in (None, ())]:
            raise UsageError(f"--with cannot be combined with {' and '.join(used)}", hint="use one of them")
    if weights.best_of is not None and (runs or preset is not None):
        raise UsageError("--best-of cannot be combined with RUN or --published", hint="use one of them")
    if weights.source is not None and preset is None:
        raise UsageError("--source requires --published", hint="use `mmfw features fetch PRESET --source ...`")
    if preset is not None and (runs or weights.checkpoint):
        other = "--checkpoint" if weights.checkpoint else f"a run ({runs[0]})"
        raise UsageError(f"--published and {other} both select the weights", hint="use one of them")
    if preset is not None and prediction_options.ensemble is not None:
        raise UsageError(
            "--ensemble requires several sets of weights, but --published selects one",
            hint="predict without --ensemble, then blend its run with others: "
            f"`mmfw predict {preset}-published RUN --ensemble {prediction_options.ensemble}`",
        )


def _choose_members(
    weights: _WeightOptions, prediction_options: PredictionOptions, runs: Sequence[str], save_dir: Path
) -> tuple[list[RunCheckpoint], PredictionOptions]:
    """Return the checkpoints that predict, and the options completed with what they determine."""
    if weights.exported is not None:
        model = ExportedModel.from_folder(weights.exported)
        run = find_run(save_dir, model.metadata["run"])
        members = [RunCheckpoint(run, model.folder / "model.onnx")]
        return members, replace(prediction_options, predict_function=model.predict)
    if weights.published is not None:
        mmf_paths = MmfPaths.resolve(prediction_options.data_dir, save_dir)
        is_user_data = bool(prediction_options.memes or prediction_options.image)
        split = prediction_options.split or (
            () if is_user_data else tuple(find_paper_splits(mmf_paths.dataset).values())
        )
        for name in split:  # before a long download
            require_split(mmf_paths.dataset, name)
        run = get_or_create_run(weights.published, mmf_paths, weights.source, without_dataset=is_user_data)
        return [RunCheckpoint(run, run.checkpoints / "best.ckpt")], replace(prediction_options, split=split)
    if weights.best_of is not None:
        sweep = find_sweep(save_dir, weights.best_of)
        best = next((row.task_ids for row in build_table(sweep, metric="auroc")), ())
        if not best:  # an empty list of runs would select the newest run
            raise UsageError(f"{sweep.path}: no finished task with a trained run")
        runs = [str(sweep.path / Path(task).name) for task in best]
    return evaluation.select_checkpoints(save_dir, runs, weights.checkpoint or ("best",)), prediction_options


def _print_probas(probas: list[float], members: Sequence[RunCheckpoint], ensemble: str | None, as_json: bool) -> None:
    """Print the probability of one meme by each checkpoint, or by the ensemble of all."""
    groups = [[member] for member in members] if ensemble is None else [members]
    for proba, group in zip(probas, groups, strict=True):
        if as_json:
            member_names = [{"run": m.run.id, "checkpoint": m.checkpoint} for m in group]
            print_json({"proba": proba, "ensemble": ensemble, "members": member_names}, on_one_line=True)
        else:
            print(f"{proba:.4f}", flush=True)


def _print_result(result: PredictionResult, data_dir: Path | None, *, report: bool, as_json: bool) -> None:
    """Print the scores and the prediction file, and write its report page."""
    scored = result.scored
    if not as_json:
        _print_scores(result)
        print_result(scored.csv)
    page = _write_page(result, data_dir) if report else None
    if as_json:
        print_json({"csv": scored.csv, "report": page, **result.record}, on_one_line=True)


def _write_page(result: PredictionResult, data_dir: Path | None) -> Path | None:
    """Write the report page of a prediction; return ``None`` if a package is missing."""
    try:
        require_packages("jinja2", "matplotlib", "pillow")
    except MmfEnvironmentError as error:  # not an error: the predictions are already written
        print_status(f"warning: no report written: {error}")
        return None
    from mmf_win.results.report import pages

    if result.run is None:
        page = pages.write_ensemble_page(result.scored)
    else:
        page = pages.write_run_page(result.run, scored=result.scored, data_dir=data_dir)
    print_status(f"report: {page}")
    return page


def _print_scores(result: PredictionResult) -> None:
    metrics = result.record
    heading = f"{result.scored.coverage}: {result.title}"
    if metrics["accuracy"] is None:
        labelled = f"{metrics['labelled']:,} of {metrics['rows']:,} rows are labelled"
        print_status(f"{heading}: {labelled}, skipping metrics")
        return
    print_status(heading)
    if metrics["auroc"] is None:
        print_status("  AUROC is undefined because all labels are of one class")
    for name, title in METRIC_TITLES.items():
        if metrics[name] is not None:
            interval = metrics["intervals"].get(name)
            interval_text = "  (95% CI: {:.4f} to {:.4f})".format(*interval) if interval else ""
            print_status(f"  {title:<17} {metrics[name]:.4f}{interval_text}")
    if metrics["threshold_from"] != "default":
        print_status(f"  threshold: {metrics['threshold']:.4f}, for {metrics['threshold_from']}")

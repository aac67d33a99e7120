"""``mmfw track``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Group
from mmf_win.console import Progress, format_command, format_table, print_json, print_status
from mmf_win.errors import UsageError
from mmf_win.paths import MmfPaths
from mmf_win.protocol import read_events
from mmf_win.runs.folder import Run, is_task_folder, usage_lock
from mmf_win.runs.lookup import find_runs, list_runs_with_sweeps
from mmf_win.tracking.tracker import TRACKERS, CheckpointChoice, Tracker, create_tracker, require_no_env_run_id
from mmf_win.tracking.upload import (
    SweepInfo,
    Uploader,
    UploadOptions,
    UploadState,
    list_event_files,
    load_upload_states,
)
from mmf_win.upstream.install import require_packages


@click.group(cls=Group)
def command() -> None:
    """Upload runs to MLflow, ClearML or Weights & Biases.

    Examples:
      mmfw train mmbt_grid --track mlflow       upload a training while it runs
      mmfw track status                         show what was uploaded of each run
      mmfw track push mmbt_grid --to mlflow     upload what is missing
    """


def make_tracking_options(option: str, help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds ``option`` as ``trackers``, and ``upload_options``, to a command."""
    models_help = "Checkpoint to upload, too: at the end, and before that at most every ten minutes."
    choice = click.Choice(get_args(CheckpointChoice))
    attrs: dict[str, Any] = {"multiple": True, "envvar": "MMFW_TRACK", "show_envvar": True}
    trackers = click.option(option, "trackers", type=click.Choice(TRACKERS), help=help_text, **attrs)
    models = click.option("--track-models", "models", type=choice, default="none", help=models_help)
    page = click.option("--track-page", "pages", is_flag=True, help="Upload the report page, which contains memes.")
    return lambda function: trackers(models(page(options.collect_options(upload_options=UploadOptions)(function))))


tracking_options = make_tracking_options(
    "--track",
    "Upload settings, scalars, predictions and the outcome to a tracker; may be repeated. See "
    "docs/tracking.md for how to set its server.",
)


def select_enabled_trackers(names: Sequence[str], upload_options: UploadOptions) -> list[Tracker]:
    """Return the selected trackers that are not disabled, after checking that they can be used.

    Raises:
        MmfEnvironmentError: A package is missing.
        UsageError: A server is not valid or not set, or upload options are given without a tracker.
    """
    if not names and upload_options != UploadOptions():
        raise UsageError("--track-models and --track-page require --track", hint="select a tracker with --track")
    trackers = [create_tracker(name) for name in dict.fromkeys(names)]
    for tracker in trackers:
        tracker.require_usable()
        if tracker.note:
            print_status(f"warning: {tracker.note}")
    if upload_options.pages:
        require_packages("jinja2", "matplotlib", "pillow", "numpy")
    return [tracker for tracker in trackers if tracker.upload != "disabled"]


def write_report_page(run: Run) -> None:
    """Write the report page of a run to where its tracking process expects it."""
    from mmf_win.results.report import pages

    pages.write_run_page(run)


def find_sweep_of_run(run: Run) -> SweepInfo | None:
    """Return the sweep that a run belongs to, or ``None``."""
    task_folder = run.path.parent.parent
    if not is_task_folder(task_folder):
        return None
    from mmf_win.sweeps.folder import SweepFolder  # imported here because every training imports this module

    sweep = SweepFolder(task_folder.parent)
    return sweep.ensure_tracking_key(), f"sweeps/{sweep.path.name}", str(sweep.tracking_lock)


@command.command()
@click.argument("name", required=False, metavar="[RUN|SWEEP]", shell_complete=options.make_completer("RUN"))
@make_tracking_options("--to", "Tracker to upload to; may be repeated.")
@options.save_dir_or_default
@options.as_json
def push(
    name: str | None, trackers: tuple[str, ...], upload_options: UploadOptions, save_dir: Path, as_json: bool
) -> None:
    """Upload what a tracker does not have of a run, or of the runs of a sweep.

    RUN is a run's id, name (the newest run of that name) or folder; the default is the newest run. SWEEP is
    sweeps/NAME or a sweep's folder.

    Examples:
      mmfw track push --to mlflow               the newest run
      mmfw track push mmbt_grid --to mlflow --track-models best
      mmfw track push sweeps/mmbt_grid --to mlflow --to wandb

    Raises:
        UsageError: No tracker is selected or enabled, or the sweep has no runs.
    """
    if not trackers:
        raise UsageError("missing --to", hint="run `mmfw track push --to mlflow`, or use clearml or wandb")
    if not (active_trackers := select_enabled_trackers(trackers, upload_options)):
        raise UsageError("all selected trackers are disabled")
    runs = find_runs(save_dir, name)
    if not runs:
        command_line = format_command("mmfw", "sweep", "status", str(name), "--save-dir", save_dir)
        raise UsageError(f"{name}: no task of this sweep has a run", hint=f"run `{command_line}` to see its tasks")
    if len(runs) > 1:
        require_no_env_run_id(active_trackers)
    uploads = []
    with Progress("uploading", len(runs) * len(active_trackers), "task") as progress:
        for run in runs:
            if upload_options.pages:
                write_report_page(run)
            run_options = replace(upload_options, sweep=find_sweep_of_run(run))
            for tracker in active_trackers:
                uploads.append({"run": run.id, **_push_run(run, tracker, run_options)})
                progress.advance(1)
    if as_json:
        print_json(uploads)
    else:
        for upload in uploads:
            target = "" if upload["upload"] == "server" else f" ({upload['upload']})"
            print_status(f"{upload['run']}: {upload['link']}{target}{'' if upload['new'] else ', already up to date'}")


def _push_run(run: Run, tracker: Tracker, upload_options: UploadOptions) -> dict[str, Any]:
    """Upload what is missing and return the upload state."""
    with UploadState.load(run, tracker).upload_lock(run), usage_lock(run), tracker.translate_errors():
        uploader = Uploader(run, tracker, upload_options)
        new = uploader.upload_new()
        uploader.close()
    return {"new": new, **asdict(uploader.upload_state)}


@command.command()
@click.argument("name", required=False, metavar="[RUN|SWEEP]", shell_complete=options.make_completer("RUN"))
@options.save_dir_or_default
@options.as_json
def status(name: str | None, save_dir: Path, as_json: bool) -> None:
    """Show what was uploaded of all runs, of RUN, or of SWEEP.

    RUN and SWEEP are the same as for `mmfw track push`.

    Examples:
      mmfw track status
      mmfw track status mmbt_grid --json
    """
    entries = []
    for run in find_runs(save_dir, name) if name else list_runs_with_sweeps(save_dir):
        states = load_upload_states(run)
        counts = {name: len(read_events(file)) for name, file in list_event_files(run).items()} if states else {}
        for state in states:
            events_left = sum(max(0, count - state.events.get(name, 0)) for name, count in counts.items())
            entries.append({"run": run.id, "events_left": events_left, **asdict(state)})
    if as_json:
        print_json(entries)
    elif entries:
        columns = ("run", "tracker", "upload", "state", "events_left", "link", "error")
        print(format_table(columns, [[entry[column] for column in columns] for entry in entries]))
    else:
        print_status("nothing uploaded yet; run `mmfw track push --to mlflow` to upload the newest run")


@command.command("register-dataset")
@click.argument("name")
@options.data_dir
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.as_json
def register_dataset(name: str, data_dir: Path | None, yes: bool, as_json: bool) -> None:
    """Upload the converted dataset to ClearML as a new dataset, and print its id.

    Images and annotations are verified and uploaded; `mmfw convert --clearml-dataset` downloads them. Only
    people who have accepted the licence of Hateful Memes may use it.

    Examples:
      mmfw track register-dataset hateful_memes

    Raises:
        UsageError: The user does not confirm that the licence is accepted.
    """
    from mmf_win.tracking import clearml_datasets  # imported here because every training imports this module

    print_status("Hateful Memes may be used only by people who have accepted its licence.")
    if not options.confirm("has everyone who can read this project in ClearML accepted the licence?", yes):
        raise UsageError(
            "dataset not registered, because acceptance of its licence was not confirmed",
            hint="run the command again when everyone who can read the project has accepted the licence",
        )
    dataset_id = clearml_datasets.register_dataset(name, MmfPaths.resolve(data_dir).dataset)
    if as_json:
        print_json({"id": dataset_id})
    else:
        print(dataset_id)

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
from mmf_win.tracking.tracker import (
    TRACKERS,
    CheckpointChoice,
    Tracker,
    create_tracker,
    require_no_env_run_id,
)
from mmf_win.tracking.upload import (
    SweepInfo,
    Uploader,
    UploadOptions,
    UploadState,
    event_files,
    load_upload_states,
)
from mmf_win.upstream.install import require_packages


@click.group(cls=Group)
def command() -> None:
    """Send runs to MLflow, ClearML or Weights & Biases.

    Examples:
      mmfw train mmbt_grid --track mlflow       send a training while it runs
      mmfw track status                         what trackers have of each run
      mmfw track push mmbt_grid --to mlflow     send what is missing there
    """


def make_tracking_options(option: str, help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options of what is sent to trackers: ``trackers``, which ``option`` names, and ``what``."""
    of_models = "The checkpoint that is sent, too: at the end, and in between at most every ten minutes."
    choice = click.Choice(get_args(CheckpointChoice))
    how: dict[str, Any] = {"multiple": True, "envvar": "MMFW_TRACK", "show_envvar": True}
    trackers = click.option(option, "trackers", type=click.Choice(TRACKERS), help=help_text, **how)
    models = click.option("--track-models", "models", type=choice, default="none", help=of_models)
    page = click.option(
        "--track-page", "pages", is_flag=True, help="Send the report page, which holds memes."
    )
    return lambda function: trackers(
        models(page(options.collect_options(upload_options=UploadOptions)(function)))
    )


tracking_options = make_tracking_options(
    "--track",
    "Send settings, scalars, predictions and the outcome to a tracker; may be given several times. "
    "docs/tracking.md says where its server is named.",
)


def enabled_trackers(names: Sequence[str], upload_options: UploadOptions) -> list[Tracker]:
    """Return the named trackers that are not disabled, once it is sure that runs can be sent there.

    Raises:
        MmfError: a package is missing.
        UsageError: a server is none, or not named; there is no tracker for what is chosen.
    """
    if not names and upload_options != UploadOptions():
        raise UsageError("--track-models and --track-page are about a tracker", hint="name it with --track")
    found = [create_tracker(name) for name in dict.fromkeys(names)]
    for each in found:
        each.require_usable()
        if each.note:
            print_status(f"note: {each.note}")
    if upload_options.pages:
        require_packages("jinja2", "matplotlib", "pillow", "numpy")
    return [each for each in found if each.upload != "disabled"]


def write_report_page(run: Run) -> None:
    """Make the report page of a run, where its follower looks for it."""
    from mmf_win.results.report import pages

    pages.write_run_page(run)


def sweep_of_run(run: Run) -> SweepInfo | None:
    """The sweep of a run, below which it lies there."""
    task = run.path.parent.parent
    if not is_task_folder(task):
        return None
    from mmf_win.sweeps.folder import SweepFolder  # here, as trainings import this module

    sweep = SweepFolder(task.parent)
    return sweep.ensure_tracking_key(), f"sweeps/{sweep.path.name}", str(sweep.tracking_lock)


@command.command()
@click.argument("name", required=False, metavar="[RUN|SWEEP]", shell_complete=options.make_completer("RUN"))
@make_tracking_options("--to", "Where to; may be given several times.")
@options.save_dir_or_default
@options.as_json
def push(
    name: str | None, trackers: tuple[str, ...], upload_options: UploadOptions, save_dir: Path, as_json: bool
) -> None:
    """Send what a tracker lacks of a run, or of the runs of a sweep.

    What it has is not sent again. RUN is a run's id, its name (the newest run of that name) or its folder, by
    default the newest run; SWEEP is sweeps/NAME or a sweep's folder.

    Examples:
      mmfw track push --to mlflow               the newest run
      mmfw track push mmbt_grid --to mlflow --track-models best
      mmfw track push sweeps/mmbt_grid --to mlflow --to wandb
    """
    if not trackers:
        raise UsageError("no tracker is named", hint="`mmfw track push --to mlflow`, clearml or wandb")
    if not (found := enabled_trackers(trackers, upload_options)):
        raise UsageError("nothing is sent, since each tracker that is named is disabled")
    runs = find_runs(save_dir, name)
    if not runs:
        show = format_command("mmfw", "sweep", "status", str(name), "--save-dir", save_dir)
        raise UsageError(f"{name}: no task of this sweep has a run yet", hint=f"`{show}` shows its tasks")
    if len(runs) > 1:
        require_no_env_run_id(found)
    told = []
    with Progress("sending", len(runs) * len(found), "task") as progress:
        for run in runs:
            if upload_options.pages:
                write_report_page(run)
            of_run = replace(upload_options, sweep=sweep_of_run(run))
            for to in found:
                told.append({"run": run.id, **_push_run(run, to, of_run)})
                progress.advance(1)
    if as_json:
        print_json(told)
    else:
        for each in told:
            where = "" if each["upload"] == "server" else f" ({each['upload']})"
            print_status(
                f"{each['run']}: {each['link']}{where}{'' if each['new'] else ', which has all of it'}"
            )


def _push_run(run: Run, tracker: Tracker, upload_options: UploadOptions) -> dict[str, Any]:
    """Send what is missing, and tell what is there then."""
    with UploadState.load(run, tracker).upload_lock(run), usage_lock(run), tracker.translate_errors():
        sender = Uploader(run, tracker, upload_options)
        new = sender.upload_new()
        sender.close()
    return {"new": new, **asdict(sender.upload_state)}


@command.command()
@click.argument("name", required=False, metavar="[RUN|SWEEP]", shell_complete=options.make_completer("RUN"))
@options.save_dir_or_default
@options.as_json
def status(name: str | None, save_dir: Path, as_json: bool) -> None:
    """Show what was sent of all runs, of RUN, or of SWEEP, named as for `mmfw track push`.

    Examples:
      mmfw track status
      mmfw track status mmbt_grid --json
    """
    told = []
    for run in find_runs(save_dir, name) if name else list_runs_with_sweeps(save_dir):
        sends = load_upload_states(run)
        counts = {name: len(read_events(file)) for name, file in event_files(run).items()} if sends else {}
        for sent in sends:
            left = sum(max(0, count - sent.events.get(name, 0)) for name, count in counts.items())
            told.append({"run": run.id, "events_left": left, **asdict(sent)})
    if as_json:
        print_json(told)
    elif told:
        columns = ("run", "tracker", "upload", "state", "events_left", "link", "error")
        print(format_table(columns, [[each[column] for column in columns] for each in told]))
    else:
        print_status("nothing is sent so far; `mmfw track push --to mlflow` sends the newest run")


@command.command("register-dataset")
@click.argument("name")
@options.data_dir
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.as_json
def register_dataset(name: str, data_dir: Path | None, yes: bool, as_json: bool) -> None:
    """Make a data set in ClearML of the converted dataset, and print its id.

    Images and annotations are verified and uploaded, and `mmfw convert --clearml-dataset` gets them. Only
    those who have accepted the licence of Hateful Memes may use it.

    Examples:
      mmfw track register-dataset hateful_memes
    """
    from mmf_win.tracking import clearml_datasets  # here, as trainings import this module

    print_status("Hateful Memes may be used only by those who have accepted its licence.")
    if not options.confirm("has everyone who can read this project in ClearML accepted it?", yes):
        raise UsageError("the dataset is not registered", hint="its licence says who may use it")
    made = clearml_datasets.register_dataset(name, MmfPaths.resolve(data_dir).dataset)
    if as_json:
        print_json({"id": made})
    else:
        print(made)

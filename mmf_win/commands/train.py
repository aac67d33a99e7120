"""``mmfw train``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.commands.progress import RunDisplay
from mmf_win.commands.track import find_sweep_of_run, select_enabled_trackers, tracking_options, write_report_page
from mmf_win.commands.train_profile import find_profile_job, profile_training, require_profilable
from mmf_win.console import (
    escape_controls,
    format_command,
    format_duration,
    format_table,
    print_json,
    print_settings,
    print_status,
)
from mmf_win.dataset.coverage import Coverage
from mmf_win.dataset.published_results import (
    PAPER,
    PAPER_SPLITS,
    PublishedScore,
    find_published_score,
    missing_score_reason,
)
from mmf_win.errors import MmfEnvironmentError, MmfwError, UsageError
from mmf_win.paths import DatasetPaths, MmfPaths, expand_home, short_portable_name
from mmf_win.runs import presets, training
from mmf_win.runs.folder import SWEEPS_DIR, Run, is_task_folder
from mmf_win.runs.history import RunRecord
from mmf_win.runs.lookup import iter_matching_runs
from mmf_win.runs.override_rules import require_optimizer_kept, require_trainable, split_arguments
from mmf_win.runs.published_weights import find_weights
from mmf_win.runs.request import CommandOptions, MmfwSettings
from mmf_win.tracking.follower import manage_followers
from mmf_win.tracking.tracker import require_no_env_run_id
from mmf_win.tracking.upload import UploadOptions
from mmf_win.upstream.install import find_mmf


@click.command(cls=Command)
@options.positional_arguments("[PRESET] [KEY=VALUE ...]", "PRESET")
@click.option(
    "--resume",
    metavar="best|last|RUN|PATH",
    shell_complete=options.make_completer("best", "last", "RUN"),
    help="Resume the newest run (of PRESET, if given) from its best or last checkpoint, or RUN from its last "
    "one; PATH is a checkpoint from which a new run starts.",
)
@click.option(
    "--init",
    metavar="published|PATH",
    shell_complete=options.make_completer("published"),
    help="Start a new run at update 0 from the preset's published weights, or from the weights in a file, "
    "whose optimizer, schedule, counts and random state are not used.",
)
@options.number_or_auto(
    "--batch-size",
    "Rows per update, over all GPUs. auto keeps the preset's number, in the largest micro-batches that fit.",
)
@click.option("--name", metavar="NAME", help="Name of the run's folder in the save dir.  [default: the preset's name]")
@options.number("--updates", help_text="Total updates of the run, including those before a resume.")
@options.number("--epochs", help_text="Total epochs of the run, instead of --updates.")
@options.number("--seed", minimum=0, help_text="Random seed.  [default: a new one]")
@options.number(
    "--keep-checkpoints",
    "keep",
    help_text="Older checkpoints to keep in addition to the best and the current one.  [default: 1]",
    minimum=0,
)
@click.option(
    "--teacher",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Learn from another model's predictions of the training rows, too (distillation). `mmfw predict "
    "RUN --split train` writes FILE.  [default: the run's]",
)
@click.option(
    "--teacher-weight",
    type=options.NumberRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Share of the teacher in the training loss, above 0 up to 1.  [default: the run's, else 0.7]",
)
@options.precision
@options.fast
@options.process_options
@click.option("--detect-anomaly", is_flag=True, help="Find the operation that produces NaN; slow.")
@tracking_options
@options.allow_missing
@options.source
@options.trust
@options.no_retry
@click.option(
    "--ignore-known-fits",
    "use_known_fits",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Start with the whole batch instead of the micro-batch that is known to fit.",
)
@options.number(
    "--profile",
    help_text="Train N updates of PRESET, or of the run given by --resume, from the beginning, and show "
    "where the time goes and how to reduce it. No run is saved or changed; torch's trace is written to "
    "profiles/TIME in the save dir.",
    minimum=6,
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the input files of the training and print its settings; write nothing but caches.",
)
@click.option("--list", "show_list", is_flag=True, help="List the presets and exit.")
@options.stop_timeout
@options.folders_and_json
@options.collect_options(command_options=CommandOptions)
def command(
    arguments: tuple[str, ...],
    command_options: CommandOptions,
    resume: str | None,
    init: str | None,
    source: str | None,
    name: str | None,
    profile: int | None,
    show_list: bool,
    trackers: tuple[str, ...],
    upload_options: UploadOptions,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
) -> Run | None:
    """Train a preset, or resume a run.

    KEY=VALUE overrides a key of MMF's configuration, and takes precedence over presets and options. Ctrl+C
    saves a checkpoint and exits; a second Ctrl+C exits at once.

    Examples:
      mmfw train --list                         the presets and their published scores
      mmfw train mmbt_grid                      train a preset
      mmfw train mmbt_grid --updates 500 --seed 1 --name quick
      mmfw train my.yaml                        train your own preset
      mmfw train --resume last                  resume the newest run
      mmfw train --resume last --updates 30000  ... to 30000 updates in all
      mmfw train --resume mmbt_grid             resume the newest run of that name
      mmfw train --resume old/best.ckpt         start a new run from a checkpoint
      mmfw train mmbt_grid --init published     fine-tune MMF's published weights
      mmfw train mmbt_grid --batch-size auto    the largest micro-batch that the GPU holds
      mmfw train mmbt_grid --precision bf16 --fast
      mmfw train mmbt_grid training.num_workers=2 optimizer.params.lr=1e-5
      mmfw train mmbt_grid --nproc auto         one process on each GPU
      mmfw train mmbt_grid --track mlflow       upload scalars, scores and the outcome to MLflow
      mmfw train text_bert --teacher FILE.csv   learn from a larger model's predictions, too
      mmfw train mmbt_grid --profile 30         where the time of 30 updates goes
      mmfw train mmbt_grid --dry-run            the settings that MMF would get

    Returns:
        The run; ``None`` if nothing was trained, or with ``--profile``.
    """
    if show_list:
        _print_presets(as_json)
        return None
    _refuse_torchrun(click.get_current_context().obj)
    _require_valid_name(name)
    if profile is not None:
        require_profilable(click.get_current_context())
        trackers = ()  # MMFW_TRACK may have set them
    names, overrides = split_arguments(arguments, max_names=1)
    preset, command_options = next(iter(names), None), replace(command_options, overrides=overrides)
    _require_one_start(preset, command_options, resume, init, source)
    active_trackers = select_enabled_trackers(trackers, upload_options)
    mmf_paths = MmfPaths.resolve(data_dir, save_dir)
    if is_task_folder(mmf_paths.save_dir):  # the other tasks of the sweep are uploaded, too
        require_no_env_run_id(active_trackers)
    _require_not_a_run(preset, mmf_paths)
    if resume is not None and profile is not None:
        job = find_profile_job(resume, preset, command_options, data_dir, save_dir)
    elif resume is not None:
        require_optimizer_kept(overrides)
        job = training.make_job_to_resume(resume, preset, command_options, name, data_dir, mmf_paths)
    else:
        job = training.make_job_from_preset(str(preset), command_options, mmf_paths, name, init=init, source=source)
    if profile is not None:
        profile_training(job, profile, as_json=as_json)
        return None
    if command_options.dry_run:
        print_settings(training.prepare_plan(job).first_attempt.settings, as_json)
        return None
    with manage_followers(active_trackers, upload_options, find_sweep_of_run) as follow:
        run = training.train(job, RunDisplay, follow)
        if upload_options.pages:
            _write_page_or_warn(run)
    if command_options.node_rank and not as_json:
        print_status(f"done; the run is saved on node 0, this machine's log is in {run.path}")
    else:
        _print_result(run, as_json)
    return run


def _write_page_or_warn(run: Run) -> None:
    try:
        write_report_page(run)
    except (MmfwError, OSError) as error:  # the run itself has succeeded
        print_status(f"warning: report page not uploaded: {error}")


def _require_valid_name(name: str | None) -> None:
    """Reject a run name that is invalid on Windows, looks like an option or override, or needs escaping."""
    if name is None:
        return
    valid_name = short_portable_name(short_portable_name(escape_controls(name)).replace("=", "-").lstrip("-") or "run")
    valid_name = "run" if valid_name.casefold() == SWEEPS_DIR else valid_name
    if name != valid_name:
        raise UsageError(f"invalid run name: {name!r}", hint=f"use `{format_command('--name', valid_name)}`")


def _require_one_start(
    preset: str | None, command_options: CommandOptions, resume: str | None, init: str | None, source: str | None
) -> None:
    """Reject options that contradict each other, or that do not select what to train."""
    if command_options.updates and command_options.epochs:
        raise UsageError("--updates and --epochs both set the run's total; use one")
    if init is not None and (resume is not None or not preset):
        message = "--init requires PRESET and cannot be combined with --resume"
        raise UsageError(message, hint="run `mmfw train PRESET --init published|PATH`")
    if source and init != training.PUBLISHED:
        raise UsageError("--source requires --init published", hint="use `mmfw features fetch PRESET --source ...`")
    if resume is None and not preset:
        hint = "run `mmfw train --list` to see the presets, or `mmfw runs` to see the runs"
        raise UsageError("missing PRESET or --resume", hint=hint)
    require_trainable(command_options, resumes=(resume, init) != (None, None))


def _require_not_a_run(preset: str | None, mmf_paths: MmfPaths) -> None:
    """Reject the name of a run in the place of a preset."""
    if preset is None or preset in presets.list_presets() or expand_home(preset).exists():
        return
    if any(iter_matching_runs(mmf_paths.save_dir, preset)):
        resume_command = format_command("mmfw", "train", "--resume", preset, "--save-dir", mmf_paths.save_dir)
        raise UsageError(f"{preset} is a run, not a preset", hint=f"run `{resume_command}`")


def _refuse_torchrun(argv: Sequence[str]) -> None:
    """Reject a process that torchrun has started, because each one would train on its own."""
    get_env = os.environ.get
    if get_env("TORCHELASTIC_RUN_ID") is None:
        return
    nproc = [] if "--nproc" in argv else ["--nproc", get_env("LOCAL_WORLD_SIZE", "auto")]
    suggested = ["mmfw", *argv, *nproc]
    if (count := get_env("GROUP_WORLD_SIZE", "1")) != "1":
        address = f"{get_env('MASTER_ADDR')}:{get_env('MASTER_PORT')}"
        suggested += ["--nnodes", count, "--node-rank", get_env("GROUP_RANK", ""), "--rdzv", address]
    message = "mmfw starts the processes of a training itself and cannot be started by torchrun"
    raise UsageError(message, hint=f"run `{format_command(*suggested)}`")


def resume_argv(argv: Sequence[str], run: Run) -> list[str]:
    """Return the command that resumes a run.

    The run stores its settings, so only options that apply to a single command are repeated.

    Args:
        argv: The ``mmfw train …`` command that started the run.
        run: The run.
    """
    context = command.make_context("train", list(argv[2:]))
    stored = {field.name for field in fields(MmfwSettings)} | {"seed", "batch_size"}
    repeated = {field.name for field in fields(CommandOptions)} - stored
    repeated |= {"data_dir", "trackers", "models", "pages"}
    arguments = ["mmfw", "train", "--resume", str(run.path)]
    for option in command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.name in repeated:
            is_flag, value = isinstance(option, click.Option) and option.is_flag, context.params[option.name]
            for item in value if option.multiple else [value]:
                arguments += [option.opts[0], *([] if is_flag else [str(item)])]
    return arguments


def _print_presets(as_json: bool) -> None:
    loaded = [presets.load_preset(name) for name in presets.list_presets()]
    version, weights = None, {}
    with suppress(MmfEnvironmentError, UsageError):  # the list is useful without MMF and its zoo, too
        mmf, mmf_paths = find_mmf(), MmfPaths.resolve()
        weights = {p.name: find_weights(p, mmf, mmf_paths) is not None for p in loaded}
        version = mmf.version
    if as_json:
        entries = []
        for p in loaded:
            numbers = {PAPER_SPLITS.get(name, name): values for name, values in p.published.items()}
            entry = {"name": p.name, "title": p.title, "model": p.model, "published": numbers, "zoo": p.zoo}
            entries.append({**entry, "mmf": version, "published_weights": weights.get(p.name)})
        print_json(entries)
        return
    columns = [(split, metric) for split in PAPER_SPLITS.values() for metric in ("accuracy", "auroc")]
    short = {"accuracy": "acc", "auroc": "AUROC"}
    header = ("preset", "", *(f"{split} {short[metric]}" for split, metric in columns), "weights")
    weight_labels = {True: "published", False: None, None: "?"}
    rows = []
    for p in loaded:
        scores = [_format_score(find_published_score(p.published, *column)) for column in columns]
        rows.append((p.name, p.title, *scores, weight_labels[weights.get(p.name)]))
    print(format_table(header, rows))
    val, test = PAPER_SPLITS.values()
    print_status(
        f"\nPublished in {PAPER}, in percent, for {val} and {test} (dev and test in phase 1); {test} as mean "
        "± standard deviation. The paper reports no other splits, and no scores for "
        f"{', '.join(p.name for p in loaded if not p.published)}."
    )
    if version is None:
        print_status("Published weights: unknown without MMF's zoo; run `mmfw setup` to install MMF.")
    else:
        print_status(f"Published weights: from the zoo of MMF {version}; use `mmfw predict --published PRESET`.")


def _format_score(score: PublishedScore | None) -> str | None:
    if score is None:
        return None
    return f"{100 * score.value:.2f}" + (f"±{100 * score.standard_deviation:.2f}" if score.standard_deviation else "")


def _published_score_text(published_scores: dict[str, Any], coverage: Coverage) -> str | None:
    """Return the published AUROC of a validation split, or why there is none.

    Returns ``None`` if the paper does not have the preset.
    """
    if not published_scores:
        return None
    paper = find_published_score(published_scores, coverage.split, "auroc")
    if paper is None:
        return missing_score_reason(coverage.split)
    suffix = "" if coverage.rows in (None, paper.rows) else ", so the two are not comparable"
    return f"published: {paper.value:.4f} on the {paper.rows:,} rows of {coverage.split}{suffix}"


def _print_result(run: Run, as_json: bool) -> None:
    summary = RunRecord.read(run).summary
    if as_json:
        print_json(summary.columns())
        return
    if summary.best_auroc is not None and (coverage := summary.validated_on):
        print_status(f"best validation AUROC {summary.best_auroc:.4f} on {coverage.split_label}")
        if published := _published_score_text(run.request().published_scores, coverage):
            print_status(f"  {published}")
    updates = "1 update" if summary.updates == 1 else f"{summary.updates} updates"
    print_status(f"{updates} in {format_duration(summary.seconds)}: {run.path}")
    request = run.request()
    has_test = DatasetPaths.from_data_dir(Path(request.data_dir)).annotation_file(request.splits["test"]).is_file()
    split = [] if has_test else ["--split", request.splits["val"]]
    print_status(f"next: {format_command('mmfw', 'predict', run.path, *split)}")

"""``mmfw runs``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Group
from mmf_win.console import (
    escape_controls,
    format_command,
    format_duration,
    format_local_time,
    format_size,
    format_table,
    format_utc_time,
    print_csv,
    print_json,
    print_result,
    print_settings,
    print_status,
)
from mmf_win.dataset.coverage import Coverage
from mmf_win.errors import UsageError
from mmf_win.files import disk_usage
from mmf_win.paths import make_portable
from mmf_win.runs import presets
from mmf_win.runs.checkpoints import SavedCheckpoint, list_checkpoints
from mmf_win.runs.folder import SWEEPS_DIR, Run, remove_run, require_unused
from mmf_win.runs.history import RunRecord, RunSummary, describe_run, diff_runs, summarize_runs
from mmf_win.runs.lookup import find_run, iter_matching_runs, list_sweeps
from mmf_win.runs.outcomes import intact_checkpoint_hint
from mmf_win.runs.request import format_override_value
from mmf_win.sweeps.folder import SweepFolder, find_sweep, load_started_tasks

_COMPLETE_RUN, _COMPLETE_PRESET = options.make_completer("RUN"), options.make_completer("PRESET")
_STATES = ("running", "done", "interrupted", "killed", "failed", "published", "unreadable")


@click.group(cls=Group, invoke_without_command=True)
@click.option("--preset", metavar="PRESET", shell_complete=_COMPLETE_PRESET, help="Only runs of this preset.")
@click.option("--state", type=click.Choice(_STATES), help="Only runs in this state.")
@options.number("--limit", help_text="Only the newest N runs.")
@click.option("--sweep", metavar="NAME", help="Only runs of this sweep, given by name or folder.")
@options.output_format("csv", help_text="Output format; CSV has all columns.")
@options.save_dir_and_json
@click.pass_context
def command(
    ctx: click.Context,
    preset: str | None,
    state: str | None,
    limit: int | None,
    sweep: str | None,
    form: str,
    save_dir: Path,
    as_json: bool,
) -> None:
    """List runs with their scores, newest first, then sweeps with one line each.

    Examples:
      mmfw runs
      mmfw runs --preset mmbt_grid --state done --limit 5
      mmfw runs --format csv > runs.csv
      mmfw runs --sweep mmbt_grid
      mmfw runs show mmbt_grid
      mmfw runs show mmbt_grid --verify
      mmfw runs compare mmbt_grid vilbert
      mmfw runs rm mmbt_grid/2026-01-31T12-00-00
      mmfw runs fix-names save        rename reports whose names are invalid on Windows

    Raises:
        UsageError: Options cannot be combined.
    """
    only_runs = any(value is not None for value in (preset, state, limit, sweep))
    if ctx.invoked_subcommand is not None:
        if only_runs or form != "text":
            list_options = "--preset, --state, --limit, --sweep and --format"
            raise UsageError(f"{list_options} cannot be combined with {ctx.invoked_subcommand}")
        return
    if form == "csv" and as_json:
        raise UsageError("--format csv and --json cannot be combined", hint="use one of them")
    only_runs |= as_json or form == "csv"
    sweeps = [] if only_runs else [_sweep_row(folder) for folder in list_sweeps(save_dir)]
    save_dir = save_dir if sweep is None else find_sweep(save_dir, sweep).path
    summaries = summarize_runs(save_dir, preset=preset, state=state, limit=limit)
    if preset is not None and not (summaries or state):
        presets.load_preset(preset)  # raises if there is no such preset
    if as_json:
        print_json([summary.columns() for summary in summaries])
    elif form == "csv":
        rows = [summary.columns() | {"started": format_utc_time(summary.started)} for summary in summaries]
        print_csv(list(RunSummary("", "").columns()), rows)
    elif not summaries and only_runs:
        print_status(f"no matching runs in {save_dir}")
    elif not summaries and not sweeps:
        train = format_command("mmfw", "train", "PRESET", "--save-dir", save_dir)
        print_status(f"no runs in {save_dir}; run `{train}` to create one")
    else:
        lines = [*map(_run_row, summaries), *sweeps]
        columns = [name for name in lines[0] if any(row.get(name) is not None for row in lines)]
        print(format_table(columns, [[row.get(name) for name in columns] for row in lines], optional=_OPTIONAL_COLUMNS))


# Dropped on a narrow terminal; `--format csv` and `mmfw runs show` show everything.
_OPTIONAL_COLUMNS = ("size", "time", "MMF", "seed", "preset", "updates")


def _run_row(summary: RunSummary) -> dict[str, object]:
    is_trained = summary.state not in ("published", "unreadable")
    return {
        "run": summary.id,
        "preset": summary.preset or None,
        "state": summary.state,
        "updates": f"{summary.updates or 0}/{summary.max_updates or '?'}" if is_trained else None,
        "best AUROC": summary.best_auroc,
        "split": _brief_coverage(None if summary.best_auroc is None else summary.validated_on),
        "test AUROC": summary.test_auroc,
        "test split": _brief_coverage(summary.tested_on),
        "checkpoint": summary.test_checkpoint,
        "seed": summary.seed,
        "MMF": summary.mmf,
        "differences": summary.differs,
        "time": format_duration(summary.seconds) if is_trained else None,
        "size": format_size(summary.size),
    }


def _brief_coverage(coverage: Coverage | None) -> str | None:
    return None if coverage is None else coverage.split_label


def _sweep_row(folder: Path) -> dict[str, object]:
    states = Counter(task.state for task in load_started_tasks(SweepFolder(folder)))
    state_counts = ", ".join(f"{count} {state}" for state, count in states.items())
    return {"run": f"{SWEEPS_DIR}/{folder.name}", "state": state_counts or "not started"}


@command.command()
@click.argument("run", required=False, shell_complete=_COMPLETE_RUN)
@click.option("--verify", is_flag=True, help="Read all checkpoints, and show what they contain and which are intact.")
@click.option("--config", is_flag=True, help="Print only the run's settings, as a tree of MMF's keys.")
@options.save_dir_and_json
def show(run: str | None, verify: bool, config: bool, save_dir: Path, as_json: bool) -> None:
    """Show everything about one run, by default the newest.

    With --verify, every byte of the checkpoints is read and compared with the checksums in the file. A file
    with several names counts only once towards the disk space.

    Examples:
      mmfw runs show
      mmfw runs show mmbt_grid --json
      mmfw runs show mmbt_grid --verify
      mmfw runs show mmbt_grid --config
      mmfw predict --checkpoint save/mmbt_grid/2026-01-31T12-00-00/checkpoints/models/model_2000.ckpt

    Raises:
        UsageError: Options cannot be combined.
    """
    selected = find_run(save_dir, run)
    if config:
        if verify:
            raise UsageError("--config and --verify cannot be combined", hint="use one of them")
        print_settings(selected.request().settings, as_json)
        return
    record = RunRecord.read(selected)
    info = describe_run(record)
    checkpoints = list_checkpoints(selected) if verify else []
    if verify:
        info["checkpoints"] = [asdict(checkpoint) for checkpoint in checkpoints]
    if as_json:
        print_json(info)
        return
    print(escape_controls("\n\n".join(_run_sections(record.summary, info))), end="\n\n" if verify else "\n")
    if verify:
        _print_checkpoints(selected, checkpoints)


def _run_sections(summary: RunSummary, run: dict[str, Any]) -> Iterator[str]:
    best = summary.best_auroc and f"{summary.best_auroc:.4f} on {summary.validated_on}"
    amount = f"{summary.updates or 0} of {summary.max_updates or '?'} updates"
    amount += f" in {format_duration(summary.seconds)}"
    settings = [f"{key}={format_override_value(value)}" for key, value in run["settings"].items() if value is not None]
    splits = [f"{split} for {use.replace('val', 'validation')}" for use, split in run["splits"].items()]
    facts = {
        "Run": f"{run['id']}, {run['state']}",
        "Reason": run["why"],
        "Trained": run["attempts"] and f"{amount}; attempts: {len(run['attempts'])}",
        "Best validation AUROC": best,
        **{name: run[name.lower()] for name in ("Preset", "Model", "MMF", "Seed")},
        "Configuration": run["config"],
        "Created": format_local_time(run["started"]),
        "Start checkpoint": run["start"],
        "Initial weights": run["published_weights"] or run["init"],
        "Weights loaded": "; ".join(dict.fromkeys(run["loaded"])),
        "Settings": " ".join(settings),
        "Training rows": Coverage.from_json(run["trained_on"]),
        "Splits": ", ".join(splits),
        "Data": run["data_dir"],
        "Files": f"{run['path']}, {format_size(run['size'])}",
    }
    yield "\n".join(f"{name}: {value}" for name, value in facts.items() if value not in (None, "", []))
    if validations := [(v["update"], v["auroc"], Coverage.from_json(v)) for v in run["validations"]]:
        yield format_table(("update", "AUROC", "split"), validations)
    if rows := [(p["csv"], p["auroc"], Coverage.from_json(p), p["checkpoint"]) for p in run["predictions"]]:
        yield format_table(("prediction", "AUROC", "split", "checkpoint"), rows)


def _print_checkpoints(run: Run, checkpoints: list[SavedCheckpoint]) -> None:
    if not checkpoints:
        print_status(f"run {run.id} has no checkpoint yet")
        return
    header = ("checkpoint", "update", "epoch", "AUROC", "size", "written", "same bytes as", "state")
    rows = []
    for c in checkpoints:
        shared, state = ", ".join(c.same_as) or None, "damaged" if c.problem else "intact"
        size, written = format_size(c.size), format_local_time(c.written)
        rows.append((c.name, c.update, c.epoch, c.auroc, size, written, shared, state))
    print(format_table(header, rows))
    on_disk = sum({frozenset((c.name, *c.same_as)): c.size for c in checkpoints}.values())
    print_status(f"{format_size(on_disk)} on disk: {run.checkpoints}")
    damaged = [c for c in checkpoints if c.problem]
    for c in damaged:
        print_status(f"{c.name}: {c.problem}")
    if damaged and (hint := intact_checkpoint_hint(run, checkpoints)):
        print_status(hint)


@command.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN ...", shell_complete=_COMPLETE_RUN)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.save_dir_and_json
def rm(runs: tuple[str, ...], yes: bool, save_dir: Path, as_json: bool) -> None:
    """Remove runs with all their checkpoints and predictions, and free their space.

    RUN is a run's id or folder; a name or a time alone must match only one run. If RUN is a link, the folder
    that it points to is removed, too. If one of the runs is in use, nothing is removed.

    Examples:
      mmfw runs rm mmbt_grid/2026-01-31T12-00-00
      mmfw runs rm save/vilbert/2026-01-31T12-00-00 --yes

    Raises:
        UsageError: A name matches several runs.
    """
    matches = sorted((find_run(save_dir, name) for name in runs), key=lambda run: run.path.is_symlink())
    # If a run and a link to it are given, the link is kept.
    selected = list({run.path.resolve(): run for run in matches}.values())
    for name in runs:
        run_ids = [run.id for run in iter_matching_runs(save_dir, name)]
        if len(run_ids) > 1:
            hint = f"pass the ids of the runs to remove: `{format_command(*run_ids)}`"
            raise UsageError(f"{name} matches {len(run_ids)} runs", hint=hint)
    for run in selected:
        require_unused(run)
    confirm_and_remove({run.id: run.path for run in selected}, lambda: [*map(remove_run, selected)], yes, as_json)


def confirm_and_remove(folders: Mapping[str, Path], remove: Callable[[], object], yes: bool, as_json: bool) -> None:
    """Ask for confirmation, remove folders and print the freed space.

    Args:
        folders: Names and paths of the folders.
        remove: Removes them.
        yes: Do not ask.
        as_json: Also print the result as JSON.
    """
    for path in folders.values():
        print_status(f"{path}: {format_size(disk_usage(path)[0])}")
    confirmed = options.confirm(f"remove {'it' if len(folders) == 1 else 'all of them'}?", yes)
    freed = disk_usage(*folders.values())[1] if confirmed else 0
    if confirmed:
        remove()
    if as_json:
        print_json({"removed": list(folders) if confirmed else [], "freed": freed})
    print_status(f"freed {format_size(freed)}" if confirmed else "aborted, nothing removed")


@command.command()
@click.argument("first", shell_complete=_COMPLETE_RUN)
@click.argument("second", shell_complete=_COMPLETE_RUN)
@options.save_dir_and_json
def compare(first: str, second: str, save_dir: Path, as_json: bool) -> None:
    """Show the differences between two runs: request, configuration and scores.

    `mmfw report RUN RUN` writes a page that compares them.

    Examples:
      mmfw runs compare mmbt_grid vilbert
      mmfw runs compare mmbt_grid/2026-01-31T12-00-00 mmbt_grid/2026-02-01T12-00-00 --json
    """
    runs = find_run(save_dir, first), find_run(save_dir, second)
    differences = diff_runs(*runs)
    records = [RunRecord.read(run) for run in runs]
    a, b = (record.summary for record in records)
    scores: dict[str, Any] = {
        **{name: (getattr(a, name), getattr(b, name)) for name in ("state", "updates", "best_auroc")},
        "validated_on": (_brief_coverage(a.validated_on), _brief_coverage(b.validated_on)),
        "seconds": (a.seconds, b.seconds),
    }
    scores_by_run = [record.scores.scored_by_split for record in records]
    for split in sorted(set().union(*scores_by_run)):
        split_scores = [scores_by_split.get(split) for scores_by_split in scores_by_run]
        scores[f"{split}_auroc"] = [score and score.auroc for score in split_scores]
        scores[f"{split}_by"] = [score and f"{score.checkpoint}, {score.coverage}" for score in split_scores]
    if as_json:
        print_json({"runs": [a.id, b.id], "scores": scores, "differences": differences})
        return
    rows = [(key, _format_cell(one), _format_cell(other)) for key, (one, other) in {**scores, **differences}.items()]
    print(format_table(("", a.id, b.id), rows))


def _format_cell(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@command.command("fix-names")
@click.argument("folder", type=options.EXISTING_FOLDER)
@options.as_json
def fix_names(folder: Path, as_json: bool) -> None:
    """Rename files in FOLDER whose names are invalid on Windows.

    MMF itself uses colons in the names of reports and logs. No file is overwritten.
    """
    renamed = make_portable(folder)
    if as_json:
        print_json([{"from": old, "to": new} for old, new in renamed])
        return
    for old, new in renamed:
        print_result(f"{old} -> {new.name}")
    print_status(f"renamed {len(renamed)} files and folders in {folder}")

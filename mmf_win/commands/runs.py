"""``mmfw runs``."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmf_win.commands import options, run_checkpoints
from mmf_win.console import duration, moment, print_json, say, size, table
from mmf_win.errors import UsageError

if TYPE_CHECKING:
    from mmf_win.runs.history import Summary

STATES = ("running", "done", "interrupted", "killed", "failed", "published")


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  mmfw runs
  mmfw runs --preset mmbt_grid --state done --limit 5
  mmfw runs --csv > runs.csv
  mmfw runs show mmbt_grid
  mmfw runs checkpoints mmbt_grid
  mmfw runs compare mmbt_grid vilbert
  mmfw runs rm mmbt_grid/2026-01-31T12-00-00
  mmfw runs fix-names save        rename reports whose names Windows refuses""",
)
@click.option("--preset", metavar="PRESET", help="Only runs of this preset.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N of them.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for spreadsheets.")
@options.save_dir
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    preset: str | None,
    state: str | None,
    limit: int | None,
    as_csv: bool,
    save_dir: Path | None,
    as_json: bool,
) -> None:
    """List what ran and how well, the newest first."""
    if ctx.invoked_subcommand is not None:
        if preset or state or limit or as_csv:
            raise UsageError(
                f"--preset, --state, --limit and --csv are for the list, not for {ctx.invoked_subcommand}"
            )
        return
    from mmf_win.runs.history import summaries

    if as_csv and as_json:
        raise UsageError("--csv and --json are two forms of the same list", hint="choose one")
    save = _save_dir(save_dir)
    found = summaries(save, preset=preset, state=state, limit=limit)
    if as_json:
        print_json([asdict(summary) for summary in found])
    elif as_csv:
        _print_csv(found)
    elif not found and (preset or state):
        say(f"there are no such runs in {save}")
    elif not found:
        say(f"there are no runs in {save}; `mmfw train PRESET` makes one")
    else:
        header = ("run", "preset", "state", "updates", "best AUROC", "on", "started", "time", "size")
        print(table(header, [_line(summary) for summary in found]))


command.add_command(run_checkpoints.command)


def _save_dir(chosen: Path | None) -> Path:
    from mmf_win.paths import Places

    return Places.resolve(None, chosen).save_dir


def _line(s: Summary) -> tuple[object, ...]:
    done = None if s.state == "published" else f"{s.updates or 0}/{s.max_updates or '?'}"
    on = None if s.best_auroc is None else s.validated_on
    spent = duration(s.seconds)
    return (s.id, s.preset, s.state, done, s.best_auroc, on, moment(s.started), spent, size(s.size))


def _print_csv(found: Sequence[Summary]) -> None:
    from dataclasses import fields

    from mmf_win.runs.history import Summary

    writer = csv.DictWriter(sys.stdout, [field.name for field in fields(Summary)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(summary) for summary in found)


@command.command(
    epilog="""\b
Examples:
  mmfw runs show
  mmfw runs show mmbt_grid --json"""
)
@click.argument("run", required=False)
@options.save_dir
@options.as_json
def show(run: str | None, save_dir: Path | None, as_json: bool) -> None:
    """Show all about one run; without a name, about the newest."""
    from mmf_win.runs.history import details, find

    told = details(find(_save_dir(save_dir), run))
    told["predictions"] = [_prediction(Path(csv)) for csv in told["predictions"]]
    if as_json:
        print_json(told)
        return
    for key, value in told.items():
        if isinstance(value, list):
            print(f"{key}:" + "".join(f"\n  {_shown(entry)}" for entry in value))
        else:
            print(f"{key}: {_shown(value, key)}")


def _prediction(csv: Path) -> dict[str, Any]:
    """A prediction file, its AUROC and what that was measured on, as the record beside it says."""
    from mmf_win.results import record

    told = record.read(csv)
    return {
        "csv": str(csv),
        **{key: told[key] for key in ("auroc", "split", "rows", "full_rows") if key in told},
    }


def _shown(value: object, key: str = "") -> str:
    if isinstance(value, dict):
        from mmf_win.dataset.coverage import Coverage

        on = Coverage.read(value)
        named = value if on is None else {k: v for k, v in value.items() if k not in asdict(on)}
        words = [f"{name} {_shown(entry, name)}" for name, entry in named.items()]
        return ", ".join([*words, *([] if on is None else [f"on {on}" if words else str(on)])])
    if value is None:
        return "-"
    if isinstance(value, float) and key in ("started", "t"):
        return moment(value)
    if isinstance(value, float):
        return duration(value) if key == "seconds" else f"{value:.4f}"
    return size(value) if key == "size" and isinstance(value, int) else str(value)


@command.command(
    epilog="""\b
Examples:
  mmfw runs rm mmbt_grid/2026-01-31T12-00-00
  mmfw runs rm save/vilbert/2026-01-31T12-00-00 --yes"""
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN ...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.save_dir
@options.as_json
def rm(runs: tuple[str, ...], yes: bool, save_dir: Path | None, as_json: bool) -> None:
    """Remove runs with all their checkpoints and predictions, and free their space.

    RUN is a run's id or folder; a name or a time alone is taken where there is only one run of it. Of a link,
    what it leads to is removed as well. A run that is being trained is refused, and then nothing is removed.
    """
    from mmf_win.runs.folder import remove, require_idle
    from mmf_win.runs.history import all_runs, find, summarize

    save = _save_dir(save_dir)
    named = sorted((find(save, name) for name in runs), key=lambda run: run.path.is_symlink())
    chosen = list({run.path.resolve(): run for run in named}.values())  # of a run and a link to it, the link
    for name in runs:
        several = [run.id for run in all_runs(save) if name in (run.path.parent.name, run.path.name)]
        if len(several) > 1:
            raise UsageError(f"there are {len(several)} runs named {name}", hint=f"name one: {several[0]}")
    for run in chosen:
        require_idle(run)
    sizes = {run.id: summarize(run).size for run in chosen}
    for run in chosen:
        say(f"{run.path}: {size(sizes[run.id])}")
    if not yes and not click.confirm(f"remove {'it' if len(chosen) == 1 else 'all of them'}?", err=True):
        raise click.Abort
    for run in chosen:
        remove(run)
    if as_json:
        print_json({"removed": list(sizes), "freed": sum(sizes.values())})
    say(f"freed {size(sum(sizes.values()))}")


@command.command(
    epilog="""\b
Examples:
  mmfw runs compare mmbt_grid vilbert
  mmfw runs compare mmbt_grid/2026-01-31T12-00-00 mmbt_grid/2026-02-01T12-00-00 --json"""
)
@click.argument("first")
@click.argument("second")
@options.save_dir
@options.as_json
def compare(first: str, second: str, save_dir: Path | None, as_json: bool) -> None:
    """Show what differs between two runs: what was asked for, MMF's configuration, and the scores.

    `mmfw report RUN RUN` draws a page of it.
    """
    from mmf_win.runs.comparison import differences
    from mmf_win.runs.history import find, summarize

    save = _save_dir(save_dir)
    runs = find(save, first), find(save, second)
    differing = differences(*runs)
    a, b = (summarize(run) for run in runs)
    scores = {
        name: (getattr(a, name), getattr(b, name))
        for name in ("state", "updates", "best_auroc", "validated_on", "seconds")
    }
    if as_json:
        print_json({"runs": [a.id, b.id], "scores": scores, "differences": differing})
        return
    rows = [(key, _cell(one), _cell(other)) for key, (one, other) in {**scores, **differing}.items()]
    print(table(("", a.id, b.id), rows))


def _cell(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@command.command("fix-names")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@options.as_json
def fix_names(folder: Path, as_json: bool) -> None:
    """Rename files below FOLDER whose names Windows refuses.

    MMF alone puts colons into the names of reports and logs. No file is overwritten.
    """
    from mmf_win.paths import make_portable

    renamed = make_portable(folder)
    if as_json:
        print_json([{"from": str(old), "to": str(new)} for old, new in renamed])
        return
    for old, new in renamed:
        print(f"{old} -> {new.name}")
    say(f"renamed {len(renamed)} of the files and folders below {folder}")

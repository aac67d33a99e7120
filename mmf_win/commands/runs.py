"""``mmfw runs``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import duration, print_json, say, size, table


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  mmfw runs
  mmfw runs --json
  mmfw runs fix-names save        rename reports whose names Windows refuses""",
)
@options.save_dir
@options.as_json
@click.pass_context
def command(ctx: click.Context, save_dir: Path | None, as_json: bool) -> None:
    """List what ran and how well, the newest first."""
    if ctx.invoked_subcommand is not None:
        return
    from dataclasses import asdict
    from datetime import datetime

    from mmf_win.errors import DataError
    from mmf_win.paths import Places
    from mmf_win.runs.history import all_runs, summarize

    save = Places.resolve(None, save_dir).save_dir
    summaries = []
    for run in all_runs(save):
        try:
            summaries.append(summarize(run))
        except DataError as error:
            say(f"passed over: {error}")
    if as_json:
        print_json([asdict(summary) for summary in summaries])
    elif not summaries:
        say(f"there are no runs in {save}; `mmfw train PRESET` makes one")
    else:
        header = ("run", "preset", "state", "updates", "best AUROC", "started", "time", "size")
        rows = [
            (
                s.id,
                s.preset,
                s.state,
                f"{s.updates or 0}/{s.max_updates or '?'}",
                s.best_auroc,
                datetime.fromtimestamp(s.started).strftime("%Y-%m-%d %H:%M"),
                duration(s.seconds),
                size(s.size),
            )
            for s in summaries
        ]
        print(table(header, rows))


@command.command("fix-names")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@options.as_json
def fix_names(folder: Path, as_json: bool) -> None:
    """Rename files below FOLDER whose names Windows refuses.

    MMF alone puts colons into the names of reports and logs. No file is overwritten.
    """
    from mmf_win.runs.names import fix

    renamed = fix(folder)
    if as_json:
        print_json([{"from": str(old), "to": str(new)} for old, new in renamed])
        return
    for old, new in renamed:
        print(f"{old} -> {new.name}")
    say(f"renamed {len(renamed)} of the files and folders below {folder}")

"""``mmfw verify``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import colour, print_json, say, table
from mmf_win.errors import DataError, UsageError

_SHOWN_PROBLEMS = 10


@click.command(
    epilog="""\b
Examples:
  mmfw verify
  mmfw verify --full
  mmfw verify --data-dir D:\\data --json""",
)
@click.option("--full", is_flag=True, help="Read every file, also those that nobody has touched.")
@options.data_dir
@options.save_dir
@options.as_json
def command(full: bool, data_dir: Path | None, save_dir: Path | None, as_json: bool) -> None:
    """Verify all that mmfw has written: the dataset, features, weights, checkpoints, MMF.

    A file that was not touched since it was last found right is not read again; checkpoints are, each time.
    Exits with 3 when something is broken, and says what mends it.
    """
    from mmf_win.doctor.wholeness import verify_all
    from mmf_win.paths import Places

    for named in (data_dir, save_dir):
        if named is not None and not named.is_dir():
            raise UsageError(f"{named}: there is no such folder, so there is nothing to verify")
    parts = list(verify_all(Places.resolve(data_dir, save_dir), full=full))
    broken = [part for part in parts if part.state == "broken"]
    if as_json:
        print_json([asdict(part) for part in parts])
    elif not parts:
        say("there is nothing to verify yet")
    else:
        rows = [(part.what, part.state, part.against, part.path) for part in parts]
        print(table(("what", "state", "compared with", "where"), rows), flush=True)
        for part in broken:
            more = len(part.problems) - _SHOWN_PROBLEMS
            for problem in part.problems[:_SHOWN_PROBLEMS]:
                say(f"{colour(part.what, 31)}: {problem}")
            if more > 0:
                say(f"{colour(part.what, 31)}: and {more} more")
            say(f"{colour('cure:', 36)} {part.cure}")
    if broken:
        raise DataError(f"{len(broken)} of {len(parts)} are broken: {', '.join(p.what for p in broken)}")

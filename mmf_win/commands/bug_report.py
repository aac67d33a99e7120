"""``mmfw bug-report``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.commands.doctor import plain
from mmf_win.console import print_json, print_line, say
from mmf_win.doctor import bug_report
from mmf_win.doctor.survey import survey
from mmf_win.paths import Places
from mmf_win.runs.lookup import all_runs, find_run


@click.command(
    epilog="""\b
Examples:
  mmfw bug-report                 of the newest run
  mmfw bug-report mmbt_grid --log of the newest run of that name, with what it printed
"""
)
@click.argument("run", required=False, metavar="[RUN]", shell_complete=options.completed_by("RUN"))
@click.option("--log", is_flag=True, help="Include the run's logs, which may hold texts of memes.")
@options.places_and_json
def command(run: str | None, log: bool, data_dir: Path | None, save_dir: Path | None, as_json: bool) -> None:
    """Write a zip for a bug report into the current folder, under a new name.

    It holds what `mmfw doctor` shows and the run's requests, configurations, events and exits, with --log
    also its logs, of each the last megabyte. Passwords, tokens, your user name and your home folder are
    replaced. mmfw cannot know every secret, and an error may quote a meme, so look through the zip before you
    give it away.
    """
    places = Places.resolve(data_dir, save_dir)
    newest = next(iter(all_runs(places.save_dir)), None)
    chosen = newest if run is None else find_run(places.save_dir, run)
    path, names = bug_report.write(chosen, plain(survey(places)), Path.cwd(), log=log)
    if as_json:
        print_json({"report": path, "run": chosen and chosen.id, "files": names})
        return
    say("doctor.json: versions, folders, the machine")
    say(f"run/: {len(names) - 1} files of run {chosen.id}" if chosen else "no run: there is none yet")
    say("Passwords, tokens and your home folder are replaced; look through it all the same.")
    print_line(path)

"""``mmfw report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.console import print_json, print_result, print_status
from mmf_win.errors import UsageError
from mmf_win.paths import expand_home
from mmf_win.runs import lookup
from mmf_win.runs.folder import Run
from mmf_win.sweeps.folder import SweepFolder
from mmf_win.sweeps.table import trained_runs
from mmf_win.upstream.install import require_packages


@click.command(cls=Command)
@click.argument("runs", nargs=-1, metavar="[RUN ...]", shell_complete=options.make_completer("RUN"))
@options.split("The split whose predictions to show.  [default: the newest]")
@options.output("Where the page goes.", "FILE")
@click.option("--images/--no-images", default=True, help="Whether the page holds small copies of the memes.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@options.data_dir
@options.save_dir_and_json
def command(
    runs: tuple[str, ...],
    split: str | None,
    output: Path | None,
    images: bool,
    show: bool,
    data_dir: Path | None,
    save_dir: Path,
    as_json: bool,
) -> None:
    """Make a page about a run, or one that compares several.

    The page is one file that opens from disk without a network. For one run it goes beside the predictions
    that it shows, under their name, or into the run's reports as report.html where there are none: curves,
    scores, the published ones where the split is one of the paper's, and the worst mistakes, their pictures
    blurred until they are clicked. For several it goes into the save dir under a new name. RUN is a run's
    id, its name (the newest run of that name) or its folder. A sweep, as sweeps/NAME or by its folder, stands
    for its runs: the page also shows what each parameter changed. That of one sweep goes into its folder.

    Examples:
      mmfw report                               the newest run, with its newest predictions
      mmfw report mmbt_grid --split dev_seen --open
      mmfw report mmbt_grid --no-images -o for-the-group.html
      mmfw report RUN RUN RUN                   compare runs, seeds of a preset among them
      mmfw report sweeps/mmbt_grid              compare the runs of a sweep
      mmfw report sweeps/mmbt_grid vilbert      ... with another run
    """
    require_packages("jinja2", "matplotlib", "pillow", "numpy")
    from mmf_win.results.report import pages

    if output is not None:
        output = expand_home(output).absolute()
        if output.exists() and not output.is_file():  # root could even replace /dev/null
            raise UsageError(f"{output}: not a file, so the page cannot take its place")
    found: list[Run] = [] if runs else [lookup.first_usable_run(save_dir, None, pages.require_reportable)]
    settings: dict[Run, dict[str, Any]] = {}
    beside = save_dir
    for wanted in runs:
        if (folder := lookup.find_explicit_sweep_folder(save_dir, wanted)) is None:
            found += lookup.find_runs(save_dir, wanted)
            continue
        of_sweep = trained_runs(sweep := SweepFolder(folder))
        if len(of_sweep) < (2 if len(runs) == 1 else 1):
            raise UsageError(f"{sweep.path}: too few of its tasks have trained so far to compare them")
        found, settings = [*found, *of_sweep], settings | of_sweep
        beside = sweep.path if len(runs) == 1 else save_dir
    if len(found) == 1:
        page = pages.write_run_page(found[0], split=split, data_dir=data_dir, output=output, images=images)
    else:
        page = pages.write_comparison_page(
            found, beside, split=split, data_dir=data_dir, output=output, settings=settings
        )
    if as_json:
        print_json({"report": page, "runs": [run.id for run in found]})
    else:
        print_result(page)
    if show:
        import webbrowser

        if not webbrowser.open(page.as_uri()):
            print_status("there is no browser to open it with")

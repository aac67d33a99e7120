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
from mmf_win.sweeps.table import find_trained_runs
from mmf_win.upstream.install import require_packages


@click.command(cls=Command)
@click.argument("runs", nargs=-1, metavar="[RUN ...]", shell_complete=options.make_completer("RUN"))
@options.split("Split whose predictions to show.  [default: that of the newest predictions]")
@options.output("File for the page.", "FILE")
@click.option("--images/--no-images", default=True, help="Include small copies of the memes in the page.")
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
    """Write a page about one run, or a page that compares several.

    The page is one file that opens from disk without a network. For one run it shows curves, scores, the
    published scores if the paper has the split, and the worst mistakes, with images blurred until they are
    clicked. It is saved next to the predictions that it shows, with the same name, or as report.html in the
    run's reports if there are none. A page about several runs is saved in the save dir with a new name. RUN
    is a run's id, name (the newest run of that name) or folder. A sweep, given as sweeps/NAME or by its
    folder, stands for its runs: the page also shows the effect of each parameter. The page about a single
    sweep is saved in its folder.

    Examples:
      mmfw report                               the newest run, with its newest predictions
      mmfw report mmbt_grid --split dev_seen --open
      mmfw report mmbt_grid --no-images -o for-the-group.html
      mmfw report RUN RUN RUN                   compare runs, seeds of a preset among them
      mmfw report sweeps/mmbt_grid              compare the runs of a sweep
      mmfw report sweeps/mmbt_grid vilbert      ... with another run

    Raises:
        UsageError: The output is not a file, or a sweep has too few trained tasks.
    """
    require_packages("jinja2", "matplotlib", "pillow", "numpy")
    from mmf_win.results.report import pages

    if output is not None:
        output = expand_home(output).absolute()
        if output.exists() and not output.is_file():  # root could even replace /dev/null
            raise UsageError(f"{output}: not a file")
    selected: list[Run] = [] if runs else [lookup.find_first_usable_run(save_dir, None, pages.require_reportable)]
    settings: dict[Run, dict[str, Any]] = {}
    comparison_folder = save_dir
    for run_spec in runs:
        if (folder := lookup.find_explicit_sweep_folder(save_dir, run_spec)) is None:
            selected += lookup.find_runs(save_dir, run_spec)
            continue
        sweep_runs = find_trained_runs(sweep := SweepFolder(folder))
        if len(sweep_runs) < (2 if len(runs) == 1 else 1):
            raise UsageError(f"{sweep.path}: too few trained tasks to compare")
        selected, settings = [*selected, *sweep_runs], settings | sweep_runs
        comparison_folder = sweep.path if len(runs) == 1 else save_dir
    if len(selected) == 1:
        page = pages.write_run_page(selected[0], split=split, data_dir=data_dir, output=output, images=images)
    else:
        page = pages.write_comparison_page(
            selected, comparison_folder, split=split, data_dir=data_dir, output=output, settings=settings
        )
    if as_json:
        print_json({"report": page, "runs": [run.id for run in selected]})
    else:
        print_result(page)
    if show:
        import webbrowser

        if not webbrowser.open(page.as_uri()):
            print_status("warning: no browser to open the page")

"""``mmfw report``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import print_json, say
from mmf_win.errors import UsageError
from mmf_win.runs import lookup
from mmf_win.sweeps.folder import SWEEPS, SweepFolder, find_sweep
from mmf_win.sweeps.table import trained
from mmf_win.upstream.install import require_packages


@click.command(
    epilog="""\b
Examples:
  mmfw report                               the newest run, with its newest predictions
  mmfw report mmbt_grid --split dev_seen --open
  mmfw report mmbt_grid --no-images -o for-the-group.html
  mmfw report RUN RUN RUN                   compare runs, seeds of a preset among them
  mmfw report sweeps/mmbt_grid              compare the runs of a sweep"""
)
@click.argument("runs", nargs=-1, metavar="[RUN ...]", shell_complete=options.completed_by("RUN"))
@options.split("The split whose predictions to show.  [default: that of the newest]")
@options.output("Where the page goes.", "FILE")
@click.option("--images/--no-images", default=True, help="Whether the page holds small copies of the memes.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@options.data_dir
@options.runs_dir
@options.as_json
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
    id, its name (the newest run of that name) or its folder. A sweep, as sweeps/NAME or by its folder, must
    be named alone; its page also shows what each parameter changed, and goes into the sweep's folder.
    """
    require_packages("jinja2", "matplotlib", "pillow", "numpy")
    from mmf_win.results.report import pages

    if output is not None:
        output = output.expanduser().absolute()
        if output.exists() and not output.is_file():  # root could even replace /dev/null
            raise UsageError(f"{output}: not a file, so the page cannot take its place")
    sweep, settings = _sweep(runs, save_dir), None
    if sweep is not None:
        settings = trained(sweep)
        if len(settings) < 2:
            raise UsageError(f"{sweep.path}: fewer than two of its tasks have trained, so far")
        found, save_dir = list(settings), sweep.path
    elif runs:
        found = [lookup.find_run(save_dir, wanted) for wanted in runs]
    else:
        found = [lookup.newest(save_dir, None, pages.with_something_to_show)]
    if len(found) == 1:
        page = pages.of_run(found[0], split=split, data_dir=data_dir, output=output, images=images)
    else:
        page = pages.of_runs(
            found, save_dir, split=split, data_dir=data_dir, output=output, settings=settings
        )
    if as_json:
        print_json({"report": page, "runs": [run.id for run in found]})
    else:
        print(page)
    if show:
        import webbrowser

        if not webbrowser.open(page.as_uri()):
            say("there is no browser to open it with")


def _sweep(runs: tuple[str, ...], save_dir: Path) -> SweepFolder | None:
    """The sweep that is meant, by its folder or as ``sweeps/NAME``; None where runs are.

    Raises:
        UsageError: there is none of that name.
    """
    if len(runs) != 1:
        return None
    sweep = SweepFolder(Path(runs[0]).expanduser().absolute())
    if sweep.specification.is_file():
        return sweep
    parts = Path(runs[0]).parts
    return find_sweep(save_dir, str(Path(*parts[1:]))) if parts[:1] == (SWEEPS,) and parts[1:] else None

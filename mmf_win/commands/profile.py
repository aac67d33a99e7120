"""``mmfw profile``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mmf_win.commands import completion, options
from mmf_win.commands.overrides import options_of, require_trainable, split_words
from mmf_win.commands.progress import RunDisplay
from mmf_win.console import print_json, table
from mmf_win.errors import UsageError
from mmf_win.files import write_json
from mmf_win.paths import first_free, numbered, timestamp
from mmf_win.runs.profiling import profile
from mmf_win.runs.request import RunRequest
from mmf_win.upstream.install import require_packages


@click.command(
    epilog="""\b
Examples:
  mmfw profile                              the newest run's training
  mmfw profile mmbt_grid                    a preset's
  mmfw profile mmbt_grid training.num_workers=4
  mmfw profile mmbt_grid --precision bf16 --fast
  mmfw profile mmbt_grid/2026-01-31T12-00-00 --updates 60 --out slow"""
)
@click.argument(
    "words",
    nargs=-1,
    metavar="[PRESET|RUN] [KEY=VALUE ...]",
    shell_complete=completion.completed_by(completion.presets, completion.runs),
)
@click.option(
    "--updates", type=click.IntRange(6), default=30, show_default=True, metavar="N", help="How many to train."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="A new or empty folder for the result.  [default: mmfw-profile-TIME]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    metavar="N",
    help="Rows an update, over all GPUs.  [default: the preset's or the run's]",
)
@options.precision
@options.fast
@options.allow_missing
@options.trust
@options.no_retry
@options.stop_timeout
@options.data_dir
@options.save_dir
@options.as_json
def command(
    words: tuple[str, ...],
    updates: int,
    out: Path | None,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show where the time of training goes, and what helps.

    Trains some updates of a preset, or of a run from its beginning, validates and saves as MMF does, and
    measures each phase. The run stays as it is, and what was trained is removed. The result is a folder:
    profile.html, a page with bars; trace.json, a few updates for chrome://tracing; profile.json. KEY=VALUE
    words are overrides, as of mmfw train, so that a setting can be tried at once.
    """
    require_packages("jinja2", "matplotlib", "pillow", "numpy")
    names, overrides = split_words(words, names=1)
    asked = RunRequest(overrides=list(overrides), **chosen)
    require_trainable(overrides, options_of(replace(asked, updates=updates)), resumes=False)
    with _folder(out) as folder:
        found = profile(
            next(iter(names), None), asked, updates, folder, data_dir, save_dir, display=RunDisplay
        )
        from mmf_win.results import profile as results
        from mmf_win.results.report import profiled

        page = profiled.write(found, folder / "profile.html")
        figures = results.as_json(found)
        write_json(folder / "profile.json", figures)
    if as_json:
        print_json({**figures, "page": page, "trace": folder / "trace.json"})
        return
    of_update = [
        (results.PHASES[phase], f"{1000 * share * found.phases.update:.1f}", f"{100 * share:.0f}")
        for phase, share in results.shares(found).items()
    ]
    print(table(("an update", "ms", "%"), of_update))
    for advice in results.verdict(found):
        print(advice)
    print(page)


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The new or empty folder for the result; when the block fails, it goes unless something is in it."""
    if out is None:
        names = (Path.cwd() / name for name in numbered(f"mmfw-profile-{timestamp()}"))
        folder, is_new = first_free(names, Path.mkdir), True
    else:
        folder = out.expanduser().absolute()
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder}: there is something in it already", hint="name a new folder")
    try:
        yield folder
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise

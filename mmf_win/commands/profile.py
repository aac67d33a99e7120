"""``mmfw profile``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mmf_win.commands import options
from mmf_win.commands.overrides import require_trainable, split_words
from mmf_win.commands.progress import RunDisplay
from mmf_win.console import aligned, print_json, print_line
from mmf_win.results import profile as results
from mmf_win.runs.profiling import profile
from mmf_win.runs.request import Once
from mmf_win.upstream.install import require_packages


@click.command(
    epilog="""\b
Examples:
  mmfw profile                              the newest run's training
  mmfw profile mmbt_grid                    a preset's
  mmfw profile mmbt_grid training.num_workers=4
  mmfw profile mmbt_grid --precision bf16 --fast
  mmfw profile mmbt_grid/2026-01-31T12-00-00 --updates 60 -o slow"""
)
@options.words("[PRESET|RUN] [KEY=VALUE ...]", "PRESET", "RUN")
@options.number("--updates", meaning="How many updates to train.", least=6, default=30, show_default=True)
@options.output("A new folder for the result.  [default: profiles/TIME in the save dir]")
@options.number(
    "--batch-size", meaning="Rows per update, over all GPUs.  [default: the preset's or the run's]"
)
@options.precision
@options.fast
@options.allow_missing
@options.trust
@options.no_retry
@options.stop_timeout
@options.places_and_json
def command(
    words: tuple[str, ...],
    updates: int,
    output: Path | None,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show where the time of training goes, and what helps.

    Trains some updates of a preset, or of a run from its beginning, validates and saves as MMF does, and
    measures each phase. The run itself is not changed, and what was trained is removed. The result is a
    folder with a page, profile.html, and a few traced updates for chrome://tracing, trace.json; it also holds
    the checkpoints while they are timed. KEY=VALUE words are overrides as for `mmfw train`, to try a setting.
    """
    require_packages("jinja2", "matplotlib", "pillow", "numpy")
    names, overrides = split_words(words, names=1)
    require_trainable(overrides, chosen | {"updates": updates}, resumes=False)
    once = Once.of(overrides, **chosen)
    found = profile(next(iter(names), None), once, updates, output, data_dir, save_dir, display=RunDisplay)
    page, verdict = results.write_page(found), results.verdict(found)
    if as_json:
        print_json({"verdict": [advice._asdict() for advice in verdict], **asdict(found)})
        return
    spent = results.seconds_of_update(found)
    total = sum(spent.values())
    rows = [(results.NAMES[k], f"{1000 * s:.1f}", f"{100 * s / total:.0f}") for k, s in spent.items()]
    print(aligned(("an update", "ms", "%"), rows))
    for line in (*verdict, page):
        print_line(line)

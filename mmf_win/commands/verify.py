"""``mmfw verify``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import findings, options
from mmf_win.commands.overrides import split_words
from mmf_win.console import shell_line
from mmf_win.doctor.verify import verify
from mmf_win.errors import DataError
from mmf_win.paths import Places, data_option


@click.command(
    epilog="""\b
Examples:
  mmfw verify
  mmfw verify dataset runs
  mmfw verify visual_bert_coco --full
  mmfw verify mmbt_grid/2026-01-31T12-00-00
  mmfw verify --data-dir D:\\data --json""",
)
@findings.what
@click.option("--full", is_flag=True, help="Read every file, also those that nobody has touched.")
@options.data_dir
@options.save_dir
@options.as_json
def command(
    what: tuple[str, ...], full: bool, data_dir: Path | None, save_dir: Path | None, as_json: bool
) -> None:
    """Verify what mmfw has written: the dataset, features and weights, checkpoints, MMF.

    A PRESET stands for the features and weights that it reads, with KEY=VALUE overrides as for `mmfw train`.
    A file that was not touched since it was last found intact is not read again; checkpoints are, each time.
    Exits with 3 when something is damaged; `mmfw repair` repairs it.
    """
    places, (names, overrides) = Places.resolve(data_dir, save_dir), split_words(what)
    findings.require_folders(data_dir, save_dir if "runs" in names else None)
    found = verify(names, places, overrides, full=full)
    findings.show(found, as_json=as_json)
    damaged = [finding for finding in found if finding.state == "damaged"]
    if damaged:
        message = f"{len(damaged)} of {len(found)} are damaged: {', '.join(f.what for f in damaged)}"
        parts = dict.fromkeys(finding.part for finding in damaged if finding.error is None)
        if not parts:
            raise DataError(message)
        where = ["--save-dir", save_dir] if save_dir else []
        words = [*(what or parts), *data_option(places.data_dir), *where]
        raise DataError(message, hint=f"`{shell_line('mmfw', 'repair', *words)}`")

"""``mmfw features``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import say


@click.group(
    epilog="""\b
Examples:
  mmfw features extract features.tar.gz
  mmfw features extract features_2020_10_01.tar.gz --data-dir D:\\data""",
)
def command() -> None:
    """Put an archive of region features in its place."""


@command.command(
    epilog="""\b
Example:
  mmfw features extract features.tar.gz""",
)
@click.argument("archive", type=click.Path(path_type=Path))
@options.data_dir
@click.option("--force", is_flag=True, help="Replace features that came from another archive.")
def extract(archive: Path, data_dir: Path | None, force: bool) -> None:
    """Unpack ARCHIVE, which holds detectron.lmdb, to where MMF looks for it.

    Nothing looks finished before all of it is there and verified; extracting the same archive again takes a
    second.
    """
    from mmf_win.dataset.features import extract_features
    from mmf_win.paths import Places

    target = extract_features(archive, Places.resolve(data_dir), version=None, force=force)
    say(f"features: {target}")

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

    version = _version_mmf_expects()
    target = extract_features(archive, Places.resolve(data_dir), version=version, force=force)
    say(f"features: {target}")
    if version is None:
        say("MMF is not installed yet; after `mmfw setup`, run this again so that MMF knows these features")


def _version_mmf_expects() -> str | float | None:
    """The version that the installed MMF looks for; None when there is no MMF yet."""
    from mmf_win.bridge.install import find
    from mmf_win.bridge.versions import dataset_version
    from mmf_win.errors import MmfError

    try:
        return dataset_version(find().root)
    except MmfError:
        return None

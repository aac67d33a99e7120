"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="MMF's data folder.  [default: MMF_DATA_DIR, else MMF's own]",
)

save_dir = click.option(
    "--save-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where runs are kept.  [default: MMF_SAVE_DIR, else ./save]",
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")

"""``mmfw repair``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mmf_win.commands import findings, options
from mmf_win.commands.overrides import split_words
from mmf_win.doctor.verify import repair
from mmf_win.paths import Places


@click.command(
    epilog="""\b
Examples:
  mmfw repair
  mmfw repair dataset --source E:\\hateful_memes.zip
  mmfw repair features --source /media/usb
  mmfw repair visual_bert_coco mmf""",
)
@findings.what
@options.archives
@options.data_dir
@options.save_dir
@options.as_json
def command(
    what: tuple[str, ...], data_dir: Path | None, save_dir: Path | None, as_json: bool, **archives: Any
) -> None:
    """Repair what `mmfw verify` finds damaged, and touch nothing else.

    Files of the dataset, features and weights are rewritten from the archive that they came from, found
    where it lay or by --source, else downloaded where they can be; MMF is fetched again. A damaged checkpoint
    cannot be repaired: the newest intact one is named, and nothing is deleted. Exits with 3 when something
    stays damaged.
    """
    places, (names, overrides) = Places.resolve(data_dir, save_dir), split_words(what)
    findings.require_folders(data_dir, save_dir if "runs" in names else None)
    found = repair(names, places, overrides, **archives)
    findings.show(found, as_json=as_json)
    findings.require_intact(found)

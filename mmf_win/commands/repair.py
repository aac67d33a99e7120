"""``mmfw repair``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.commands.verify import parts_argument, print_results, resolve_arguments
from mmf_win.console import print_status
from mmf_win.doctor.verify_all import repair_parts
from mmf_win.errors import DataError, InUseError, PasswordError
from mmf_win.inputs.input_files import Mirror


@click.command(cls=Command)
@parts_argument
@options.archive_options
@options.folders_and_json
def command(
    words: Sequence[str], mirror: Mirror, data_dir: Path | None, save_dir: Path | None, as_json: bool
) -> None:
    """Repair what `mmfw verify` finds damaged, and touch nothing else.

    Files of the dataset, features and weights are rewritten from the archive that they came from, found
    where it lay or by --source, else downloaded where they can be; MMF is fetched again. A damaged checkpoint
    cannot be repaired: the newest intact one is named, and nothing is deleted. Exits with 3 when something
    stays damaged.

    Examples:
      mmfw repair
      mmfw repair dataset --source E:\\hateful_memes.zip
      mmfw repair features --source /media/usb
      mmfw repair visual_bert_coco mmf
    """
    names, overrides, places = resolve_arguments(words, data_dir, save_dir)
    found = repair_parts(names, places, overrides, mirror)
    print_results(found, as_json=as_json)
    kinds = (each for each in (PasswordError, InUseError) if any(isinstance(f.error, each) for f in found))
    kind = next(kinds, DataError)
    if damaged := [finding.title for finding in found if finding.state == "damaged"]:
        raise kind(f"{len(damaged)} of {len(found)} are still damaged: {', '.join(damaged)}")
    if failed := [finding.title for finding in found if finding.error is not None]:
        raise kind(f"cannot be repaired: {', '.join(failed)}")
    if found and not any(finding.repaired for finding in found):
        unknown = [finding.title for finding in found if finding.state == "not verified"]
        instead = f"nothing is known to be damaged; not verified: {', '.join(unknown)}"
        print_status(instead if unknown else "nothing is damaged")

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
    arguments: Sequence[str], mirror: Mirror, data_dir: Path | None, save_dir: Path | None, as_json: bool
) -> None:
    r"""Repair what `mmfw verify` finds damaged, and change nothing else.

    Files of the dataset, features and weights are rewritten from their archive, at its previous path or from
    --source, or else downloaded if possible; MMF is fetched again. A damaged checkpoint cannot be repaired:
    the newest intact one is shown, and nothing is deleted. Exits with 3 if something is still damaged.

    Examples:
      mmfw repair
      mmfw repair dataset --source E:\hateful_memes.zip
      mmfw repair features --source /media/usb
      mmfw repair visual_bert_coco mmf
    """
    names, overrides, mmf_paths = resolve_arguments(arguments, data_dir, save_dir)
    results = repair_parts(names, mmf_paths, overrides, mirror)
    print_results(results, as_json=as_json)
    errors = [result.error for result in results]
    error_types = (kind for kind in (PasswordError, InUseError) if any(isinstance(e, kind) for e in errors))
    error_type = next(error_types, DataError)
    if damaged := [result.title for result in results if result.state == "damaged"]:
        raise error_type(f"still damaged: {', '.join(damaged)} ({len(damaged)} of {len(results)} items)")
    if failed := [result.title for result in results if result.error is not None]:
        raise error_type(f"cannot repair {', '.join(failed)}")
    if results and not any(result.repaired for result in results):
        unknown = [result.title for result in results if result.state == "not verified"]
        message = f"no damage found; not verified: {', '.join(unknown)}"
        print_status(message if unknown else "no damage found")

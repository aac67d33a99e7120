"""``mmfw features add``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mmf_win.commands import options
from mmf_win.console import aligned, first_few, print_json, say
from mmf_win.errors import UsageError
from mmf_win.inputs.added import add_features
from mmf_win.paths import Places

_NUMBERS = 2048  # of Faster R-CNN, which MMF's configurations of Hateful Memes count on
_REGIONS = (100, 100)  # MMF's max_features


@click.command(
    "add",
    epilog="""\b
Examples:
  mmfw features add extracted/                     where MMF looks for them
  mmfw features add extracted/ more/ --force       ... in place of those that are there
  mmfw features add extracted/ -o own/memes.lmdb   another LMDB, as for `mmfw predict --features`

mmfw has no detector. MMF's repository has scripts that run one, in tools/scripts/features.""",
)
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    metavar="FOLDER ...",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@options.output("Build this LMDB.  [default: detectron.lmdb where MMF looks]", "LMDB")
@options.data_dir
@click.option("--force", is_flag=True, help="Replace the LMDB that is there.")
@options.as_json
def command(
    folders: tuple[Path, ...], output: Path | None, data_dir: Path | None, force: bool, as_json: bool
) -> None:
    """Build an LMDB of region features from the .npy files in FOLDERs.

    NAME.npy holds the features of the image NAME, NAME_info.npy its boxes, as MMF's extraction scripts write
    them. The LMDB takes its place when it is complete.
    """
    places = Places.resolve(data_dir)
    if output is not None and output.suffix != ".lmdb":
        raise UsageError(f"{output}: MMF takes a folder for an LMDB only if its name ends in .lmdb")
    lmdb = places.dataset.features / "detectron.lmdb" if output is None else output.expanduser().absolute()
    added = add_features(folders, lmdb, places, force=force)
    if as_json:
        print_json(added)
    else:
        _show(added)


def _show(added: dict[str, Any]) -> None:
    if added["splits"]:
        rows = [(split, *covered.values()) for split, covered in added["splits"].items()]
        print(aligned(("split", "rows", "with features"), rows), flush=True)
    if added["without_info"]:
        images = f"{len(added['without_info'])} images have no _info.npy: {first_few(added['without_info'])}"
        say(f"note: {images}; ViLBERT reads the boxes in it")
    if tuple(added["regions"]) != _REGIONS:
        fewest, most = added["regions"]
        count = fewest if fewest == most else f"{fewest} to {most}"
        key = "dataset_config.hateful_memes.max_features"
        say(f"note: an image has {count} regions; ViLBERT needs the same number in all, as {key}")
    if added["numbers"] != _NUMBERS:
        say(f"note: {added['numbers']} numbers describe a region; the presets expect {_NUMBERS}")
    say(f"features of {added['images']} images: {added['lmdb']}")

"""``mmfw features add``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import first_few, print_json, say, table
from mmf_win.errors import UsageError
from mmf_win.inputs.added import Added, add_features
from mmf_win.paths import Places

_NUMBERS = 2048  # of Faster R-CNN, which MMF's configurations of Hateful Memes count on
_REGIONS = 100  # MMF's max_features


@click.command(
    "add",
    epilog="""\b
Examples:
  mmfw features add extracted/                            where MMF looks for them
  mmfw features add more/ --force                         ... and replace those that are there of these images
  mmfw features add extracted/ --output own/memes.lmdb    another LMDB

mmfw has no detector. MMF's repository has scripts that run one, in tools/scripts/features.""",
)
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    metavar="FOLDER ...",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="LMDB",
    help="Build or extend this LMDB.  [default: detectron.lmdb where MMF looks]",
)
@options.data_dir
@click.option("--force", is_flag=True, help="Replace features of the same images, and a damaged LMDB.")
@options.as_json
def command(
    folders: tuple[Path, ...], output: Path | None, data_dir: Path | None, force: bool, as_json: bool
) -> None:
    """Build or extend the LMDB of region features from the .npy files in FOLDERs.

    NAME.npy holds the features of the image NAME, NAME_info.npy its boxes, as MMF's extraction scripts write
    them. The new LMDB takes the place of the old one when it is complete; features that are there stay.
    """
    places = Places.resolve(data_dir)
    if output is not None and output.suffix != ".lmdb":
        raise UsageError(f"{output}: MMF takes a folder for an LMDB only if its name ends in .lmdb")
    lmdb = places.dataset.features / "detectron.lmdb" if output is None else output.expanduser().absolute()
    added = add_features(folders, lmdb, places, force=force)
    if as_json:
        print_json(asdict(added))
    else:
        _show_added(added, places)


def _show_added(added: Added, places: Places) -> None:
    if added.splits:
        rows = [(split, *covered.values()) for split, covered in added.splits.items()]
        print(table(("split", "rows", "with features"), rows), flush=True)
    else:
        say(f"note: {places.dataset.annotations}: there are no splits yet to compare the keys with")
    for line in _notes_on(added):
        say(f"note: {line}")
    done = f"{added.added} added, {added.replaced} replaced, {added.same} unchanged"
    say(f"{done}; {added.records} images in {added.lmdb}")


def _notes_on(added: Added) -> Iterator[str]:
    if added.unmatched:
        yield (
            f"{len(added.unmatched)} keys are of no image in the splits: {first_few(added.unmatched)}; "
            "MMF looks for the name alone, without folders"
        )
    if added.mistaken:
        pairs = [f"{image} gets {key}" for image, key in added.mistaken.items()]
        yield (
            "MMF looks for features by the number at the end of a file's name, else by the name, without "
            f"folders, so {len(pairs)} images get those of others: {first_few(pairs)}; rename these images"
        )
    if added.without_info:
        yield (
            f"{len(added.without_info)} images have no _info.npy and so no boxes, which ViLBERT reads: "
            f"{first_few(added.without_info)}"
        )
    fewest, most = added.regions
    if (fewest, most) != (_REGIONS, _REGIONS):
        yield (
            f"the images have {fewest} to {most} regions; ViLBERT needs the same number in all, and that as "
            "dataset_config.hateful_memes.max_features"
        )
    if added.numbers != _NUMBERS:
        yield f"{added.numbers} numbers describe a region; the presets expect {_NUMBERS}"

"""``mmfw features``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from mmf_win.archives import PasswordCallback
from mmf_win.commands import options, verify
from mmf_win.commands.help_examples import Group
from mmf_win.console import (
    format_command,
    format_size,
    format_table,
    print_json,
    print_status,
    summarize_list,
)
from mmf_win.dataset.region_features import extract_features
from mmf_win.demo.folder import DEMO_PRESETS
from mmf_win.errors import DamagedFeaturesError, DataError, MmfEnvironmentError, RunNotFoundError, UsageError
from mmf_win.inputs.feature_lmdb import add_features, read_image_keys
from mmf_win.inputs.input_files import InputFiles, Mirror, query_download_sizes
from mmf_win.inputs.input_files import fetch_inputs as fetch_inputs
from mmf_win.integrity.verify import VerificationResult
from mmf_win.paths import MmfPaths, data_dir_arguments, expand_home
from mmf_win.runs import lookup, presets
from mmf_win.runs.override_rules import split_arguments
from mmf_win.runs.preflight import file_overrides, find_preset_inputs, find_run_inputs
from mmf_win.upstream.install import find_mmf
from mmf_win.upstream.zoo import DATASET_ZOO_FILE, Zoo

_FEATURE_SIZE = 2048  # of Faster R-CNN, which MMF's configurations of Hateful Memes count on
_EXPECTED_REGIONS = [100, 100]  # MMF's max_features


@click.group(cls=Group)
def command() -> None:
    """Show, download, unpack and add region features and pretrained weights.

    Examples:
      mmfw features status                          what the newest run's preset needs, or all presets
      mmfw features fetch vilbert_cc                download what is missing
      mmfw features fetch mmbt_region --source E:\\  ... from a USB stick
      mmfw features extract features_2020_10_01.tar.gz
      mmfw features add my_features                 add your own images' features, from .npy files

    `mmfw verify PRESET` verifies what a preset reads, and `mmfw repair PRESET` repairs it.
    """


_presets_argument = options.positional_arguments("[PRESET ...] [KEY=VALUE ...]", "PRESET")


@command.command()
@_presets_argument
@options.folders_and_json
def status(words: Sequence[str], data_dir: Path | None, save_dir: Path | None, as_json: bool) -> None:
    """Show what PRESETs need, where it lies, and how much is to be downloaded.

    The default is the preset of the newest run, or all presets if there is no run. KEY=VALUE overrides are as
    for `mmfw train`. No file is read.

    Examples:
      mmfw features status
      mmfw features status mmbt_region visual_bert_coco --json
    """
    wanted = _find_required_files(words, data_dir, save_dir)
    found = {each: each.quick_check() for each in wanted.inputs}
    absent = [each for each, finding in found.items() if finding.state in ("missing", "damaged")]
    _print_files(found, wanted, as_json, query_download_sizes(absent, Mirror()))


@command.command()
@options.archive_options
@_presets_argument
@options.folders_and_json
def fetch(
    words: Sequence[str], data_dir: Path | None, save_dir: Path | None, as_json: bool, mirror: Mirror
) -> None:
    """Download the missing files of PRESETs to where MMF looks for them.

    Interrupted downloads are resumed. A file is renamed into place only after its SHA-256 matches.

    Examples:
      mmfw features fetch visual_bert_coco
      mmfw features fetch mmbt_region --source /media/usb
      mmfw features fetch visual_bert checkpoint.resume_zoo=visual_bert.pretrained.cc.full
      mmfw features fetch --source https://mirror.example/mmf --no-keep-archives
    """
    wanted = _find_required_files(words, data_dir, save_dir)
    found = fetch_inputs(list(wanted.inputs), wanted.places, mirror)
    _print_files(dict(zip(wanted.inputs, found, strict=True)), wanted, as_json, {})


@command.command()
@click.argument("archive", type=click.Path(path_type=Path))
@options.password_options
@options.data_dir
@click.option("--force", is_flag=True, help="Replace features that came from another archive.")
def extract(archive: Path, ask: PasswordCallback | None, data_dir: Path | None, force: bool) -> None:
    """Unpack ARCHIVE, which holds detectron.lmdb, to where MMF looks for it.

    The LMDB takes its place only when it is complete and verified. Extracting the same archive again takes a
    second.

    Examples:
      mmfw features extract features.tar.gz
    """
    places, entry = MmfPaths.resolve(data_dir), None
    with suppress(MmfEnvironmentError):  # there is no MMF yet
        entry = Zoo(find_mmf().root, places, DATASET_ZOO_FILE).dataset_entry("features")
    version = entry.version if entry else None
    target = extract_features(
        archive, places, version=version, ask=ask, force=force, require_harmless=_require_harmless
    )
    print_status(f"features: {target}")
    if version is None:
        print_status(
            "MMF is not installed yet; after `mmfw setup`, run this again so that MMF knows these features"
        )


def _require_harmless(lmdb: Path) -> None:
    # Without the package lmdb they are read before a run, which also tells what is wrong with damaged ones.
    with suppress(MmfEnvironmentError, DamagedFeaturesError):
        read_image_keys(lmdb, read_records=True)


@command.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER ...", type=options.EXISTING_FOLDER)
@options.output("Build this LMDB.  [default: detectron.lmdb where MMF looks]", "LMDB")
@options.data_dir
@click.option("--force", is_flag=True, help="Replace the LMDB that is there.")
@options.as_json
def add(
    folders: tuple[Path, ...], output: Path | None, data_dir: Path | None, force: bool, as_json: bool
) -> None:
    """Build an LMDB of region features from the .npy files in FOLDERs.

    NAME.npy holds the features of the image NAME, NAME_info.npy its boxes, as MMF's extraction scripts write
    them. The LMDB takes its place when it is complete.

    Examples:
      mmfw features add extracted/                     where MMF looks for them
      mmfw features add extracted/ more/ --force       ... in place of those that are there
      mmfw features add extracted/ -o own/memes.lmdb   another LMDB, as for `mmfw predict --features`

    mmfw has no detector. MMF's repository has scripts that run one, in tools/scripts/features.
    """
    places = MmfPaths.resolve(data_dir)
    if output is not None and output.suffix != ".lmdb":
        raise UsageError(f"{output}: MMF takes a folder for an LMDB only if its name ends in .lmdb")
    lmdb = places.dataset.features / "detectron.lmdb" if output is None else expand_home(output).absolute()
    added = add_features(folders, lmdb, places, force=force)
    if as_json:
        print_json(added)
        return
    if added["splits"]:
        rows = [(split, *covered.values()) for split, covered in added["splits"].items()]
        print(format_table(("split", "rows", "with features"), rows), flush=True)
    if added["without_info"]:
        images = (
            f"{len(added['without_info'])} images have no _info.npy: {summarize_list(added['without_info'])}"
        )
        print_status(f"note: {images}; ViLBERT reads the boxes in it")
    if [*added["regions"]] != _EXPECTED_REGIONS:
        fewest, most = added["regions"]
        count = fewest if fewest == most else f"{fewest} to {most}"
        key = "dataset_config.hateful_memes.max_features"
        print_status(f"note: an image has {count} regions; ViLBERT needs the same number in all, as {key}")
    if added["numbers"] != _FEATURE_SIZE:
        print_status(
            f"note: {added['numbers']} numbers describe a region; the presets expect {_FEATURE_SIZE}"
        )
    print_status(f"features of {added['images']} images: {added['lmdb']}")


class _RequiredFiles(NamedTuple):
    """MMF's folders, the files there with the presets that read them, and the overrides that make them so."""

    places: MmfPaths
    inputs: dict[InputFiles, list[str]]
    overrides: Sequence[str]


def _find_required_files(
    arguments: Sequence[str], data_dir: Path | None, save_dir: Path | None
) -> _RequiredFiles:
    """What the presets need, else the newest run, else all presets."""
    named, overrides = split_arguments(arguments)
    places, mmf = MmfPaths.resolve(data_dir, save_dir), find_mmf()
    try:
        newest, request = lookup.first_usable_run(places.save_dir, None, lambda run: (run, run.request()))
    except (RunNotFoundError, DataError):
        newest = None
    if named or newest is None:
        chosen = named or [name for name in presets.names() if name not in DEMO_PRESETS.values()]
        return _RequiredFiles(places, find_preset_inputs(mmf, chosen, places, overrides), overrides)
    places = MmfPaths.resolve(data_dir or Path(request.data_dir), save_dir)
    try:
        inputs = find_run_inputs(mmf, request, places, overrides)
    except UsageError as error:  # it may have been trained with another MMF
        message = f"run {newest.id}, the newest, with its overrides: {error}"
        raise UsageError(message, hint="name presets instead") from None
    print_status(f"for preset {request.preset}, that of the newest run")
    return _RequiredFiles(places, inputs, [*file_overrides(request), *overrides])


def _print_files(
    results: Mapping[InputFiles, VerificationResult],
    required_files: _RequiredFiles,
    as_json: bool,
    download_sizes: Mapping[InputFiles, int | None],
) -> None:
    if as_json:
        told = []
        for each, finding in results.items():
            source, sha256 = each.published_origin()
            more = {
                "presets": required_files.inputs[each],
                "files": each.files(),
                "source": source,
                "sha256": sha256,
            }
            told.append({**verify.to_json(finding), **more, "download_bytes": download_sizes.get(each)})
        print_json(told)
        return
    if not results:
        print_status("neither region features nor pretrained weights are needed")
        return
    verify.print_results(list(results.values()))
    for each, length in download_sizes.items():
        if length:
            print_status(f"{each.title}: {format_size(length)} to download")
    presets_to_fetch: dict[str, None] = {}
    for each, finding in results.items():
        if finding.state == "missing":
            if error := each.unrepairable_error(finding):
                print_status(f"next: {error.hint}")
            else:
                presets_to_fetch |= dict.fromkeys(required_files.inputs[each])
    if presets_to_fetch:
        words = [*presets_to_fetch, *required_files.overrides]
        print_status(
            "next: "
            + format_command(
                "mmfw", "features", "fetch", *words, *data_dir_arguments(required_files.places.data_dir)
            )
        )

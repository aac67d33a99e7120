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
from mmf_win.console import format_command, format_size, format_table, print_json, print_status, summarize_list
from mmf_win.dataset.region_features import extract_features
from mmf_win.demo.folder import DEMO_PRESETS
from mmf_win.errors import DamagedFeaturesError, DataError, MmfEnvironmentError, RunNotFoundError, UsageError
from mmf_win.inputs.feature_lmdb import add_features, read_image_keys
from mmf_win.inputs.input_files import InputFiles, Mirror, fetch_inputs, query_download_sizes
from mmf_win.integrity.verify import VerificationResult
from mmf_win.paths import MmfPaths, data_dir_arguments, expand_home
from mmf_win.runs import lookup, presets
from mmf_win.runs.override_rules import split_arguments
from mmf_win.runs.preflight import file_overrides, find_preset_inputs, find_run_inputs
from mmf_win.upstream.install import find_mmf
from mmf_win.upstream.zoo import DATASET_ZOO_FILE, Zoo

_FEATURE_SIZE = 2048  # of Faster R-CNN; MMF's configurations of Hateful Memes expect it
_EXPECTED_REGIONS = [100, 100]  # MMF's max_features


@click.group(cls=Group)
def command() -> None:
    r"""Show, download, unpack and add region features and pretrained weights.

    Examples:
      mmfw features status                          what the newest run's preset needs, or all presets
      mmfw features fetch vilbert_cc                download what is missing
      mmfw features fetch mmbt_region --source E:\  ... from a USB stick
      mmfw features extract features_2020_10_01.tar.gz
      mmfw features add my_features                 add your own images' features, from .npy files

    `mmfw verify PRESET` verifies the files that a preset reads, and `mmfw repair PRESET` repairs them.
    """


_presets_argument = options.positional_arguments("[PRESET ...] [KEY=VALUE ...]", "PRESET")


@command.command()
@_presets_argument
@options.folders_and_json
def status(arguments: Sequence[str], data_dir: Path | None, save_dir: Path | None, as_json: bool) -> None:
    """Show the files that PRESETs need, their folders, and how much must be downloaded.

    The default is the preset of the newest run, or all presets if there are no runs. KEY=VALUE overrides are
    the same as for `mmfw train`. The files are not read.

    Examples:
      mmfw features status
      mmfw features status mmbt_region visual_bert_coco --json
    """
    required_files = _find_required_files(arguments, data_dir, save_dir)
    results = {item: item.quick_check() for item in required_files.inputs}
    absent = [item for item, result in results.items() if result.state in ("missing", "damaged")]
    _print_files(results, required_files, as_json, query_download_sizes(absent, Mirror()))


@command.command()
@options.archive_options
@_presets_argument
@options.folders_and_json
def fetch(
    arguments: Sequence[str], data_dir: Path | None, save_dir: Path | None, as_json: bool, mirror: Mirror
) -> None:
    """Download the missing files of PRESETs to where MMF looks for them.

    Interrupted downloads are resumed. A file is renamed into place only after its SHA-256 matches.

    Examples:
      mmfw features fetch visual_bert_coco
      mmfw features fetch mmbt_region --source /media/usb
      mmfw features fetch visual_bert checkpoint.resume_zoo=visual_bert.pretrained.cc.full
      mmfw features fetch --source https://mirror.example/mmf --no-keep-archives
    """
    required_files = _find_required_files(arguments, data_dir, save_dir)
    results = fetch_inputs(list(required_files.inputs), required_files.mmf_paths, mirror)
    _print_files(dict(zip(required_files.inputs, results, strict=True)), required_files, as_json, {})


@command.command()
@click.argument("archive", type=click.Path(path_type=Path))
@options.password_options
@options.data_dir
@click.option("--force", is_flag=True, help="Replace features that came from another archive.")
def extract(archive: Path, ask: PasswordCallback | None, data_dir: Path | None, force: bool) -> None:
    """Unpack ARCHIVE, which contains detectron.lmdb, to where MMF looks for it.

    The LMDB is moved into place only after it is complete and verified. Extracting the same archive again
    takes a second.

    Examples:
      mmfw features extract features.tar.gz
    """
    mmf_paths, entry = MmfPaths.resolve(data_dir), None
    with suppress(MmfEnvironmentError):  # MMF is not installed yet
        entry = Zoo(find_mmf().root, mmf_paths, DATASET_ZOO_FILE).dataset_entry("features")
    version = entry.version if entry else None
    lmdb = extract_features(archive, mmf_paths, version=version, ask=ask, force=force, require_harmless=_check_records)
    print_status(f"features: {lmdb}")
    if version is None:
        print_status("warning: MMF is not installed; run `mmfw setup`, then this command again, so that MMF finds them")


def _check_records(lmdb: Path) -> None:
    # Without the lmdb package, the check before a run reads the LMDB. That check also reports any damage.
    with suppress(MmfEnvironmentError, DamagedFeaturesError):
        read_image_keys(lmdb, read_records=True)


@command.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER ...", type=options.EXISTING_FOLDER)
@options.output("LMDB to build.  [default: detectron.lmdb where MMF looks for it]", "LMDB")
@options.data_dir
@click.option("--force", is_flag=True, help="Replace an existing LMDB.")
@options.as_json
def add(folders: tuple[Path, ...], output: Path | None, data_dir: Path | None, force: bool, as_json: bool) -> None:
    """Build an LMDB of region features from the .npy files in FOLDERs.

    NAME.npy contains the features of the image NAME and NAME_info.npy its boxes, in the format of MMF's
    extraction scripts. The LMDB is moved into place when it is complete.

    Examples:
      mmfw features add extracted/                     where MMF looks for them
      mmfw features add extracted/ more/ --force       ... replacing existing features
      mmfw features add extracted/ -o own/memes.lmdb   another LMDB, for `mmfw predict --features`

    mmfw cannot extract features from images; MMF's repository has scripts for it in tools/scripts/features.

    Raises:
        UsageError: The name of the LMDB is not valid.
    """
    mmf_paths = MmfPaths.resolve(data_dir)
    if output is not None and output.suffix != ".lmdb":
        raise UsageError(f"{output}: the name of an LMDB must end in .lmdb")
    lmdb = mmf_paths.dataset.features / "detectron.lmdb" if output is None else expand_home(output).absolute()
    added = add_features(folders, lmdb, mmf_paths, force=force)
    if as_json:
        print_json(added)
        return
    if added["splits"]:
        rows = [(split, *counts.values()) for split, counts in added["splits"].items()]
        print(format_table(("split", "rows", "with features"), rows), flush=True)
    if names := added["without_info"]:
        images = f"{len(names)} ({summarize_list(names)})"
        print_status(f"warning: images without _info.npy files, whose boxes ViLBERT needs: {images}")
    if [*added["regions"]] != _EXPECTED_REGIONS:
        fewest, most = added["regions"]
        count = fewest if fewest == most else f"{fewest} to {most}"
        key = "dataset_config.hateful_memes.max_features"
        print_status(f"warning: images have {count} regions; for ViLBERT, all images need the number that {key} sets")
    if added["numbers"] != _FEATURE_SIZE:
        print_status(f"warning: {added['numbers']} numbers per region; the presets expect {_FEATURE_SIZE}")
    print_status(f"features of {added['images']} images: {added['lmdb']}")


class _RequiredFiles(NamedTuple):
    """MMF's folders, the required files with the presets that read them, and the overrides."""

    mmf_paths: MmfPaths
    inputs: dict[InputFiles, list[str]]
    overrides: Sequence[str]


def _find_required_files(arguments: Sequence[str], data_dir: Path | None, save_dir: Path | None) -> _RequiredFiles:
    """Return the files that the given presets need, else the newest run, else all presets."""
    preset_names, overrides = split_arguments(arguments)
    mmf_paths, mmf = MmfPaths.resolve(data_dir, save_dir), find_mmf()
    try:
        newest, request = lookup.find_first_usable_run(mmf_paths.save_dir, None, lambda run: (run, run.request()))
    except (RunNotFoundError, DataError):
        newest = None
    if preset_names or newest is None:
        selected = preset_names or [name for name in presets.list_presets() if name not in DEMO_PRESETS.values()]
        return _RequiredFiles(mmf_paths, find_preset_inputs(mmf, selected, mmf_paths, overrides), overrides)
    mmf_paths = MmfPaths.resolve(data_dir or Path(request.data_dir), save_dir)
    try:
        inputs = find_run_inputs(mmf, request, mmf_paths, overrides)
    except UsageError as error:  # the run may have been trained with another version of MMF
        message = f"newest run {newest.id}, with its overrides: {error}"
        raise UsageError(message, hint="pass presets instead") from None
    print_status(f"using preset {request.preset} of the newest run")
    return _RequiredFiles(mmf_paths, inputs, [*file_overrides(request), *overrides])


def _print_files(
    results: Mapping[InputFiles, VerificationResult],
    required_files: _RequiredFiles,
    as_json: bool,
    download_sizes: Mapping[InputFiles, int | None],
) -> None:
    if as_json:
        entries = []
        for item, result in results.items():
            source, sha256 = item.published_origin()
            entry = {**verify.to_json(result), "presets": required_files.inputs[item], "files": item.files()}
            entry |= {"source": source, "sha256": sha256, "download_bytes": download_sizes.get(item)}
            entries.append(entry)
        print_json(entries)
        return
    if not results:
        print_status("no region features or pretrained weights are needed")
        return
    verify.print_results(list(results.values()))
    for item, size in download_sizes.items():
        if size:
            print_status(f"{item.title}: {format_size(size)} to download")
    presets_to_fetch: dict[str, None] = {}
    for item, result in results.items():
        if result.state == "missing":
            if error := item.unrepairable_error(result):
                print_status(f"next: {error.hint}")
            else:
                presets_to_fetch |= dict.fromkeys(required_files.inputs[item])
    if presets_to_fetch:
        arguments = [*presets_to_fetch, *required_files.overrides]
        arguments += data_dir_arguments(required_files.mmf_paths.data_dir)
        print_status("next: " + format_command("mmfw", "features", "fetch", *arguments))

"""``mmfw convert``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from mmf_win.archives import PasswordCallback
from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.console import format_command, format_duration, format_table, print_json, print_status
from mmf_win.dataset.annotations import choose_splits
from mmf_win.dataset.convert import ConversionResult, convert, load_dataset_manifest
from mmf_win.errors import NoValidationSplitError, UsageError
from mmf_win.paths import MmfPaths, data_dir_arguments
from mmf_win.records import to_stored


@click.command(cls=Command)
@click.argument("arguments", nargs=-1, type=click.Path(), metavar="ARCHIVE")
@click.option("--zip", "source", type=click.Path(), metavar="ARCHIVE", help="Same as ARCHIVE.")
@options.password_options
@click.option("--clearml-dataset", "dataset", metavar="ID", help="ClearML dataset to use instead of ARCHIVE.")
@options.data_dir
@click.option("--force", is_flag=True, help="Replace a dataset that came from another archive.")
@click.option("--allow-missing", is_flag=True, help="Exclude memes without image; allow missing splits.")
@options.as_json
def command(
    arguments: tuple[str, ...],
    source: str | None,
    dataset: str | None,
    data_dir: Path | None,
    ask: PasswordCallback | None,
    force: bool,
    allow_missing: bool,
    as_json: bool,
) -> None:
    r"""Convert the dataset's archive to MMF's layout.

    ARCHIVE is the dataset as downloaded: zip, 7z, tar or tar.gz, or a folder. It is not modified.

    Checks the password, the free disk space, every file's checksum, and that annotations and images match.
    Converting the same archive again takes a second.

    A dataset uploaded by `mmfw track register-dataset` is verified and used from ClearML's cache on this
    machine, or converted to --data-dir if that is given.

    Examples:
      mmfw convert hateful_memes.zip
      mmfw convert hateful_memes.zip --password-file secret.txt --data-dir D:\data
      mmfw convert unpacked/hateful_memes --allow-missing
      mmfw convert my_memes/                train.csv, dev.csv, test.csv and your own images
      mmfw convert --clearml-dataset 0123abcd0123abcd0123abcd0123abcd

    The password may also be set in the variable MMFW_PASSWORD; otherwise mmfw asks for it if necessary. It is
    neither shown nor stored.

    Raises:
        UsageError: No archive is given, or more than one.
    """
    # An unset shell variable expands to an empty argument, which as a path would mean the current folder.
    sources = [name for name in (source, dataset, *arguments) if name]
    if not sources:
        raise UsageError("missing ARCHIVE", hint="run `mmfw convert ARCHIVE`")
    if len(sources) > 1:  # the values are not shown: one may be a part of the password
        hint = "quote a path or password that contains spaces, or use --password-file"
        raise UsageError("ARCHIVE, --zip and --clearml-dataset cannot be combined", hint=hint)
    archive, mmf_paths = Path(sources[0]), MmfPaths.resolve(data_dir)
    manifest = None
    if dataset:
        from mmf_win.tracking import clearml_datasets

        archive = clearml_datasets.download_dataset(dataset)
        manifest = load_dataset_manifest(MmfPaths.resolve(archive).dataset) if data_dir is None else None
    if manifest and manifest.result:
        mmf_paths = MmfPaths.resolve(archive)
        result = replace(ConversionResult.from_manifest(manifest), already_done=True, seconds=0.0)
    else:
        result = convert(archive, mmf_paths, ask=ask, force=force, allow_missing=allow_missing)
    if as_json:
        print_json({"target": mmf_paths.dataset.root, "data_dir": mmf_paths.data_dir, **to_stored(result)})
    else:
        _print_result(result, mmf_paths)


def _print_result(result: ConversionResult, mmf_paths: MmfPaths) -> None:
    header = ("split", "rows", "hateful", "benign", "excluded")
    rows = []
    for name, s in result.splits.items():
        row_count = f"{s.rows:,} of {s.rows + s.missing:,}" if s.missing else s.rows
        rows.append((name, row_count, s.hateful, s.benign, s.missing))
    print(format_table(header, rows))
    extra = f", {result.extra_images} of them in no split" if result.extra_images else ""
    print_status(f"\n{result.images} images{extra}")
    for pair, count in result.shared_ids.items():
        print_status(f"{pair} have {count} memes in common")
    if result.is_published is False:
        print_status(f"warning: not a known published archive (SHA-256 {result.sha256})")
    if result.already_done:
        print_status(f"already converted, all files intact: {mmf_paths.dataset.root}")
    else:
        print_status(f"converted in {format_duration(result.seconds)}: {mmf_paths.dataset.root}")
    try:
        choose_splits(mmf_paths.dataset)
    except NoValidationSplitError as error:
        print_status(f"warning: {error}; {error.hint}")
    else:
        train = format_command("mmfw", "train", "PRESET", *data_dir_arguments(mmf_paths.data_dir))
        print_status(f"next: {train}    (mmfw train --list shows the presets)")

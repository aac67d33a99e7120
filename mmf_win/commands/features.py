"""``mmfw features``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mmf_win.archives import Ask
from mmf_win.commands import features_add, findings, options
from mmf_win.commands.completion import completed_by
from mmf_win.commands.overrides import split_words
from mmf_win.console import print_json, say, shell_line, size
from mmf_win.dataset.features import extract_features
from mmf_win.errors import DamagedFeatures, DataError, MmfError, NoRun, UsageError
from mmf_win.inputs.fetch import bytes_to_download
from mmf_win.inputs.fetch import fetch as fetch_inputs
from mmf_win.inputs.given import Input
from mmf_win.inputs.keys import image_keys
from mmf_win.inputs.mirror import Mirror
from mmf_win.integrity.finding import Finding
from mmf_win.paths import Places, data_option
from mmf_win.runs import lookup, presets
from mmf_win.runs.needs import inputs_of_presets, inputs_of_run, words_about_files
from mmf_win.upstream.install import find_mmf
from mmf_win.upstream.zoo import Zoo


@click.group(
    epilog="""\b
Examples:
  mmfw features status                          what the newest run's preset needs, or all presets
  mmfw features fetch vilbert_cc                bring in what is missing
  mmfw features fetch mmbt_region --source E:\\  ... from a USB stick
  mmfw features extract features_2020_10_01.tar.gz
  mmfw features add my_features                 ... of images of your own, from .npy files

`mmfw verify PRESET` verifies what a preset reads, and `mmfw repair PRESET` repairs it.""",
)
def command() -> None:
    """Features and pretrained weights: what is there; fetch, unpack and add it."""


command.add_command(features_add.command)


_words = click.argument(
    "words", nargs=-1, metavar="[PRESET ...] [KEY=VALUE ...]", shell_complete=completed_by("PRESET")
)


@command.command(
    epilog="""\b
Examples:
  mmfw features status
  mmfw features status mmbt_region visual_bert_coco --json"""
)
@_words
@options.data_dir
@options.save_dir
@options.as_json
def status(words: Sequence[str], data_dir: Path | None, save_dir: Path | None, as_json: bool) -> None:
    """Show what PRESETs need, where it lies, and what fetching it would cost.

    Without a PRESET it is that of the newest run; without a run, all of them. KEY=VALUE overrides are as
    for `mmfw train`. No file is read.
    """
    wanted = _wanted(words, data_dir, save_dir)
    found = {each: each.state() for each in wanted.inputs}
    absent = [each for each, finding in found.items() if finding.state in ("missing", "damaged")]
    _show(found, wanted, as_json, bytes_to_download(absent, Mirror()))


@command.command(
    epilog="""\b
Examples:
  mmfw features fetch visual_bert_coco
  mmfw features fetch mmbt_region --source /media/usb
  mmfw features fetch visual_bert checkpoint.resume_zoo=visual_bert.pretrained.cc.full
  mmfw features fetch --source https://mirror.example/mmf --no-keep-archives"""
)
@options.archives
@_words
@options.data_dir
@options.save_dir
@options.as_json
def fetch(
    words: Sequence[str],
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
    source: str | None,
    **how: Any,
) -> None:
    """Download what PRESETs need and is missing, and put it where MMF looks for it.

    Interrupted downloads are resumed. A file is renamed into place only after its SHA-256 matches.
    """
    wanted = _wanted(words, data_dir, save_dir)
    found = fetch_inputs(list(wanted.inputs), wanted.places, Mirror.of(source, **how))
    _show(dict(zip(wanted.inputs, found, strict=True)), wanted, as_json, {})


@command.command(
    epilog="""\b
Example:
  mmfw features extract features.tar.gz""",
)
@click.argument("archive", type=click.Path(path_type=Path))
@options.ask
@options.data_dir
@click.option("--force", is_flag=True, help="Replace features that came from another archive.")
def extract(archive: Path, ask: Ask | None, data_dir: Path | None, force: bool) -> None:
    """Unpack ARCHIVE, which holds detectron.lmdb, to where MMF looks for it.

    Nothing looks finished before all of it is there and verified; extracting the same archive again takes a
    second.
    """
    places, entry = Places.resolve(data_dir), None
    with suppress(MmfError):  # there is no MMF yet
        entry = Zoo(find_mmf().root, places).dataset("features")
    version = entry.version if entry else None
    target = extract_features(archive, places, version=version, ask=ask, force=force)
    # Without lmdb they are read before a run, which also tells what is wrong with an LMDB that came so.
    with suppress(MmfError, DamagedFeatures):
        image_keys(target, walk=True)
    say(f"features: {target}")
    if version is None:
        say("MMF is not installed yet; after `mmfw setup`, run this again so that MMF knows these features")


@dataclass(frozen=True)
class _Wanted:
    """What a command is about.

    Attributes:
        places: MMF's folders.
        inputs: the files → the presets that read them.
        overrides: ``KEY=VALUE`` overrides that make them so.
    """

    places: Places
    inputs: dict[Input, list[str]]
    overrides: Sequence[str]


def _wanted(words: Sequence[str], data_dir: Path | None, save_dir: Path | None) -> _Wanted:
    """What the presets need, else the newest run, else all presets."""
    named, overrides = split_words(words)
    places, mmf = Places.resolve(data_dir, save_dir), find_mmf()
    try:
        newest, request = lookup.newest(places.save_dir, None, lambda run: (run, run.request()))
    except (NoRun, DataError):
        newest = None
    if named or newest is None:
        chosen = named or [name for name in presets.names() if name != "demo"]
        return _Wanted(places, inputs_of_presets(mmf, chosen, places, overrides), overrides)
    places = Places.resolve(data_dir or Path(request.data_dir), save_dir)
    try:
        inputs = inputs_of_run(mmf, request, places, overrides)
    except UsageError as error:  # it may have been trained with another MMF
        raise UsageError(
            f"run {newest.id}, the newest, with its overrides: {error}", hint="name presets instead"
        ) from None
    say(f"for preset {request.preset}, that of the newest run")
    return _Wanted(places, inputs, [*words_about_files(request), *overrides])


def _show(
    found: Mapping[Input, Finding], wanted: _Wanted, as_json: bool, to_get: Mapping[Input, int | None]
) -> None:
    if as_json:
        told = []
        for each, finding in found.items():
            source, sha256 = each.published()
            told.append(
                {
                    **findings.to_json(finding),
                    "presets": wanted.inputs[each],
                    "files": each.files(),
                    "source": source,
                    "sha256": sha256,
                    "download_bytes": to_get.get(each),
                }
            )
        print_json(told)
        return
    findings.show(list(found.values()))
    for each, length in to_get.items():
        if length:
            say(f"{each.title}: {size(length)} to download")
    presets_to_fetch: dict[str, None] = {}
    for each, finding in found.items():
        if finding.state == "missing":
            error = each.no_source(finding)
            presets_to_fetch |= dict.fromkeys([] if error else wanted.inputs[each])
            if error:
                say(f"next: {error.hint}")
    if presets_to_fetch:
        words = [*presets_to_fetch, *wanted.overrides]
        say(f"next: {shell_line('mmfw', 'features', 'fetch', *words, *data_option(wanted.places.data_dir))}")

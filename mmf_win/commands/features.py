"""``mmfw features``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmf_win.commands import features_add, options
from mmf_win.console import as_typed, moment, print_json, say, size, table
from mmf_win.errors import DataError, UsageError

if TYPE_CHECKING:
    from mmf_win.archives import Ask
    from mmf_win.inputs.fetch import Fetcher
    from mmf_win.inputs.listing import Need
    from mmf_win.inputs.state import State, Status
    from mmf_win.paths import Places
    from mmf_win.upstream.zoo import Version


@click.group(
    epilog="""\b
Examples:
  mmfw features status                          what the newest run's preset needs, or all presets
  mmfw features fetch vilbert_cc                bring in what is missing
  mmfw features fetch mmbt_region --source E:\\  ... from a USB stick
  mmfw features extract features_2020_10_01.tar.gz
  mmfw features add my_features                 ... of images of your own, from .npy files
  mmfw features verify --full                   read everything again
  mmfw features repair                          mend what is broken""",
)
def command() -> None:
    """Features and pretrained weights: what is there, get it, verify it, mend it."""


command.add_command(features_add.command)


def _presets(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        options.as_json,
        options.save_dir,
        options.data_dir,
        click.argument("words", nargs=-1, metavar="[PRESET ...] [KEY=VALUE ...]"),
    ):
        function = decorate(function)
    return function


_keep = click.option(
    "--keep-archives/--no-keep-archives",
    default=True,
    show_default=True,
    help="Leave downloaded archives in place, to mend from them without a download.",
)


@command.command(
    epilog="""\b
Examples:
  mmfw features status
  mmfw features status mmbt_region visual_bert_coco --json"""
)
@_presets
def status(words: tuple[str, ...], data_dir: Path | None, save_dir: Path | None, as_json: bool) -> None:
    """Show what PRESETs need, where it lies, and what fetching it would cost.

    Without a PRESET it is that of the newest run; without a run, all of them. KEY=VALUE overrides are as
    for `mmfw train`. No file is read.
    """
    from mmf_win.inputs.fetch import Fetcher
    from mmf_win.inputs.state import look

    wanted = _wanted(words, data_dir, save_dir)
    found = [look(need, wanted.places) for need in wanted.needs]
    _show(found, wanted, as_json, Fetcher(wanted.places))


@command.command(
    epilog="""\b
Examples:
  mmfw features fetch visual_bert_coco
  mmfw features fetch mmbt_region --source /media/usb
  mmfw features fetch visual_bert checkpoint.resume_zoo=visual_bert.pretrained.cc.full
  mmfw features fetch --source https://mirror.example/mmf --no-keep-archives"""
)
@options.source
@options.ask
@_keep
@_presets
def fetch(
    words: tuple[str, ...],
    source: str | None,
    ask: Ask | None,
    keep_archives: bool,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
) -> None:
    """Download what PRESETs need and is missing, and put it where MMF looks for it.

    Interrupted downloads go on where they were. Nothing gets its name before its hash is right.
    """
    wanted = _wanted(words, data_dir, save_dir)
    _show(_fetcher(wanted, source, keep_archives, ask).fetch(wanted.needs), wanted, as_json)


@command.command(
    epilog="""\b
Examples:
  mmfw features verify
  mmfw features verify vilbert --full"""
)
@click.option("--full", is_flag=True, help="Read every file, also those that nobody has touched.")
@_presets
def verify(
    words: tuple[str, ...], full: bool, data_dir: Path | None, save_dir: Path | None, as_json: bool
) -> None:
    """Make sure that what PRESETs need is whole."""
    from mmf_win.inputs.state import examine

    wanted = _wanted(words, data_dir, save_dir)
    found = [examine(need, wanted.places, full=full) for need in wanted.needs]
    _show(found, wanted, as_json)
    if hint := wanted.command("repair", found, "broken"):
        raise DataError("some files are broken", hint=hint)


@command.command(
    epilog="""\b
Examples:
  mmfw features repair
  mmfw features repair vilbert --source /media/usb"""
)
@options.source
@options.ask
@_keep
@_presets
def repair(
    words: tuple[str, ...],
    source: str | None,
    ask: Ask | None,
    keep_archives: bool,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
) -> None:
    """Mend what is broken: from the archive if that is whole, by a download otherwise.

    Only files that are wrong are written again; what is missing altogether is left to fetch. Without a
    PRESET, it is all that the newest run or any of the presets needs.
    """
    wanted = _wanted(words, data_dir, save_dir, widely=True)
    repaired = _fetcher(wanted, source, keep_archives, ask).repair(wanted.needs)
    found = [status for status in repaired if wanted.named or status.state != "missing"]
    _show(found, wanted, as_json)


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
    from mmf_win.dataset.features import extract_features
    from mmf_win.paths import Places

    version = _version_mmf_expects()
    target = extract_features(archive, Places.resolve(data_dir), version=version, ask=ask, force=force)
    say(f"features: {target}")
    if version is None:
        say("MMF is not installed yet; after `mmfw setup`, run this again so that MMF knows these features")


def _version_mmf_expects() -> Version | None:
    """The version that the installed MMF looks for; None when there is no MMF yet."""
    from mmf_win.errors import MmfError
    from mmf_win.upstream.install import find
    from mmf_win.upstream.versions import dataset_version

    try:
        return dataset_version(find().root)
    except MmfError:
        return None


@dataclass(frozen=True)
class _Wanted:
    """What a command is about.

    Attributes:
        places: MMF's folders.
        needs: the files → the presets that read them.
        overrides: ``KEY=VALUE`` overrides that make them so.
        named: whether presets were named.
    """

    places: Places
    needs: dict[Need, list[str]]
    overrides: Sequence[str]
    named: bool

    def command(self, name: str, found: Sequence[Status], state: State) -> str | None:
        """The command for the presets that read files in this state; None where there are none."""
        presets = dict.fromkeys(p for s in found if s.state == state for p in self.needs[s.need])
        if not any(status.state == state for status in found):
            return None
        return as_typed("mmfw", "features", name, *presets, *self.overrides, *self.places.data_option)


def _fetcher(wanted: _Wanted, source: str | None, keep_archives: bool, ask: Ask | None) -> Fetcher:
    from mmf_win.inputs.fetch import Fetcher
    from mmf_win.inputs.mirror import Mirror

    return Fetcher(wanted.places, Mirror.of(source), keep_archives, ask=ask)


def _wanted(
    words: Sequence[str], data_dir: Path | None, save_dir: Path | None, widely: bool = False
) -> _Wanted:
    """What the presets need, else the newest run, else – or ``widely``, too – all presets."""
    from mmf_win.commands.overrides import split_words
    from mmf_win.paths import Places
    from mmf_win.runs import history, zoo_weights
    from mmf_win.runs.needs import needs_of_presets, needs_of_run
    from mmf_win.runs.overrides import about_files
    from mmf_win.runs.presets import names
    from mmf_win.upstream.install import find

    presets, overrides = split_words(words)
    places, mmf = Places.resolve(data_dir, save_dir), find()
    if presets:
        needs = needs_of_presets(mmf, presets, places, overrides)
        return _Wanted(places, needs, overrides, named=True)
    every = [name for name in names() if name != "demo"]
    newest = next(iter(history.all_runs(places.save_dir)), None)
    if newest is None:
        needs = needs_of_presets(mmf, every, places, overrides)
        if widely:
            needs |= zoo_weights.needs_of_presets(mmf, every, places)
        return _Wanted(places, needs, overrides, named=False)
    request = newest.request()
    places = Places.resolve(data_dir or Path(request.data_dir), save_dir)
    try:
        needs = needs_of_run(mmf, request, places, overrides)
    except UsageError as error:  # it may have been trained with another MMF
        raise UsageError(
            f"run {newest.id}, the newest, with its overrides: {error}", hint="name presets instead"
        ) from None
    if widely:
        published = zoo_weights.needs_of_presets(mmf, every, places)
        needs = needs_of_presets(mmf, every, places) | published | needs
    else:
        say(f"for preset {request.preset}, that of the newest run")
    return _Wanted(places, needs, [*about_files(request.overrides), *overrides], named=False)


_SAID = {
    "ok": "ok",
    "recorded": "recorded, not vouched for",
    "unchecked": "not checked yet",
    "missing": "missing",
    "broken": "BROKEN",
}


def _show(found: Sequence[Status], wanted: _Wanted, as_json: bool, fetcher: Fetcher | None = None) -> None:
    absent = [status.need for status in found if status.state in ("missing", "broken")]
    costs = fetcher.costs(absent) if fetcher is not None else {}
    if as_json:
        print_json([_as_json(status, wanted.needs[status.need], costs.get(status.need)) for status in found])
        return
    rows = [
        (
            status.need.title,
            _SAID[status.state],
            size(status.size) if status.size else None,
            _checked(status),
            str(status.need.folder),
        )
        for status in found
    ]
    print(table(("what", "state", "size", "checked", "where"), rows))
    for status in found:
        for problem in status.problems if status.state == "broken" else ():
            say(f"{status.need.title}: {problem}")
    for need, (to_download, on_disk) in costs.items():
        if to_download:
            room = f", and {size(on_disk)} on the disk" if on_disk else ""
            say(f"{need.title}: {size(to_download)} to download{room}")
    if fetch := wanted.command("fetch", found, "missing"):
        say(f"next: {fetch}")


def _checked(status: Status) -> str | None:
    if status.checked is None:
        return status.against or None
    when = moment(status.checked)
    return f"{when}, against {status.against}"


def _as_json(
    status: Status, presets: Sequence[str], cost: tuple[int | None, int | None] | None
) -> dict[str, Any]:
    need = status.need
    return {
        "what": need.title,
        "kind": need.kind,
        "presets": list(presets),
        "state": status.state,
        "folder": str(need.folder),
        "files": [str(path) for path in need.files],
        "bytes": status.size,
        "checked": status.checked,
        "against": status.against or None,
        "problems": list(status.problems),
        "source": need.entry.url if need.entry else need.url,
        "sha256": need.entry.sha256 if need.entry else None,
        "download_bytes": cost[0] if cost else None,
        "disk_bytes": cost[1] if cost else None,
    }

"""``mmfw features``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmf_win.commands import features_add, options
from mmf_win.console import as_typed, moment, print_json, say, size, table
from mmf_win.errors import DataError

if TYPE_CHECKING:
    from mmf_win.bridge.needs.fetch import Fetcher
    from mmf_win.bridge.needs.listing import Need
    from mmf_win.bridge.needs.state import State, Status
    from mmf_win.dataset.features import Version
    from mmf_win.paths import Places


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
        click.argument("presets", nargs=-1, metavar="[PRESET ...]"),
    ):
        function = decorate(function)
    return function


_source = click.option(
    "--source", metavar="URL_OR_FOLDER", help="Look for the archives here first: a mirror, or a USB stick."
)
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
def status(presets: tuple[str, ...], data_dir: Path | None, save_dir: Path | None, as_json: bool) -> None:
    """Show what PRESETs need, where it lies, and what fetching it would cost.

    Without a PRESET it is that of the newest run; without a run, all of them. No file is read.
    """
    from mmf_win.bridge.needs.fetch import Fetcher
    from mmf_win.bridge.needs.state import look

    places, needs = _needs(presets, data_dir, save_dir)
    found = [look(need, places) for need in needs]
    _show(found, needs, places, as_json, Fetcher(places))


@command.command(
    epilog="""\b
Examples:
  mmfw features fetch visual_bert_coco
  mmfw features fetch mmbt_region --source /media/usb
  mmfw features fetch --source https://mirror.example/mmf --no-keep-archives"""
)
@_source
@_keep
@_presets
def fetch(
    presets: tuple[str, ...],
    source: str | None,
    keep_archives: bool,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
) -> None:
    """Download what PRESETs need and is missing, and put it where MMF looks for it.

    Interrupted downloads go on where they were. Nothing gets its name before its hash is right.
    """
    needs, fetcher = _fetcher(presets, source, keep_archives, data_dir, save_dir)
    _show(fetcher.fetch(needs), needs, fetcher.places, as_json)


@command.command(
    epilog="""\b
Examples:
  mmfw features verify
  mmfw features verify vilbert --full"""
)
@click.option("--full", is_flag=True, help="Read every file, also those that nobody has touched.")
@_presets
def verify(
    presets: tuple[str, ...], full: bool, data_dir: Path | None, save_dir: Path | None, as_json: bool
) -> None:
    """Make sure that what PRESETs need is whole."""
    from mmf_win.bridge.needs.state import examine

    places, needs = _needs(presets, data_dir, save_dir)
    found = [examine(need, places, full=full) for need in needs]
    _show(found, needs, places, as_json)
    if broken := _of(found, needs, "broken"):
        hint = as_typed("mmfw", "features", "repair", *(presets or broken), *places.data_option)
        raise DataError("some files are broken", hint=hint)


@command.command(
    epilog="""\b
Examples:
  mmfw features repair
  mmfw features repair vilbert --source /media/usb"""
)
@_source
@_keep
@_presets
def repair(
    presets: tuple[str, ...],
    source: str | None,
    keep_archives: bool,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
) -> None:
    """Mend what is broken: from the archive if that is whole, by a download otherwise.

    Only files that are wrong are written again; what is missing altogether is left to fetch. Without a
    PRESET, it is all that the newest run or any of the presets needs.
    """
    needs, fetcher = _fetcher(presets, source, keep_archives, data_dir, save_dir, widely=True)
    found = [status for status in fetcher.repair(needs) if presets or status.state != "missing"]
    _show(found, needs, fetcher.places, as_json)


@command.command(
    epilog="""\b
Example:
  mmfw features extract features.tar.gz""",
)
@click.argument("archive", type=click.Path(path_type=Path))
@options.data_dir
@click.option("--force", is_flag=True, help="Replace features that came from another archive.")
def extract(archive: Path, data_dir: Path | None, force: bool) -> None:
    """Unpack ARCHIVE, which holds detectron.lmdb, to where MMF looks for it.

    Nothing looks finished before all of it is there and verified; extracting the same archive again takes a
    second.
    """
    from mmf_win.dataset.features import extract_features
    from mmf_win.paths import Places

    version = _version_mmf_expects()
    target = extract_features(archive, Places.resolve(data_dir), version=version, force=force)
    say(f"features: {target}")
    if version is None:
        say("MMF is not installed yet; after `mmfw setup`, run this again so that MMF knows these features")


def _version_mmf_expects() -> Version | None:
    """The version that the installed MMF looks for; None when there is no MMF yet."""
    from mmf_win.bridge.install import find
    from mmf_win.bridge.versions import dataset_version
    from mmf_win.errors import MmfError

    try:
        return dataset_version(find().root)
    except MmfError:
        return None


def _fetcher(
    presets: Sequence[str],
    source: str | None,
    keep_archives: bool,
    data_dir: Path | None,
    save_dir: Path | None,
    widely: bool = False,
) -> tuple[dict[Need, list[str]], Fetcher]:
    """What is needed, and who gets it."""
    from mmf_win.bridge.needs.fetch import Fetcher
    from mmf_win.bridge.needs.mirror import Mirror

    places, needs = _needs(presets, data_dir, save_dir, widely)
    return needs, Fetcher(places, Mirror.of(source), keep_archives)


def _needs(
    presets: Sequence[str], data_dir: Path | None, save_dir: Path | None, widely: bool = False
) -> tuple[Places, dict[Need, list[str]]]:
    """What the presets need, else the newest run, else – or ``widely``, too – all presets."""
    from mmf_win.bridge.install import find
    from mmf_win.paths import Places
    from mmf_win.runs import history, inputs
    from mmf_win.runs.presets import names

    places, mmf = Places.resolve(data_dir, save_dir), find()
    if presets:
        return places, inputs.needs_of_presets(mmf, presets, places)
    every = [name for name in names() if name != "demo"]
    newest = next(iter(history.all_runs(places.save_dir)), None)
    if newest is None:
        return places, inputs.needs_of_presets(mmf, every, places)
    request = newest.request()
    places = Places.resolve(data_dir or Path(request.data_dir), save_dir)
    needs = inputs.needs_of_run(mmf, request, places)
    if widely:
        return places, inputs.needs_of_presets(mmf, every, places) | needs
    say(f"for preset {request.preset}, that of the newest run")
    return places, needs


_SAID = {
    "ok": "ok",
    "recorded": "recorded, not vouched for",
    "unchecked": "not checked yet",
    "missing": "missing",
    "broken": "BROKEN",
}


def _show(
    found: Sequence[Status],
    needs: dict[Need, list[str]],
    places: Places,
    as_json: bool,
    fetcher: Fetcher | None = None,
) -> None:
    wanted = [status.need for status in found if status.state in ("missing", "broken")]
    costs = fetcher.costs(wanted) if fetcher is not None else {}
    if as_json:
        print_json([_as_json(status, needs[status.need], costs.get(status.need)) for status in found])
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
    if missing := _of(found, needs, "missing"):
        say(f"next: {as_typed('mmfw', 'features', 'fetch', *missing, *places.data_option)}")


def _of(found: Sequence[Status], needs: dict[Need, list[str]], state: State) -> list[str]:
    """The presets that need something in this state."""
    named = (name for status in found if status.state == state for name in needs[status.need])
    return list(dict.fromkeys(named))


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
        "source": need.entry.resource.url if need.entry else need.url,
        "sha256": need.entry.resource.sha256 if need.entry else None,
        "download_bytes": cost[0] if cost else None,
        "disk_bytes": cost[1] if cost else None,
    }

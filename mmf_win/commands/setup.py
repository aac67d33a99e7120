"""``mmfw setup``: get MMF and check that it is whole."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from mmf_win.commands.options import as_json
from mmf_win.console import print_json, say
from mmf_win.upstream.install import Installed, chosen, install, use_checkout
from mmf_win.upstream.sources import PYPI, SOURCES


@click.command(
    "setup",
    epilog="""\b
Examples:
  mmfw setup                      the version of PyPI; also mends a broken copy
  mmfw setup --mmf github         the newest, from GitHub
  mmfw setup --mmf ../my-mmf      a checkout that you edit
""",
)
@click.option(
    "--mmf",
    "wanted",
    metavar="pypi|github|DIR",
    help="Where from.  [default: as the last time, at first pypi]",
)
@click.option("--force", is_flag=True, help="Fetch it anew even though it is whole.")
@as_json
def command(wanted: str | None, force: bool, as_json: bool) -> None:
    """Get MMF into this Python environment and check every file of it.

    pypi is 1.0.0rc10 of 2020, by pip, so any mirror or index that pip knows will do. github is a fixed newer
    commit (1.0.0rc12), as a source archive; it needs neither git nor a compiler.
    """
    installed = _set_up(wanted, force)
    if as_json:
        print_json(asdict(installed) | {"root": str(installed.root)})
    else:
        say(f"MMF {installed.version} is ready in {installed.root}.")
        say("Next: `mmfw doctor` shows what else is missing, `mmfw demo` tries it all.")


def _set_up(wanted: str | None, force: bool) -> Installed:
    if wanted is None:
        current = chosen()
        wanted = PYPI.name if current is None else _as_option(current)
    for source in SOURCES:
        if source.name == wanted:
            return install(source, force=force)
    return use_checkout(Path(wanted))


def _as_option(current: Installed) -> str:
    return str(current.root) if current.source == "path" else current.source

"""``mmfw setup``: get MMF and verify it."""

from __future__ import annotations

from dataclasses import asdict

import click

from mmf_win.commands.options import as_json
from mmf_win.console import print_json, say
from mmf_win.upstream.install import set_up


@click.command(
    "setup",
    epilog="""\b
Examples:
  mmfw setup                      the version of PyPI; also repairs a damaged copy
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
@click.option("--force", is_flag=True, help="Fetch it again even though it is intact.")
@as_json
def command(wanted: str | None, force: bool, as_json: bool) -> None:
    """Get MMF into this Python environment and check every file of it.

    pypi is 1.0.0rc10 of 2020, by pip, so any mirror or index that pip knows will do. github is a fixed newer
    commit (1.0.0rc12), as a source archive; it needs neither git nor a compiler.
    """
    installed = set_up(wanted, force=force)
    if as_json:
        print_json(asdict(installed))
    else:
        say(f"MMF {installed.version} is ready in {installed.root}.")
        say("Next: `mmfw doctor` shows what else is missing, `mmfw demo` tries it all.")

"""``mmfw setup``: install MMF, verify it, and show how to install PyTorch."""

from __future__ import annotations

from dataclasses import asdict

import click

from mmf_win.commands.help_examples import Command
from mmf_win.commands.options import as_json
from mmf_win.console import format_command, print_json, print_result, print_status
from mmf_win.doctor.survey import torch_install_command
from mmf_win.errors import UsageError
from mmf_win.paths import constraints_file
from mmf_win.upstream.install import pip_hint, select_mmf


@click.command(cls=Command)
@click.option(
    "--mmf", "source", metavar="pypi|github|DIR", help="Source of MMF.  [default: the previous source, at first pypi]"
)
@click.option("--force", is_flag=True, help="Download MMF again even if it is intact.")
@click.option("--torch", is_flag=True, help="Only print the pip command for PyTorch for this machine.")
@click.option("--constraints", is_flag=True, help="Only print the path of the tested versions, for pip -c.")
@as_json
def command(source: str | None, force: bool, torch: bool, constraints: bool, as_json: bool) -> None:
    """Install MMF into this Python environment and verify every file of it.

    pypi installs version 1.0.0rc10 (2020) with pip, from the index or mirror that pip is configured to use.
    github downloads the source of a newer, fixed commit (1.0.0rc12); it needs neither git nor a compiler.

    Examples:
      mmfw setup                      the version on PyPI; also repairs a damaged copy
      mmfw setup --mmf github         the newer version from GitHub
      mmfw setup --mmf ../my-mmf      a checkout that you edit
      mmfw setup --torch              print the pip command that installs PyTorch for this machine
      pip install -c "$(mmfw setup --constraints)" ".[train]"    the versions that mmfw is tested with

    Raises:
        UsageError: Options cannot be combined.
    """
    if torch + constraints + bool(source or force) > 1:
        message = "--torch and --constraints cannot be combined with each other, --mmf or --force"
        raise UsageError(message, hint="use one of them")
    if torch and as_json:
        print_json({"pip": torch_install_command()})
    elif torch:
        print_result(format_command(*torch_install_command()))
        print_status(f"then {pip_hint('[train]')} to install the rest")
    elif constraints:
        path = str(constraints_file())
        print_json({"constraints": path}) if as_json else print_result(path)
    else:
        installed = select_mmf(source, force=force)
        if as_json:
            print_json(asdict(installed))
            return
        print_status(f"MMF {installed.version} is ready in {installed.root}")
        print_status("next: run `mmfw doctor` to see what is missing, or `mmfw demo` to try everything")

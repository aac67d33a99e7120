"""For MMF's ``import demjson``: the package no longer builds, and serves one command line option of MMF."""

from __future__ import annotations

from typing import NoReturn

from mmf_win.errors import MmfError


def decode(text: str) -> NoReturn:
    """Refuse.

    Raises:
        MmfError: always.
    """
    raise MmfError(
        f"MMF's option config_override needs the package demjson, which is not installed: {text[:40]}",
        hint="Pass each setting as KEY=VALUE, or put them into a YAML file.",
    )

"""Code that a preset names as ``env.user_dir``, which MMF imports: each such folder is trusted once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmf_win.errors import UntrustedCode
from mmf_win.files import read_json, write_json
from mmf_win.paths import tool_home


def file() -> Path:
    """Where the trusted folders are listed: a JSON list in mmfw's own folder."""
    return tool_home() / "trusted.json"


def require_trusted(config: Mapping[str, Any], overrides: Sequence[str], *, trust: bool) -> None:
    """Refuse to run code that neither the user named nor trusts.

    Args:
        config: as :func:`mmf_win.upstream.config.resolve` gives it.
        overrides: ``KEY=VALUE`` overrides, which the user typed.
        trust: the user trusts it from now on.

    Raises:
        UntrustedCode: a preset, or the configuration that it starts from, names code.
    """
    named = config["env"].get("user_dir")
    typed = any(override.startswith("env.user_dir=") for override in overrides)
    if not named or typed or named == os.environ.get("MMF_USER_DIR"):
        return
    folder, known = str(Path(named).expanduser().absolute()), _known()
    if folder in known:
        return
    if not trust:
        raise UntrustedCode(f"{folder}: the preset names code (env.user_dir), which would be run")
    file().parent.mkdir(parents=True, exist_ok=True)
    write_json(file(), [*known, folder])


def _known() -> list[str]:
    try:
        listed = read_json(file())
    except (OSError, ValueError):
        return []
    return [str(folder) for folder in listed] if isinstance(listed, list) else []

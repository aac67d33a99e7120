"""Code of the user's own, which MMF imports from ``env.user_dir``: a run remembers its folder.

A folder that a preset or a run names, and not the user, is trusted once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmf_win.errors import DataError, NoOwnCode
from mmf_win.files import read_json, write_json
from mmf_win.paths import tool_home
from mmf_win.runs.overrides import USER_DIR, set_by, without
from mmf_win.runs.presets import merge
from mmf_win.runs.request import RunRequest
from mmf_win.upstream.config import user_dir

_log = logging.getLogger(__name__)


def file() -> Path:
    """Where the trusted folders are listed: a JSON list in mmfw's own folder."""
    return tool_home() / "trusted.json"


def with_own_code(request: RunRequest, typed: Sequence[str], root: Path, whose: str) -> RunRequest:
    """``request`` with the absolute path of its code in its settings, wherever that was named.

    Args:
        request: what is asked for; its overrides may be those of a run that somebody else made.
        typed: the overrides that the user typed now. A folder that is named there, or by the variable of the
            environment, is trusted from now on.
        root: the folder that holds the package ``mmf``.
        whose: what the user calls the run or the preset.

    Raises:
        NoOwnCode: there is nothing at that path.
        DataError: it is neither the user who names it, nor trusted.
    """
    named = user_dir(root, request, request.overrides)
    if named is None:
        return request
    if not named:  # and an interpolation must not find another in the worker
        return replace(request, settings=merge(request.settings, {"env": {"user_dir": ""}}))
    folder, of_environment = _absolute(named), os.environ.get("MMF_USER_DIR")
    if not folder.exists() and not folder.with_name(f"{folder.name}.py").exists():
        raise NoOwnCode(f"{whose} needs code of its own (env.user_dir), and there is no {folder}")
    by_user = any(set_by(override, {USER_DIR}) for override in typed)
    by_user |= bool(of_environment) and folder == _absolute(str(of_environment))
    _require_trusted(folder, whose, trust=by_user or request.trust)
    settings = merge(request.settings, {"env": {"user_dir": str(folder)}})
    return replace(request, settings=settings, overrides=without(request.overrides, {USER_DIR}))


def words_for(request: RunRequest) -> list[str]:
    """The override by which another command finds the same code; nothing where it does so anyway."""
    named = (request.settings.get("env") or {}).get("user_dir")
    return [f"{USER_DIR}={named}"] if named and named != os.environ.get("MMF_USER_DIR") else []


def _absolute(named: str) -> Path:
    # resolve() would follow links, and change the name under which the folder is imported.
    return Path(os.path.abspath(Path(named).expanduser()))  # noqa: PTH100


def _require_trusted(folder: Path, whose: str, *, trust: bool) -> None:
    known = _known()
    if str(folder) in known:
        return
    if not trust:
        raise DataError(
            f"{folder}: {whose} names code (env.user_dir), which would be run",
            hint="if you trust it, give --trust, which is remembered",
        )
    try:
        file().parent.mkdir(parents=True, exist_ok=True)
        write_json(file(), [*known, str(folder)])
    except OSError as error:
        _log.warning("%s cannot be written, so %s is asked about again: %s", file(), folder, error.strerror)


def _known() -> list[str]:
    try:
        listed = read_json(file())
    except (OSError, ValueError):
        return []
    return [str(folder) for folder in listed] if isinstance(listed, list) else []

"""Code of the user's own, which MMF imports from ``env.user_dir``: a run remembers its folder.

A folder that a preset or a run names, and not the user, is trusted once.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from mmf_win.errors import DataError, UsageError
from mmf_win.files import write_json
from mmf_win.locking import file_lock
from mmf_win.paths import expand_home, mmfw_home
from mmf_win.records import read_record
from mmf_win.runs.request import CommandOptions

_log = logging.getLogger(__name__)


def trusted_folders_path() -> Path:
    """Where the trusted folders are listed: a JSON list in mmfw's own folder."""
    return mmfw_home() / "trusted.json"


def resolve_user_dir(user_dir: str | None, options: CommandOptions, owner_name: str) -> str | None:
    """The absolute path of code, for the settings of whoever needs it.

    Args:
        named: the folder; None where nothing names one, and empty where what names one stands for nothing.
        options: what this command asks for. A folder that is named there, or by the variable of the
            environment, is trusted from now on.
        whose: what the user calls the run or the preset.

    Raises:
        UsageError: there is nothing at that path.
        DataError: it is neither the user who names it, nor trusted.
    """
    if not user_dir:  # and where it is empty, an interpolation must not find another in the worker
        return user_dir
    folder, environment_dir = _absolute_path(user_dir), os.environ.get("MMF_USER_DIR")
    if not folder.exists() and not folder.with_name(f"{folder.name}.py").exists():
        message = f"{owner_name} needs code of its own (env.user_dir), and there is no {folder}"
        raise UsageError(message, hint="name its folder with env.user_dir=FOLDER")
    if str(folder) in _load_trusted_folders():
        return str(folder)
    is_named_by_user = any(override.startswith("env.user_dir=") for override in options.overrides)
    is_named_by_user |= bool(environment_dir) and folder == _absolute_path(str(environment_dir))
    if not (is_named_by_user or options.trust):
        message = f"{folder}: {owner_name} names code (env.user_dir), which would be run"
        raise DataError(message, hint="if you trust it, give --trust, which is remembered")
    if not options.dry_run:
        path = trusted_folders_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(path.with_suffix(".lock"), timeout=5.0):
                write_json(path, [*_load_trusted_folders(), str(folder)])
        except OSError as error:
            _log.warning("%s cannot be written, so %s is asked about again: %s", path, folder, error.strerror)
    return str(folder)


def _absolute_path(user_dir: str) -> Path:
    # resolve() would follow links, and change the name under which the folder is imported.
    return Path(os.path.abspath(expand_home(user_dir)))  # noqa: PTH100


def _load_trusted_folders() -> list[str]:
    with suppress(OSError, ValueError):
        return read_record(trusted_folders_path(), list[str])
    return []

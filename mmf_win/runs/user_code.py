"""User code, which MMF imports from ``env.user_dir``.

A folder that is named by a preset or a run, and not by the user, must be trusted once.
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
    """Return the path of the list of trusted folders, a JSON file in mmfw's own folder."""
    return mmfw_home() / "trusted.json"


def resolve_user_dir(user_dir: str | None, options: CommandOptions, owner_name: str) -> str | None:
    """Return the absolute path of the user code.

    Args:
        user_dir: Folder of the code; ``None`` if not set, empty if the setting resolves to nothing.
        options: Options of the command. A folder in its overrides, or in the environment variable
            ``MMF_USER_DIR``, is trusted from now on.
        owner_name: Run or preset as named in errors.

    Returns:
        The absolute path; ``user_dir`` itself if it is ``None`` or empty.

    Raises:
        UsageError: The folder does not exist.
        DataError: The folder is neither given by the user nor trusted.
    """
    if not user_dir:  # kept if empty, or an interpolation might find a folder in the worker
        return user_dir
    folder, environment_dir = _absolute_path(user_dir), os.environ.get("MMF_USER_DIR")
    if not folder.exists() and not folder.with_name(f"{folder.name}.py").exists():
        message = f"{folder}: user code of {owner_name} not found (env.user_dir)"
        raise UsageError(message, hint="pass its folder with env.user_dir=FOLDER")
    if str(folder) in _load_trusted_folders():
        return str(folder)
    is_named_by_user = any(override.startswith("env.user_dir=") for override in options.overrides)
    is_named_by_user |= bool(environment_dir) and folder == _absolute_path(str(environment_dir))
    if not (is_named_by_user or options.trust):
        message = f"{folder}: user code of {owner_name} is not trusted (env.user_dir)"
        hint = "if you trust its source, run the same command again with --trust; mmfw remembers the folder"
        raise DataError(message, hint=hint)
    if not options.dry_run:
        path = trusted_folders_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(path.with_suffix(".lock"), timeout=5.0):
                write_json(path, [*_load_trusted_folders(), str(folder)])
        except OSError as error:
            _log.warning("%s: not writable, so the trust in %s is not remembered: %s", path, folder, error.strerror)
    return str(folder)


def _absolute_path(user_dir: str) -> Path:
    # resolve() would follow links, and change the name under which the folder is imported.
    return Path(os.path.abspath(expand_home(user_dir)))  # noqa: PTH100


def _load_trusted_folders() -> list[str]:
    with suppress(OSError, ValueError):
        return read_record(trusted_folders_path(), list[str])
    return []

"""Fixes for differences between Wine 8 and Windows, imported by the Python under Wine."""

import _winapi
import os

_MAX_TRIES = 5
_INTERNAL_ERROR = 1359  # ERROR_INTERNAL_ERROR: in Wine, the new process exited during its start
_create_process = _winapi.CreateProcess


def _refuse_symlink(src, dst, *_arguments, **_options):
    """Fail like Windows without developer mode; Wine silently creates no link."""
    raise OSError(22, "A required privilege is not held by the client", src, 1314, dst)


def _create_process_retrying(*arguments):
    """Start a process, and try again if Wine failed."""
    for _ in range(_MAX_TRIES - 1):
        try:
            return _create_process(*arguments)
        except OSError as error:
            if error.winerror != _INTERNAL_ERROR:
                raise
    return _create_process(*arguments)


os.symlink = _refuse_symlink
_winapi.CreateProcess = _create_process_retrying

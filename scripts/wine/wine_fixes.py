"""What Wine 8 does otherwise than Windows, put right in the Python that it runs."""

import _winapi
import os

_MAX_TRIES = 5
_INTERNAL_ERROR = 1359  # Wine's word for a process that ended before it had begun
_create_process = _winapi.CreateProcess


def _refuse_symlink(src, dst, target_is_directory=False, *, dir_fd=None):
    """As Windows without developer mode does; Wine makes no link and says nothing."""
    raise OSError(22, "A required privilege is not held by the client", src, 1314, dst)


def _create_process_retrying(*arguments):
    """Start a process again where Wine could not."""
    for _ in range(_MAX_TRIES - 1):
        try:
            return _create_process(*arguments)
        except OSError as error:
            if error.winerror != _INTERNAL_ERROR:
                raise
    return _create_process(*arguments)


os.symlink = _refuse_symlink
_winapi.CreateProcess = _create_process_retrying

"""What Wine 8 does otherwise than Windows, put right in the Python that it runs."""

import _winapi
import os

_TRIES = 5
_INTERNAL_ERROR = 1359  # Wine's word for a process that ended before it had begun
_create_process = _winapi.CreateProcess


def _refused(src, dst, target_is_directory=False, *, dir_fd=None):
    """As Windows without developer mode does; Wine makes no link and says nothing."""
    raise OSError(22, "A required privilege is not held by the client", src, 1314, dst)


def _started(*words):
    """Start a process again where Wine could not."""
    for _ in range(_TRIES - 1):
        try:
            return _create_process(*words)
        except OSError as error:
            if error.winerror != _INTERNAL_ERROR:
                raise
    return _create_process(*words)


os.symlink = _refused
_winapi.CreateProcess = _started

"""Errors that a user can see; each class is followed by its subclasses.

An error has a message (the problem) and a hint (the next step). The command line prints both and exits with
the exit code of the class.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mmf_win.deprecation import deprecated_aliases

#: Error numbers of missing permissions.
PERMISSION_ERRNOS = {errno.EACCES, errno.EPERM, errno.EROFS}


#: Next step if the shared memory of DataLoader workers is full.
SHM_HINT = "enlarge /dev/shm of the container (--shm-size 2g), or set training.num_workers=0"


class MmfwError(Exception):
    """Base class of all errors of mmfw; raised directly only for a bug.

    Args:
        message: The problem, with the name of the file.
        hint: The next step: a sentence or a command.
        log: Output of the attempt that ended with the error.
        prefix: Start of the message, such as ``run ID`` or ``FILE:``.
    """

    exit_code: ClassVar[int] = 1
    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None, log: Path | None = None, prefix: str = "") -> None:
        super().__init__(f"{prefix} {message}" if prefix else message)
        self.prefix, self.reason = prefix, message
        self.hint = hint or self.hint
        self.log = log

    def message_without(self, prefix: str) -> str:
        """Return the message for output that shows ``prefix`` already."""
        return self.reason if self.prefix == prefix else str(self)


class UsageError(MmfwError):
    """The command line or an argument is invalid."""

    exit_code = 2


class RunNotFoundError(UsageError):
    """The run does not exist."""


class DataError(MmfwError):
    """Data from the user cannot be used."""

    exit_code = 3


class ArchiveError(DataError):
    """An archive is damaged, malicious or not an archive."""


class DatasetError(DataError):
    """Files of the dataset are missing or inconsistent."""


class DamagedManifestError(DataError):
    """The manifest of a folder is damaged."""


class UnsafeFeaturesError(DatasetError):
    """Region features contain a pickle that could run code.

    The constructor needs only the message, so the error survives pickling out of a DataLoader worker.
    """

    hint = "use features from a source that you trust"


class DamagedFeaturesError(DatasetError):
    """An LMDB of region features is damaged, or missing without a known source."""

    hint = "run `mmfw verify features --full` to check all of them"


class NoValidationSplitError(DatasetError):
    """The dataset has no validation split."""


class UnreadableImageError(DatasetError):
    """An image of the dataset is missing or cannot be decoded.

    The constructor needs only the message, so the error survives pickling out of a DataLoader worker.
    """

    hint = (
        "replace it with an intact image; if mmfw converted the dataset, replace it in the unpacked archive "
        "and convert that folder again"
    )


class IncompleteInstallError(DatasetError):
    """An installation of files into a folder is in progress or was interrupted."""


class CheckpointError(DataError):
    """A checkpoint is missing, unreadable or from another model."""


class PasswordError(MmfwError):
    """A password is wrong or missing."""

    exit_code = 4


class PasswordRequiredError(PasswordError):
    """A password is required, but none was given."""

    hint = "pass --password or --password-file, or set MMFW_PASSWORD"


class ResourceError(MmfwError):
    """Disk space or memory is exhausted."""

    exit_code = 5


class MmfEnvironmentError(MmfwError):
    """MMF, or a package or server that a command needs, is missing or broken."""

    exit_code = 6


class TrainingError(MmfwError):
    """Training failed, or another process with a model died."""

    exit_code = 7


class InUseError(MmfwError):
    """Another process is using a file or folder that this command needs exclusively."""

    exit_code = 8
    hint = "wait until it has finished, or stop it"


class CheckFailedError(MmfwError):
    """A requested check found a problem."""

    exit_code = 9


class StoppedByUserError(MmfwError):
    """The user requested a stop."""

    exit_code = 130


if not TYPE_CHECKING:
    __getattr__ = deprecated_aliases(
        __name__,
        {"MmfError": "MmfEnvironmentError", "NoRun": "RunNotFoundError", "UnreadableImage": "UnreadableImageError"},
    )

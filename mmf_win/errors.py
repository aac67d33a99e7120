"""Every error that a user can meet; each kind is followed by its subclasses, which have its exit code.

An error carries what went wrong (its message) and what to do next (its hint). The command line prints both
and exits with the code of the class.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar

#: The numbers of the system's errors that mean that this user may not read or write there.
PERMISSION_ERRNOS = {errno.EACCES, errno.EPERM, errno.EROFS}


#: The next step if the shared memory of DataLoader workers is full.
SHM_HINT = "give a container more of /dev/shm (--shm-size 2g), or do without loaders: training.num_workers=0"


class MmfwError(Exception):
    """Base of all errors of mmfw; by itself, a bug in it.

    Args:
        message: what went wrong, naming the file.
        hint: the next step: a sentence, or a command.
        log: the output of the attempt of a run that ended with the error.
        about: what the whole message begins with, as ``run ID`` or ``FILE:``.
    """

    exit_code: ClassVar[int] = 1
    hint: str | None = None

    def __init__(
        self, message: str, *, hint: str | None = None, log: Path | None = None, prefix: str = ""
    ) -> None:
        super().__init__(f"{prefix} {message}" if prefix else message)
        self.prefix, self.reason = prefix, message
        self.hint = hint or self.hint
        self.log = log

    def message_without(self, prefix: str) -> str:
        """Return the message for a place that shows ``about`` already."""
        return self.reason if self.prefix == prefix else str(self)


class UsageError(MmfwError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class RunNotFoundError(UsageError):
    """There is no such run."""


class DataError(MmfwError):
    """What the user gave cannot be used."""

    exit_code = 3


class ArchiveError(DataError):
    """An archive is damaged, hostile or not an archive at all."""


class DatasetError(DataError):
    """Files of the dataset are missing or disagree with each other."""


class DamagedManifestError(DataError):
    """The list of hashes of a folder is damaged."""


class UnsafeFeaturesError(DatasetError):
    """Region features hold what could run code.

    The message is enough to make it, so that it comes out of a DataLoader's worker with its hint.
    """

    hint = "use features that were extracted by somebody you trust"


class DamagedFeaturesError(DatasetError):
    """An LMDB of region features is damaged, or missing where nothing is known that has it."""

    hint = "`mmfw verify features --full` reads all of them"


class NoValidationSplitError(DatasetError):
    """The dataset has no split to validate on."""


class UnreadableImageError(DatasetError):
    """A picture of the dataset is missing or cannot be decoded.

    The message is enough to make it, so that it comes out of a DataLoader's worker with its hint.
    """

    hint = (
        "replace it by an intact picture; in a dataset that mmfw converted, replace it in the unpacked "
        "archive, and convert that folder again"
    )


class IncompleteInstallError(DatasetError):
    """Only some of the new files in a folder are in their places."""


class CheckpointError(DataError):
    """A checkpoint is missing, unreadable or of another model."""


class PasswordError(MmfwError):
    """A password is wrong or missing."""

    exit_code = 4


class PasswordRequiredError(PasswordError):
    """A password is needed and none was given."""

    hint = "give it with --password, --password-file or the variable MMFW_PASSWORD"


class ResourceError(MmfwError):
    """Not enough disk or memory."""

    exit_code = 5


class MmfEnvironmentError(MmfwError):
    """MMF, or another package or server that a command needs, is missing or broken."""

    exit_code = 6


class TrainingError(MmfwError):
    """Training failed, or another process with a model died."""

    exit_code = 7


class InUseError(MmfwError):
    """Another process works with what this command needs for itself."""

    exit_code = 8
    hint = "wait until it has finished, or stop it first"


class CheckFailedError(MmfwError):
    """A check that was asked for has found a fault."""

    exit_code = 9


class StoppedByUserError(MmfwError):
    """The user asked to stop."""

    exit_code = 130

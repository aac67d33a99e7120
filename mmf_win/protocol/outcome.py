"""Outcomes of attempts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmf_win.errors import SHM_HINT, DataError
from mmf_win.files import json_bytes, remove, write_json
from mmf_win.protocol.attempt import AttemptRequest
from mmf_win.records import from_stored, read_record, stored_as, to_stored

#: Kinds of outcomes; ``disk``: the disk is full; ``untrusted``: a checkpoint could run code.
OutcomeKind = Literal[
    "ok",
    "interrupted",
    "cuda_oom",
    "host_oom",
    "disk",
    "nan",
    "killed",
    "data",
    "checkpoint",
    "untrusted",
    "config",
    "mmf",
    "network",
    "internal",
]


@dataclass(frozen=True)
class AttemptOutcome:
    """Outcome of an attempt.

    Attributes:
        kind: The kind of outcome.
        message: One line for the user; empty after success.
        hint: The next step, if the worker knows it.
        source_location: The innermost frame of the error in MMF or mmfw, as ``file:line``.
        during_validation: The error occurred in validation.
        nonfinite: For a value that is not finite, the fields of the event ``nonfinite``.
    """

    kind: OutcomeKind = field(metadata=stored_as("outcome"))
    message: str = ""
    hint: str | None = None
    source_location: str | None = field(default=None, metadata=stored_as("where"))
    during_validation: bool = field(default=False, metadata=stored_as("validating"))
    nonfinite: dict[str, Any] | None = field(default=None, metadata=stored_as("place"))

    def save(self, path: Path) -> None:
        """Write the outcome as JSON."""
        write_json(path, to_stored(self))

    def record(self, request: AttemptRequest) -> None:
        """Write the outcome and the last events to the attempt's folder; ignore errors of a full disk."""
        with suppress(OSError):
            remove(request.folder.reserve_file)
            if self.nonfinite is not None:
                request.write_event("nonfinite", **self.nonfinite)
            request.write_event("run_ended")
        with suppress(OSError):
            self.save(request.folder.outcome_file)

    def save_if_absent(self, path: Path) -> None:
        """Write the outcome unless the file exists."""
        with suppress(FileExistsError), path.open("xb") as file:
            file.write(json_bytes(to_stored(self)))

    @classmethod
    def from_exit_code(cls, code: int, process_name: str) -> AttemptOutcome:
        """Return the outcome of a process without an outcome file; a negative exit code is a signal."""
        if code == -9:
            message = f"{process_name} was killed by SIGKILL, possibly by the out-of-memory killer"
            return cls("killed", message)
        if code == -7:
            message = f"{process_name} died of a bus error, probably because /dev/shm is full"
            return cls("host_oom", message, SHM_HINT)
        return cls("internal", f"{process_name} exited unexpectedly (code {code})")

    @classmethod
    def load(cls, path: Path) -> AttemptOutcome | None:
        """Read an outcome; fields of later versions are skipped.

        Returns:
            The outcome, or None if the file does not exist.

        Raises:
            DataError: The file is invalid or cannot be read.
        """
        try:
            return from_stored(read_record(path, dict[str, Any]), cls)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            hint = "remove the file; the run then counts as killed and can be resumed"
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{path}: not the outcome of an attempt ({reason})", hint=hint) from None

"""Outcomes: how an attempt ended."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmf_win.errors import SHM_HINT, DataError
from mmf_win.files import json_bytes, remove, write_json
from mmf_win.protocol.attempt import AttemptRequest
from mmf_win.records import from_stored, read_record, stored_as, to_stored

#: How an attempt ends; ``disk``: no more can be written; ``untrusted``: a checkpoint could run code.
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
    """How an attempt ended.

    Attributes:
        message: one line for the user; empty when all went well.
        hint: what to do next, where the worker knows it.
        source_location: the innermost MMF or mmfw frame of the error, as ``file:line``.
        during_validation: whether the error came out of the scoring of the validation set.
        nonfinite: of a value that is not finite, what the event ``nonfinite`` says.
    """

    kind: OutcomeKind = field(metadata=stored_as("outcome"))
    message: str = ""
    hint: str | None = None
    source_location: str | None = field(default=None, metadata=stored_as("where"))
    during_validation: bool = field(default=False, metadata=stored_as("validating"))
    nonfinite: dict[str, Any] | None = field(default=None, metadata=stored_as("place"))

    def save(self, path: Path) -> None:
        """Write the exit as JSON."""
        write_json(path, to_stored(self))

    def record(self, request: AttemptRequest) -> None:
        """Write the exit to the attempt's folder, the only record of it, as far as a full disk allows."""
        with suppress(OSError):
            remove(request.folder.reserve_file)
            if self.nonfinite is not None:
                request.write_event("nonfinite", **self.nonfinite)
            request.write_event("run_ended")
        with suppress(OSError):
            self.save(request.folder.outcome_file)

    def save_if_absent(self, path: Path) -> None:
        """Write the exit, unless another process has written one there."""
        with suppress(FileExistsError), path.open("xb") as file:
            file.write(json_bytes(to_stored(self)))

    @classmethod
    def from_exit_code(cls, code: int, process_name: str) -> AttemptOutcome:
        """That of a process that said nothing, such as ``the worker``; a negative code is a signal."""
        if code == -9:
            return cls(
                "killed", f"{process_name} was killed from outside (kill -9), or because memory ran out"
            )
        if code == -7:
            return cls(
                "host_oom", f"{process_name} died of a bus error, most likely as /dev/shm is full", SHM_HINT
            )
        return cls("internal", f"{process_name} exited unexpectedly (code {code})")

    @classmethod
    def load(cls, path: Path) -> AttemptOutcome | None:
        """Read an exit, skipping fields of later versions; None without a file.

        Raises:
            DataError: the file holds something else, or cannot be read.
        """
        try:
            return from_stored(read_record(path, dict[str, Any]), cls)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            hint = "remove the file: its run counts as killed then, and can be resumed"
            raise DataError(f"{path}: not the record of how an attempt ended ({error})", hint=hint) from None

"""Outcomes: how an attempt ended."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mmf_win.errors import SHM_HINT, DataError
from mmf_win.files import json_bytes, remove, write_json
from mmf_win.protocol.attempt import Attempt
from mmf_win.records import read_record

#: How an attempt ends; ``disk``: no more can be written; ``untrusted``: a checkpoint could run code.
Outcome = Literal[
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
class Exit:
    """How an attempt ended.

    Attributes:
        message: one line for the user; empty when all went well.
        hint: what to do next, where the worker knows it.
        where: the innermost MMF or mmfw frame of the error, as ``file:line``.
        validating: whether the error came out of the scoring of the validation set.
        place: of a value that is not finite, what the event ``nonfinite`` says.
    """

    outcome: Outcome
    message: str = ""
    hint: str | None = None
    where: str | None = None
    validating: bool = False
    place: dict[str, Any] | None = None

    def save(self, path: Path) -> None:
        """Write the exit as JSON."""
        write_json(path, asdict(self))

    def record(self, asked: Attempt) -> None:
        """Write the exit to the attempt's folder, the only record of it, as far as a full disk allows."""
        with suppress(OSError):
            remove(asked.attempt.reserve)
            if self.place is not None:
                asked.write_event("nonfinite", **self.place)
            asked.write_event("run_ended")
        with suppress(OSError):
            self.save(asked.attempt.exit)

    def save_first(self, path: Path) -> None:
        """Write the exit, unless another process has written one there."""
        with suppress(FileExistsError), path.open("xb") as file:
            file.write(json_bytes(asdict(self)))

    @classmethod
    def of_death(cls, code: int, who: str) -> Exit:
        """That of a process that said nothing, such as ``the worker``; a negative code is a signal."""
        if code == -9:
            return cls("killed", f"{who} was killed from outside (kill -9), or because memory ran out")
        if code == -7:
            return cls("host_oom", f"{who} died of a bus error, most likely as /dev/shm is full", SHM_HINT)
        return cls("internal", f"{who} exited unexpectedly (code {code})")

    @classmethod
    def load(cls, path: Path) -> Exit | None:
        """Read an exit, skipping fields of later versions; None without a file.

        Raises:
            DataError: the file holds something else, or cannot be read.
        """
        try:
            return read_record(path, cls)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            hint = "remove the file: its run counts as killed then, and can be resumed"
            raise DataError(f"{path}: not the record of how an attempt ended ({error})", hint=hint) from None

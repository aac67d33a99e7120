"""A model process that answers requests; :mod:`mmf_win.protocol.serving` is the child's side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Client
from typing import Any

from mmf_win.errors import MmfwError
from mmf_win.files import json_bytes, read_tail
from mmf_win.protocol import AttemptRequest, EventReader
from mmf_win.runs.outcomes import determine_outcome, outcome_error
from mmf_win.supervise import ChildExit, ProcessTree, count_oom_kills

_POLL_SECONDS = 0.1  # on Windows, Ctrl+C does not interrupt a longer wait
_EXIT_TIMEOUT_SECONDS = 10.0  # for a child that closed its connection to save its outcome
_LOG_TAIL_BYTES = 2000


class ModelProcess:
    """A child process that has loaded its model and answers until it is closed, or this process ends.

    Args:
        attempt: Request of the attempt; names the files of the process.
        command: Command that starts the process.
        environment: Environment variables of the process.

    Raises:
        MmfwError: The process ended before it could answer.
    """

    def __init__(self, attempt: AttemptRequest, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._attempt, self._initial_oom_kills = attempt, count_oom_kills()
        with attempt.log.open("ab") as output:
            self._child = ProcessTree(
                command, stop_file=attempt.folder.stop_file, grace=0.0, output=output, inherited_fds=(), env=environment
            )
        try:
            with suppress(OSError):  # the process has just died
                if address := self._wait_for_address():
                    self._connection = Client(address)
                    return
        except BaseException:
            self._child.close()
            raise
        raise self.exit_error()

    def _wait_for_address(self) -> str | None:
        events, is_over = EventReader(self._attempt.events), False
        while not is_over:
            is_over = self._child.has_exited(_POLL_SECONDS)
            for event in events.poll():
                if event["kind"] == "serving":
                    return str(event["address"])
        return None

    def predict_rows(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Send rows to the process and return its answer.

        Returns:
            The answer (see :mod:`mmf_win.protocol.serving`).

        Raises:
            EOFError: The process has died.
            OSError: The process has died.
        """
        self._connection.send_bytes(json_bytes(rows))
        while not self._connection.poll(_POLL_SECONDS):
            pass
        answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return answer

    def exit_error(self) -> MmfwError:
        """Return the error for a process that has died, with the end of its log, which will be removed."""
        self._attempt.folder.path.mkdir(parents=True, exist_ok=True)  # it may have been removed
        try:
            self._child.has_exited(_EXIT_TIMEOUT_SECONDS)
        finally:
            exit_code = self._child.close()
        status = ChildExit(exit_code, stop_requested=False, killed=False)
        outcome = determine_outcome(self._attempt, status, memory_ran_out=count_oom_kills() != self._initial_oom_kills)
        log = self._attempt.log
        tail = read_tail(log, _LOG_TAIL_BYTES).decode(errors="replace").strip() if log.exists() else ""
        output_hint = f"the end of its output:\n{tail}" if tail else "the process printed nothing"
        error = outcome_error(outcome, self._attempt, output_hint)
        error.log = None
        return error

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._connection.close()
        self._child.close()

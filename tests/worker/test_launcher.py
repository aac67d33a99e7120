"""The outcome of several ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from mmf_win.worker.launcher import find_first_cause


@pytest.mark.skipif(sys.platform == "win32", reason="exit codes on Windows do not show signals")
@pytest.mark.parametrize(
    ("recorded", "exit_codes", "outcome", "message"),
    [
        (AttemptOutcome("cuda_oom", "full"), {0: 1, 1: 1}, "cuda_oom", "full"),
        (AttemptOutcome("cuda_oom", "full"), {0: -6, 1: 1}, "cuda_oom", "full"),
        (AttemptOutcome("interrupted", "stopped"), {0: 1, 1: -9}, "interrupted", "stopped"),
        (AttemptOutcome("killed", "another process exited"), {0: 1, 1: -9}, "killed", "process 1 was killed"),
        (AttemptOutcome("killed", "another process exited"), {0: -6, 1: -9}, "killed", "process 1 was killed"),
        (AttemptOutcome("killed", "another process exited"), {0: 1, 1: -6}, "internal", "process 1"),
        (AttemptOutcome("internal", "a lost connection"), {0: 1, 2: -11}, "internal", "process 2"),
        (AttemptOutcome("killed", "another machine's process exited"), {0: 1}, "killed", "another machine's"),
        (None, {1: -7}, "host_oom", "process 1"),
        (None, {0: 3}, "internal", "process 0"),
    ],
    ids=str,
)
def test_first_cause_is_the_recorded_outcome_unless_a_rank_was_killed(
    tmp_path: Path, recorded: AttemptOutcome | None, exit_codes: dict[int, int], outcome: str, message: str
) -> None:
    request = AttemptRequest(TrainTask(), "m", "mmf", str(tmp_path))
    if recorded is not None:
        recorded.save_if_absent(request.folder.helper_outcome_file)
        AttemptOutcome("internal", "a later failure").save_if_absent(request.folder.helper_outcome_file)
    result = find_first_cause(request, exit_codes)
    assert result.kind == outcome and message in result.message

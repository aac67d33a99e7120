"""Which of several processes' ends is the outcome of all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from mmf_win.worker.launcher import find_first_cause


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows no exit code tells of a signal")
@pytest.mark.parametrize(
    ("said", "codes", "outcome", "message"),
    [
        (AttemptOutcome("cuda_oom", "full"), {0: 1, 1: 1}, "cuda_oom", "full"),
        (AttemptOutcome("cuda_oom", "full"), {0: -6, 1: 1}, "cuda_oom", "full"),
        (AttemptOutcome("interrupted", "stopped"), {0: 1, 1: -9}, "interrupted", "stopped"),
        (
            AttemptOutcome("killed", "another process has ended"),
            {0: 1, 1: -9},
            "killed",
            "process 1 was killed",
        ),
        (
            AttemptOutcome("killed", "another process has ended"),
            {0: -6, 1: -9},
            "killed",
            "process 1 was killed",
        ),
        (AttemptOutcome("killed", "another process has ended"), {0: 1, 1: -6}, "internal", "process 1"),
        (AttemptOutcome("internal", "a lost connection"), {0: 1, 2: -11}, "internal", "process 2"),
        (AttemptOutcome("killed", "another machine's has ended"), {0: 1}, "killed", "another machine's"),
        (None, {1: -7}, "host_oom", "process 1"),
        (None, {0: 3}, "internal", "process 0"),
    ],
    ids=str,
)
def test_the_first_cause_is_what_a_process_said_unless_one_was_killed(
    tmp_path: Path, said: AttemptOutcome | None, codes: dict[int, int], outcome: str, message: str
) -> None:
    request = AttemptRequest(TrainTask(), "m", "mmf", str(tmp_path))
    if said is not None:
        said.save_if_absent(request.folder.helper_outcome_file)
        AttemptOutcome("internal", "of a later one").save_if_absent(request.folder.helper_outcome_file)
    end = find_first_cause(request, codes)
    assert end.kind == outcome and message in end.message

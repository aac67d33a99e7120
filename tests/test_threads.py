"""Waiting for results of threads."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from mmf_win.threads import wait_for_result


def test_timeout_error_raised_by_the_job_is_not_waited_for() -> None:
    future: Future[int] = Future()
    future.set_exception(TimeoutError("the drive does not answer"))
    with pytest.raises(TimeoutError, match="drive"):
        wait_for_result(future)

"""Threads that work for the one that started them."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from mmf_win.threads import wait_for_result


def test_a_timeout_that_the_job_itself_has_raised_is_no_reason_to_wait() -> None:
    future: Future[int] = Future()
    future.set_exception(TimeoutError("the drive does not answer"))
    with pytest.raises(TimeoutError, match="drive"):
        wait_for_result(future)

"""What a log says about imports."""

from __future__ import annotations

import pytest

from mmf_win.runs.profiling import PYTHON, imports_of

# The beginning and some of the rest of what Python 3.11 writes, between lines of MMF's.
LOG = """\
import time: self [us] | cumulative | imported package
import time:       900 |        900 | torch
a worker that failed
import time: self [us] | cumulative | imported package
import time:       178 |        178 |   _io
import time:        28 |         28 |   marshal
import time:       253 |        700 | encodings
import time:   1200000 |    1300000 | torch
import time:    300000 |     300000 |   torch.nn.functional
2026-11-23T15:59:11 | mmf.trainers: Loading datasets
import time:      4000 |      4000 |     mmf_win.worker.hooks.clock
import time:     52000 |      52000 |   mmf
"""


def test_imports_are_summed_by_package_without_those_of_an_earlier_python() -> None:
    found = imports_of(LOG)
    assert list(found) == ["torch", "mmf", "mmf_win", PYTHON]
    assert found == pytest.approx({"torch": 1.5, "mmf": 0.052, "mmf_win": 0.004, PYTHON: 0.000459})


def test_a_log_without_times_has_none() -> None:
    assert imports_of("nothing\n") == {}

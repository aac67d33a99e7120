"""The second pass over rows with a non-finite value, in a model of one layer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
nonfinite = LazyModule("mmf_win.worker.hooks.nonfinite")
outcome = LazyModule("mmf_win.worker.outcome")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def test_error_in_the_second_pass_is_printed_and_the_first_error_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    diverged = outcome.DivergedError("the loss is not a number", 0, "loss")
    errors = iter([diverged, RuntimeError("of the second pass")])

    def step(share: float, rows: object) -> None:
        raise next(errors)

    replay = nonfinite.Replay(SimpleNamespace(model=torch.nn.Linear(2, 1)))
    with pytest.raises(outcome.DivergedError, match="the loss is not a number"):
        replay.wrap_step(step)(1.0, {"x": torch.ones(1, 2)})
    assert "RuntimeError: of the second pass" in capsys.readouterr().err

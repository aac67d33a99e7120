"""Finding how many rows fit, with a fake meter in the place of a GPU's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from mmf_win.worker.hooks.micro_batch import LargestFit, meter_of  # noqa: E402

pytestmark = pytest.mark.torch


@dataclass
class FakeMeter:
    """Of a GPU on which the weights take 1000 bytes, and each row 100.

    Attributes:
        memory: bytes of the GPU.
        rows: what goes through the model at once.
    """

    memory: int
    rows: int = 0
    restarts: int = 0

    def restart(self) -> None:
        self.restarts += 1

    def peak(self) -> int:
        return 1000 + 100 * self.rows

    def limit(self) -> int:
        return self.memory


def found(batch: int, memory: int) -> tuple[int, int]:
    """How many rows it comes to, and after how many updates."""
    meter = FakeMeter(memory)
    finder = LargestFit(batch, meter)
    for update in range(1, 10):
        meter.rows = finder.rows
        finder.update_begins()
        if finder.update_ends():
            assert meter.restarts == update
            return finder.rows, update
    raise AssertionError("it has no end")


@pytest.mark.parametrize(
    ("batch", "memory", "rows", "updates"),
    [
        (32, 100_000, 32, 3),
        (32, 4_000, 16, 3),  # 26 rows would fit, but two parts are to be equal
        (32, 2_900, 16, 3),  # all but a tenth of it, which the allocator cannot use
        (32, 2_800, 11, 3),  # three parts
        (12, 2_000, 6, 3),
        (7, 1_800, 4, 3),
        (31, 4_000, 16, 3),
        (32, 500, 1, 3),
        (2, 100_000, 2, 3),
        (1, 500, 1, 1),  # in which there is nothing to look for
    ],
)
def test_the_largest_of_equal_parts_that_fit_is_found_in_three_updates_at_most(
    batch: int, memory: int, rows: int, updates: int
) -> None:
    assert found(batch, memory) == (rows, updates)


def test_a_cpu_has_no_limit_to_look_for() -> None:
    assert meter_of(torch.device("cpu")) is None

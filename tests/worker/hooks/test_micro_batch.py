"""Finding how many rows fit, with fake figures in the place of a GPU's."""

from __future__ import annotations

import pytest

from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
micro_batch = LazyModule("mmf_win.worker.hooks.micro_batch")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def found(monkeypatch: pytest.MonkeyPatch, batch: int, memory: int) -> tuple[int, int]:
    """How many rows it comes to, and after how many updates, on a fake GPU with so many bytes of ``memory``.

    The weights take 1000 of them, each row 100, and 400 are those that torch holds.
    """
    restarts: list[object] = []
    finder = micro_batch.MicroBatchSearch(batch, torch.device("cuda", 1))
    fake = {
        "reset_peak_memory_stats": restarts.append,
        "max_memory_allocated": lambda device: 1000 + 100 * finder.rows if device == restarts[-1] else 0,
        "mem_get_info": lambda _device: (memory - 400, 100_000),
        "memory_reserved": lambda _device: 400,
    }
    for name, figure in fake.items():
        monkeypatch.setattr(torch.cuda, name, figure)
    for update in range(1, 10):
        finder.on_update_start()
        if finder.on_update_end():
            assert restarts == [torch.device("cuda", 1)] * update
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
    monkeypatch: pytest.MonkeyPatch, batch: int, memory: int, rows: int, updates: int
) -> None:
    assert found(monkeypatch, batch, memory) == (rows, updates)

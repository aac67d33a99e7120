"""The search for the largest micro-batch, with fake measurements of a GPU."""

from __future__ import annotations

import pytest

from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
micro_batch = LazyModule("mmf_win.worker.hooks.micro_batch")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def search_rows(monkeypatch: pytest.MonkeyPatch, batch: int, memory: int) -> tuple[int, int]:
    """Return the rows that the search finds and its updates, on a fake GPU with ``memory`` bytes.

    The weights take 1000 bytes and each row 100; torch has reserved 400.
    """
    restarts: list[object] = []
    search = micro_batch.MicroBatchSearch(batch, torch.device("cuda", 1))
    fakes = {
        "reset_peak_memory_stats": restarts.append,
        "max_memory_allocated": lambda device: 1000 + 100 * search.rows if device == restarts[-1] else 0,
        "mem_get_info": lambda _device: (memory - 400, 100_000),
        "memory_reserved": lambda _device: 400,
    }
    for name, function in fakes.items():
        monkeypatch.setattr(torch.cuda, name, function)
    for update in range(1, 10):
        search.on_update_start()
        if search.on_update_end():
            assert restarts == [torch.device("cuda", 1)] * update
            return search.rows, update
    raise AssertionError("the search does not end")


@pytest.mark.parametrize(
    ("batch", "memory", "rows", "updates"),
    [
        (32, 100_000, 32, 3),
        (32, 4_000, 16, 3),  # 26 rows would fit, but the two parts should be equal
        (32, 2_900, 16, 3),  # the allocator cannot use a tenth of the memory
        (32, 2_800, 11, 3),  # three parts
        (12, 2_000, 6, 3),
        (7, 1_800, 4, 3),
        (31, 4_000, 16, 3),
        (32, 500, 1, 3),
        (2, 100_000, 2, 3),
        (1, 500, 1, 1),  # nothing to search
    ],
)
def test_largest_fitting_part_is_found_in_three_updates(
    monkeypatch: pytest.MonkeyPatch, batch: int, memory: int, rows: int, updates: int
) -> None:
    assert search_rows(monkeypatch, batch, memory) == (rows, updates)

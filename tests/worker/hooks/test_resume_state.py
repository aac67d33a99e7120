"""The position of training in the rows, with torch's DataLoader and a fake trainer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch

_ROWS = 14


def make_loader(batch_size: int, rows: int = _ROWS, workers: int = 0) -> Any:
    import torch

    return torch.utils.data.DataLoader(
        list(range(rows)),  # type: ignore[arg-type]
        batch_size,
        shuffle=True,
        num_workers=workers,
        collate_fn=list,
    )


def train_epoch(sampler: Any, trainer: Any, batches: Any, count: int | None = None) -> list[int]:
    """Return the rows of an epoch, or of its first ``count`` batches, counting batches as MMF does."""
    trainer.current_epoch += 1
    rows: list[int] = []
    for batch in batches:
        trainer.current_iteration += 1
        rows += batch
        if count is not None and trainer.current_iteration % count == 0:
            break
    return rows


def start_epoch(seed: int, loader: Any, iteration: int = 0) -> tuple[Any, Any]:
    import torch

    from mmf_win.worker.hooks.resume_state import ResumableSampler

    torch.manual_seed(seed)
    trainer = SimpleNamespace(current_iteration=iteration, current_epoch=0)
    return ResumableSampler(loader, trainer), trainer


@pytest.mark.parametrize(("batch_size", "workers"), [(4, 0), (4, 2), (3, 0)])
def test_row_order_continues_within_an_epoch_with_other_batch_sizes(batch_size: int, workers: int) -> None:
    """Rows that were used are not loaded again, whatever the state of the generator is."""
    full_loader = make_loader(4)
    expected = train_epoch(*start_epoch(1, full_loader), full_loader)
    assert sorted(expected) == list(range(_ROWS)) and expected != sorted(expected)
    first = make_loader(4, workers=workers)
    sampler, trainer = start_epoch(1, first)
    used_rows = train_epoch(sampler, trainer, first, count=2)
    assert used_rows == expected[:8]
    position = sampler.state_dict()
    second = make_loader(batch_size, workers=workers)
    sampler, trainer = start_epoch(2, second, iteration=trainer.current_iteration)
    assert sampler.load_state_dict(position)
    assert sampler.state_dict() == position, "the position must not change before the first row"
    assert train_epoch(sampler, trainer, second) == expected[8:]
    assert trainer.current_epoch == 1
    assert sampler.state_dict()["rows"] == _ROWS


@pytest.mark.parametrize(
    ("before", "count", "remaining"), [(4, 0, 4), (4, 1, 3), (6, 1, 2), (5, 1, 3), (7, 1, 2), (7, 2, 0)]
)
def test_resumed_epoch_has_the_announced_number_of_batches(before: int, count: int, remaining: int) -> None:
    """Batches of 4 rows follow ``count`` batches of another size."""
    first = make_loader(before)
    sampler, trainer = start_epoch(1, first)
    if count:
        train_epoch(sampler, trainer, first, count=count)
    position = sampler.state_dict()
    second = make_loader(4)
    sampler, trainer = start_epoch(2, second)
    if position is not None:
        assert sampler.load_state_dict(position)
    assert sampler.batches_left() == remaining
    assert len([*second]) == remaining


def test_ranks_count_each_row_once_and_repeated_rows_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of three batches has two rows for three ranks."""
    from mmf_win.worker.hooks import ranks, resume_state

    counted: list[int] = []
    shares: list[list[tuple[float, int]]] = []
    for module in (ranks, resume_state):
        monkeypatch.setattr(module, "get_world_size", lambda: 3)
    monkeypatch.setattr(resume_state, "broadcast_from_first", lambda value: value)
    for rank in range(3):
        monkeypatch.setattr(ranks, "get_rank", lambda rank=rank: rank)
        rank_loader = make_loader(2)
        sampler, trainer = start_epoch(1, rank_loader)
        assert sampler.batches_left() == 3
        shares.append([])
        for rows in rank_loader:
            trainer.current_iteration += 1
            assert rows, "each rank needs at least one row"
            weight, total_rows = sampler.batch_share()
            assert weight == pytest.approx(len(rows) * 3 / total_rows if weight else 0)
            counted += rows if weight else []
            shares[-1].append((weight, total_rows))
    assert sorted(counted) == list(range(_ROWS))
    assert shares == [[(1.0, 6), (1.0, 6), (weight, 2)] for weight in (0.0, 1.5, 1.5)]


def test_position_is_rejected_if_the_number_of_rows_has_changed() -> None:
    first = make_loader(4)
    sampler, trainer = start_epoch(1, first)
    train_epoch(sampler, trainer, first, count=1)
    other_sampler, _ = start_epoch(1, make_loader(4, rows=_ROWS + 1))
    assert not other_sampler.load_state_dict(sampler.state_dict())

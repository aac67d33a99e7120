"""Where training is among the rows: torch's own DataLoader, and a fake trainer that counts as MMF's does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch

_ROWS = 14


def loader(batch_size: int, rows: int = _ROWS, workers: int = 0) -> Any:
    import torch

    return torch.utils.data.DataLoader(
        list(range(rows)),  # type: ignore[arg-type]
        batch_size,
        shuffle=True,
        num_workers=workers,
        collate_fn=list,
    )


def trained(order: Any, trainer: Any, batches: Any, count: int | None = None) -> list[int]:
    """The rows of a pass, or of its first batches, counted as MMF counts them."""
    trainer.current_epoch += 1
    rows: list[int] = []
    for batch in batches:
        trainer.current_iteration += 1
        rows += batch
        if count is not None and trainer.current_iteration % count == 0:
            break
    return rows


def begin(seed: int, loader: Any, iteration: int = 0) -> tuple[Any, Any]:
    import torch

    from mmf_win.worker.hooks.resume_state import ResumableSampler

    torch.manual_seed(seed)
    trainer = SimpleNamespace(current_iteration=iteration, current_epoch=0)
    return ResumableSampler(loader, trainer), trainer


@pytest.mark.parametrize(("batch_size", "workers"), [(4, 0), (4, 2), (3, 0)])
def test_the_order_goes_on_within_an_epoch_also_with_other_batches(batch_size: int, workers: int) -> None:
    """Without loading what was seen, and whatever the generator's state is by then."""
    whole = loader(4)
    expected = trained(*begin(1, whole), whole)
    assert sorted(expected) == list(range(_ROWS)) and expected != sorted(expected)
    first = loader(4, workers=workers)
    order, trainer = begin(1, first)
    seen = trained(order, trainer, first, count=2)
    assert seen == expected[:8]
    position = order.state_dict()
    second = loader(batch_size, workers=workers)
    order, trainer = begin(2, second, iteration=trainer.current_iteration)
    assert order.load_state_dict(position)
    assert order.state_dict() == position, "as long as nothing has been drawn"
    assert trained(order, trainer, second) == expected[8:]
    assert trainer.current_epoch == 1
    assert order.state_dict()["rows"] == _ROWS


@pytest.mark.parametrize(
    ("before", "count", "left"),
    [(4, 0, 4), (4, 1, 3), (6, 1, 2), (5, 1, 3), (7, 1, 2), (7, 2, 0)],
)
def test_a_resumed_pass_has_as_many_batches_as_are_announced(before: int, count: int, left: int) -> None:
    """Batches of 4 rows follow `count` batches of another size."""
    first = loader(before)
    order, trainer = begin(1, first)
    if count:
        trained(order, trainer, first, count=count)
    position = order.state_dict()
    second = loader(4)
    order, trainer = begin(2, second)
    if position is not None:
        assert order.load_state_dict(position)
    assert order.batches_left() == left
    assert len([*second]) == left


def test_the_shares_of_ranks_count_each_row_once_and_a_repeated_row_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last of three batches has two rows for three ranks."""
    from mmf_win.worker.hooks import ranks, resume_state

    counted: list[int] = []
    shares: list[list[tuple[float, int]]] = []
    for module in (ranks, resume_state):
        monkeypatch.setattr(module, "get_world_size", lambda: 3)
    monkeypatch.setattr(resume_state, "broadcast_from_first", lambda value: value)
    for rank in range(3):
        monkeypatch.setattr(ranks, "get_rank", lambda rank=rank: rank)
        own = loader(2)
        order, trainer = begin(1, own)
        assert order.batches_left() == 3
        shares.append([])
        for rows in own:
            trainer.current_iteration += 1
            assert rows, "each rank needs a row to calculate with"
            weight, of_all = order.batch_share()
            assert weight == pytest.approx(len(rows) * 3 / of_all if weight else 0)
            counted += rows if weight else []
            shares[-1].append((weight, of_all))
    assert sorted(counted) == list(range(_ROWS))
    assert shares == [[(1.0, 6), (1.0, 6), (weight, 2)] for weight in (0.0, 1.5, 1.5)]


def test_among_another_number_of_rows_nothing_goes_on() -> None:
    first = loader(4)
    order, trainer = begin(1, first)
    trained(order, trainer, first, count=1)
    other, _ = begin(1, loader(4, rows=_ROWS + 1))
    assert not other.load_state_dict(order.state_dict())

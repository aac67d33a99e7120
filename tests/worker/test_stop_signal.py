"""A stop of several ranks, with real processes and collectives of torch and a fake trainer of MMF."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from tests.worlds.tools import is_wine

pytestmark = [pytest.mark.torch, pytest.mark.skipif(is_wine(), reason="gloo dies in its first all_reduce under Wine")]

_RANKS = 2
_STOP_UPDATE = 3


def _run_rank(rank: int, folder: str, stopped_rank: int) -> None:
    """Run one rank of an endless training; ``stopped_rank`` sees the stop request before the others."""
    import torch

    from mmf_win.worker.hooks import session
    from mmf_win.worker.hooks.observer import Observer
    from mmf_win.worker.outcome import StopRequested
    from mmf_win.worker.stop_signal import StopSignal

    root = Path(folder)
    rendezvous = f"file://{root / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=_RANKS)
    stop = StopSignal(root / f"stop-of-{rank}")
    observer = Observer(AttemptRequest(TrainTask(), "m", "mmf", str(root / "attempts" / "1")), stop)
    trainer = SimpleNamespace(num_updates=0, current_iteration=0, model=torch.nn.Linear(1, 1))
    trainer.device = torch.device("cpu")
    trainer.config = SimpleNamespace(training=SimpleNamespace(num_workers=0, seed=1, max_updates=None))
    micro: Any = SimpleNamespace(batch_size=1, rows=1, is_known_fit=False, fit_key="", search=None)

    def save(update: int, iteration: int, update_best: bool) -> None:
        if rank == 0:  # like in MMF
            (root / "saved").write_text(str(update), encoding="utf-8")

    resume_state = SimpleNamespace(seed_rank=lambda: None)
    checkpoint = SimpleNamespace(save=save, resume_state=resume_state)
    session.MicroBatchSizer = lambda *_: micro  # type: ignore[assignment, misc]
    training = session.TrainingSession(observer, trainer, checkpoint, "fp32")
    try:
        while True:
            trainer.num_updates += 1
            torch.distributed.all_reduce(torch.ones(1))
            if rank == stopped_rank and trainer.num_updates == _STOP_UPDATE:
                (root / f"stop-of-{rank}").touch()
            if trainer.num_updates > 2 * _STOP_UPDATE:
                break
            training.on_update_end()
    except StopRequested:
        # Rank 0 has saved before any rank gets here.
        updates = f"{trainer.num_updates} {(root / 'saved').read_text(encoding='utf-8')}"
        (root / f"left-{rank}").write_text(updates, encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # gloo aborts a process that exits while its threads run


@pytest.mark.parametrize("stopped_rank", range(_RANKS))
def test_all_ranks_stop_at_the_same_update(tmp_path: Path, stopped_rank: int) -> None:
    import torch

    torch.multiprocessing.spawn(_run_rank, args=(str(tmp_path), stopped_rank), nprocs=_RANKS)
    results = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("left-*"))]
    assert results == [f"{_STOP_UPDATE} {_STOP_UPDATE}"] * _RANKS

"""Measure updates of a small BERT with and without the state that mmfw keeps to repeat an update.

python scripts/bench_nonfinite.py

Both alternate within one process, so that other load on the machine affects both.
"""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from _bench import format_spread, make_parser, print_table

from mmf_win import compat
from mmf_win.upstream.install import require_mmf


def main() -> None:
    """Measure updates in turn and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--updates", type=int, default=200, help="of each")
    options = parser.parse_args()
    compat.install(require_mmf().root)
    from mmf.common.sample import SampleList
    from torch import nn
    from transformers import BertConfig, BertModel

    from mmf_win.worker.hooks.nonfinite import Replay

    torch.manual_seed(1)
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024}
    model = BertModel(BertConfig(vocab_size=1000, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    replay = Replay(SimpleNamespace(model=model, scaler=torch.amp.GradScaler("cpu", enabled=False)))
    rows = SampleList()
    rows.add_field("input_ids", torch.randint(1000, (8, 32)))
    for number in range(20):  # about the number of fields in MMF's batches
        rows.add_field(f"field_{number}", torch.zeros(8, 32))

    def step(share: float, rows: Any) -> None:
        (model(rows["input_ids"]).pooler_output.square().mean() * share).backward()

    def update(with_replay: bool) -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        (replay.wrap_step(step) if with_replay else step)(1.0, rows)
        with replay.check_gradient_norm() if with_replay else nullcontext():
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return 1000 * (time.perf_counter() - start)

    pairs = []
    for number in range(options.updates + 5):
        first = update(with_replay=number % 2 == 1)  # each is the first of a pair in turn
        second = update(with_replay=number % 2 == 0)
        pairs.append((second, first) if number % 2 else (first, second))
    without, with_replay_times = zip(*pairs[5:], strict=True)  # the first pairs are a warm-up
    low, median, high = statistics.quantiles([b / a for a, b in pairs[5:]], n=4)
    header = ("update, ms", "times as long: median of pairs (quartiles)")
    ratio = f"{median:.3f} ({low:.3f}–{high:.3f})"
    print_table(
        "",
        header,
        [("without", format_spread(without), ""), ("as mmfw trains", format_spread(with_replay_times), ratio)],
    )


if __name__ == "__main__":
    main()

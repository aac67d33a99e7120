"""Finds the largest micro-batch that fits into a GPU's memory, by measuring the first updates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

# The allocator cannot use the last bit, as what is free lies in pieces.
_USABLE = 0.9


@dataclass(frozen=True)
class Meter:
    """Measures this process's memory on a GPU, in bytes, by torch's own figures."""

    device: torch.device

    def restart(self) -> None:
        """Forget the peak so far."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """The most that was allocated since."""
        return torch.cuda.max_memory_allocated(self.device)

    def limit(self) -> int:
        """What is free, and what torch holds already."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return free + torch.cuda.memory_reserved(self.device)


def meter_of(device: torch.device) -> Meter | None:
    """What measures a device; None for a CPU, whose memory has no limit that could be measured."""
    return Meter(device) if device.type == "cuda" else None


class LargestFit:
    """Finds the most rows that fit, from the peaks of two ordinary updates.

    Memory grows linearly with the rows. The first update, during which the optimizer makes its
    state, is not measured. The next update uses the result; if it does not fit, a retry has a smaller one.

    Args:
        batch: rows of the batch.
        meter: of the GPU.

    Attributes:
        rows: micro-batch of the next update.
    """

    def __init__(self, batch: int, meter: Meter) -> None:
        self.rows = max(1, batch // 8)
        self._batch, self._meter, self._warm = batch, meter, False
        self._peaks: dict[int, int] = {}  # bytes, by rows

    def update_begins(self) -> None:
        """Measure from here."""
        self._meter.restart()

    def update_ends(self) -> bool:
        """Measure to here; True when it is found."""
        if not self._warm:
            self._warm = True
            return self._batch == 1
        self._peaks[self.rows] = self._meter.peak()
        self.rows = self.rows * 2 if len(self._peaks) == 1 else self._most()
        return len(self._peaks) == 2

    def _most(self) -> int:
        (few, low), (many, high) = self._peaks.items()
        a_row = (high - low) / (many - few)
        usable = self._meter.limit() * _USABLE
        # A batch is cut into parts that are as equal as can be, and the largest has to fit.
        largest = {math.ceil(self._batch / parts) for parts in range(1, self._batch + 1)}
        return max((rows for rows in largest if low + (rows - few) * a_row <= usable), default=1)

"""Finds the largest micro-batch that fits into a GPU's memory, by measuring the first updates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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


@dataclass
class LargestFit:
    """Finds the most rows that fit, from the peaks of two ordinary updates.

    Memory grows linearly with the rows. The first update, during which the optimizer makes its
    state, is not measured. The next update uses the result; if it does not fit, a retry has a smaller one.

    Args:
        batch: rows of the batch.
        meter: of the GPU.

    Attributes:
        rows: micro-batch of the next update.
        peaks: bytes, by rows.
    """

    batch: int
    meter: Meter
    rows: int = field(init=False)
    peaks: dict[int, int] = field(default_factory=dict)
    _warm: bool = False

    def __post_init__(self) -> None:
        self.rows = max(1, self.batch // 8)

    def update_begins(self) -> None:
        """Measure from here."""
        self.meter.restart()

    def update_ends(self) -> bool:
        """Measure to here; True when it is found."""
        if not self._warm:
            self._warm = True
            return self.batch == 1
        self.peaks[self.rows] = self.meter.peak()
        self.rows = self.rows * 2 if len(self.peaks) == 1 else self._most()
        return len(self.peaks) == 2

    def _most(self) -> int:
        (few, low), (many, high) = self.peaks.items()
        a_row = (high - low) / (many - few)
        usable = self.meter.limit() * _USABLE
        # A batch is cut into parts that are as equal as can be, and the largest has to fit.
        largest = {math.ceil(self.batch / parts) for parts in range(1, self.batch + 1)}
        return max((rows for rows in largest if low + (rows - few) * a_row <= usable), default=1)

"""A clock that knows in which phase of training each second was spent."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Timed: TypeAlias = tuple[Any, str, str]
"""A class, the name of its method, and the phase that each call of it is."""

ASIDE = frozenset({"validation", "checkpoint"})
"""Phases that no update consists of; what happens in them belongs to them alone."""


@dataclass(frozen=True)
class Lap:
    """What was spent between two readings, by phase; ``other`` is outside of all phases.

    Attributes:
        seconds: of each phase.
        cpu: seconds in which this thread ran.
        begun: how often each phase began.
        waits: for data, on a GPU: two of :attr:`Clock.gpu_event` around each.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    begun: Counter[str] = field(default_factory=Counter)
    waits: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def of_update(self) -> dict[str, float]:
        """Seconds of each phase that an update consists of."""
        return {phase: spent for phase, spent in self.seconds.items() if phase not in ASIDE}


class Clock:
    """Charges each second to the innermost phase that is open.

    Attributes:
        now: the time in seconds.
        phase: the innermost one that is open.
        gpu_event: makes what a GPU notes its own time in, when it has done what it was given before. It works
            on while its process waits for data, so the process's clock would count time in which nothing is
            lost. None where that is not to be known.
    """

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.perf_counter
        self.phase = "other"
        self._lap = Lap()
        self._last, self._last_cpu = self.now(), time.thread_time()
        self.gpu_event: Callable[[], Any] | None = None
        self._last_event: Any = None

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Around a phase, or as a decorator of what is one each time that it is called."""
        self._charge()
        outer = self.phase
        if outer not in ASIDE:
            self.phase = phase
            self._lap.begun[phase] += 1
        try:
            yield
        finally:
            self._charge()
            self.phase = outer

    def lap(self) -> Lap:
        """What was spent since this was called last."""
        self._charge()
        lap, self._lap = self._lap, Lap()
        return lap

    def _charge(self) -> None:
        now, cpu = self.now(), time.thread_time()
        self._lap.seconds[self.phase] += now - self._last
        self._lap.cpu[self.phase] += cpu - self._last_cpu
        self._last, self._last_cpu = now, cpu
        if self.gpu_event is not None and self.phase not in ASIDE:
            event = self.gpu_event()
            event.record()
            if self.phase == "data":
                self._lap.waits.append((self._last_event, event))
            self._last_event = event

    def time(self, methods: Iterable[Timed]) -> None:
        """Make each call of some methods the phase that stands beside it, from now on."""
        for owner, name, phase in methods:
            setattr(owner, name, self.during(phase)(getattr(owner, name)))

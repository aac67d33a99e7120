"""What the checks of a model and its rows say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class CheckResult:
    """What a check of a training found.

    Attributes:
        check: its name.
        text: what was found.
        advice: what that means, and what to do.
        memes: the ids that it is about, or was tried with.
        seconds: what the check took.
    """

    verdict: Verdict
    check: str
    text: str
    advice: str | None = None
    memes: list[str] = field(default_factory=list)
    seconds: float = 0.0

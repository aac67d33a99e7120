"""Results of the checks of a model and its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class CheckResult:
    """Result of one check before training.

    Attributes:
        check: Name of the check.
        text: The finding.
        advice: Its meaning and what to do.
        memes: IDs that the finding is about, or that the check used.
        seconds: Duration of the check.
    """

    verdict: Verdict
    check: str
    text: str
    advice: str | None = None
    memes: list[str] = field(default_factory=list)
    seconds: float = 0.0

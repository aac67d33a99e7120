"""Results of the checks of a model and its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mmf_win.records import stored_as

Verdict = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class CheckResult:
    """Result of one check before training.

    Attributes:
        check: Name of the check.
        message: The result.
        hint: Its meaning and what to do.
        meme_ids: IDs that the result is about, or that the check used.
        seconds: Duration of the check.
    """

    verdict: Verdict
    check: str
    message: str = field(metadata=stored_as("text"))
    hint: str | None = field(default=None, metadata=stored_as("advice"))
    meme_ids: list[str] = field(default_factory=list, metadata=stored_as("memes"))
    seconds: float = 0.0

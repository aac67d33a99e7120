"""mmfw: Facebook's MMF on the Hateful Memes challenge, on Windows and Linux."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmf_win.version import __version__

if TYPE_CHECKING:
    from mmf_win.predictor import Predictor

__all__ = ["Predictor", "__version__"]


def __getattr__(name: str) -> object:
    if name != "Predictor":  # imported on first use, since that is slow
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mmf_win.predictor import Predictor

    return Predictor


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

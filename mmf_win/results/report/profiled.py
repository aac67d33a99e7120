"""What the page of a profile shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmf_win.console import size
from mmf_win.results.profile import PHASES, over_a_run, shares, verdict
from mmf_win.results.report import page
from mmf_win.results.report.page import Fact
from mmf_win.runs.profiling import Profile

_PACKAGES = 12  # shown by name
_OVER_A_RUN = {"update": "updates", "saving": "checkpoints", "validating": "validations, with a checkpoint"}
_MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer's state",
    "gpu": "GPU, at most",
    "host": "main memory, at most",
}


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its length in percent of all of its kind, and its value as text."""

    name: str
    percent: float
    value: str


def write(profile: Profile, output: Path) -> Path:
    """Write the page of a profile."""
    return page.write("profile.html", output, _about(profile))


def _about(profile: Profile) -> dict[str, Any]:
    phases, spent = profile.phases, over_a_run(profile)
    parts = {PHASES[phase]: share * phases.update for phase, share in shares(profile).items()}
    imports = dict(list(profile.imports.items())[:_PACKAGES])
    if others := sum(profile.imports.values()) - sum(imports.values()):
        imports["other packages"] = others
    rest = max(0.0, profile.start - sum(profile.imports.values()))
    return {
        "name": profile.name,
        "verdict": verdict(profile),
        "update": _bars(parts, _milliseconds),
        "run": _bars({_OVER_A_RUN[name]: seconds for name, seconds in spent.items()}, _milliseconds),
        "start": _bars({**imports, "model, data and all else": rest}, _seconds),
        "memory": _bars({_MEMORY[name]: used for name, used in phases.memory.items()}, size, whole=False),
        "profile": profile,
        "facts": [
            Fact.above("Device", phases.device),
            Fact.above("Batch", f"{phases.batch} rows"),
            Fact.above("DataLoader workers", str(phases.workers)),
            Fact.above("Processors", f"{phases.processors}, {phases.threads} threads of PyTorch"),
            Fact("Updates measured", f"{phases.updates}, after {phases.warm_up} to warm up"),
            Fact("Updates traced", str(phases.traced)),
            Fact("An update takes", _milliseconds(phases.update)),
            *([] if phases.gpu_busy is None else [Fact("GPU at work", f"{100 * phases.gpu_busy:.0f} %")]),
            Fact("Checkpoints", f"every {profile.checkpoint_interval} updates"),
            Fact("Validations", f"every {profile.evaluation_interval} updates"),
        ],
    }


def _bars(values: Mapping[str, float], text: Callable[[float], str], *, whole: bool = True) -> list[Bar]:
    """Bars for amounts; ``whole`` where they are the parts of one thing, and else the largest is full."""
    total = (sum(values.values()) if whole else max(values.values(), default=0.0)) or 1.0
    bars = [Bar(name, round(100 * value / total, 1), text(value)) for name, value in values.items()]
    return [replace(bar, value=f"{bar.value}, {bar.percent:.1f} %") for bar in bars] if whole else bars


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s"

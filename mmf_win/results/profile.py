"""What a profile says about a training: the verdict, a table, and a page with both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from mmf_win.runs.profiling import Profile

NAMES = {
    "data": "waiting for data",
    "transfer": "moving rows to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "logging": "logging",
    "other": "everything else",
    "checkpoint": "checkpoints",
    "evaluation": "validations and their checkpoints",
}
"""What takes time, as people call it."""

_ROWLESS = ("optimizer", "logging", "other")  # they cost the same for any number of rows
_MUCH_ROWLESS = 0.3
_MUCH_ASIDE = 0.1  # from which share on checkpoints or validations are worth a word
_LITTLE_ASIDE = 0.05  # what a better interval leaves of it
_LEAST_TIMES = 5  # a training saves and validates, whatever that costs
_IDLE_GPU = 0.5


class Advice(NamedTuple):
    """What takes much of the time, its share from 0 to 1, and the ``KEY=VALUE`` that helps, if any."""

    text: str
    share: float
    setting: str | None = None

    def __str__(self) -> str:
        return f"{self.text}: {self.setting}" if self.setting else self.text


def seconds_of_update(profile: Profile) -> dict[str, float]:
    """Seconds of an update in the training that this stands for, by the keys of :data:`NAMES`.

    There, each update bears its part of the checkpoint and of the validation that come every so many of them.
    MMF saves after a validation, too, which belongs to that.
    """
    return {
        **{phase: profile.spent.get(phase, 0.0) for phase in NAMES},
        "checkpoint": profile.checkpoint / profile.checkpoint_interval,
        "evaluation": (profile.validation + profile.checkpoint) / profile.evaluation_interval,
    }


def verdict(profile: Profile) -> list[Advice]:
    """What takes the time of a training, and what helps; the largest share first."""
    spent = seconds_of_update(profile)
    total = sum(spent.values())
    share = {name: seconds / total for name, seconds in spent.items()}
    rowless = sum(share[name] for name in _ROWLESS)
    found = [_on_data(profile, total), *(_on_aside(profile, share, n) for n in ("checkpoint", "evaluation"))]
    if rowless >= _MUCH_ROWLESS:
        text = f"{_percent(rowless)} of the time is spent once an update, whatever its rows; "
        text += "a larger batch is another training"
        found.append(Advice(text, rowless, f"training.batch_size={2 * profile.batch}"))
    if (busy := profile.gpu_busy) is not None and busy < _IDLE_GPU:
        found.append(Advice(f"the GPU works {_percent(busy)} of the time", 1 - busy))
    if advice := sorted(filter(None, found), key=lambda each: -each.share):
        return advice
    model = {name: share[name] for name in ("forward", "backward", "optimizer")}
    each = ", ".join(f"{name} {_percent(part)}" for name, part in model.items())
    return [Advice(f"the model itself takes the time: {each}", sum(model.values()))]


def write_page(profile: Profile) -> Path:
    """Write the page of a profile into its folder."""
    from mmf_win.results.report import page

    told = {
        "Device": profile.device,
        "Batch": f"{profile.batch} rows",
        "DataLoader workers": str(profile.waiting.workers),
        "Processors": str(profile.waiting.processors),
        "Checkpoints": f"every {profile.checkpoint_interval} updates",
        "Validations": f"every {profile.evaluation_interval} updates",
    }
    facts = [page.Fact(*each) for each in told.items()]
    rows = {NAMES[name]: 1000 * seconds for name, seconds in seconds_of_update(profile).items()}
    about = {"name": profile.name, "verdict": verdict(profile), "rows": rows, "facts": facts}
    return page.write("profile.html", profile.folder / "profile.html", about)


def _on_data(profile: Profile, total: float) -> Advice | None:
    waiting = profile.waiting
    if not waiting.is_much:
        return None
    share = waiting.waited / total
    text = f"the model waits for data {_percent(share)} of the time"
    if waiting.cpu is not None:
        text += ", mostly for the disk" if waiting.mostly_idle else ", mostly for the processor"
    if profile.images_once:
        text += " (less once all images are decoded)"
    if (workers := waiting.helpful_workers()) is not None:
        return Advice(text, share, f"training.num_workers={workers}")
    return Advice(f"{text}; more DataLoader workers would not help", share)


def _on_aside(profile: Profile, share: dict[str, float], name: str) -> Advice | None:
    if share[name] < _MUCH_ASIDE:
        return None
    interval: int = getattr(profile, f"{name}_interval")
    each = interval * seconds_of_update(profile)[name]
    least = interval * (share[name] / (1 - share[name])) * (1 - _LITTLE_ASIDE) / _LITTLE_ASIDE
    step = 10 ** int(math.log10(least))
    updates, most = step * math.ceil(least / step), (profile.max_updates or math.inf) / _LEAST_TIMES
    text = f"{NAMES[name]} take {_percent(share[name])} of the time, {each:.1f} s each"
    return Advice(text, share[name], f"training.{name}_interval={updates}" if updates <= most else None)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

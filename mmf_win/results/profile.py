"""What a profile says about a training, in words with the setting that helps."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from mmf_win.runs.profiling import Profile

PHASES = {
    "data": "waiting for data",
    "transfer": "moving rows to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "logging": "logging",
    "other": "everything else",
}
"""The phases that an update consists of, as people call them."""

_ROWLESS = ("optimizer", "logging", "other")  # they cost the same for any number of rows
_MUCH_ROWLESS = 0.5
_MUCH_ASIDE = 0.1  # of training, from which on checkpoints or validations are worth a word
_LITTLE_ASIDE = 0.05  # what a better interval leaves of it
_LEAST_TIMES = 5  # a training saves and validates, whatever that costs
_IDLE_GPU = 0.5
_MOST_TIMES = 8  # rows, of those of the batch now: more would be another training


@dataclass(frozen=True)
class Advice:
    """Something that takes much of the time.

    Attributes:
        text: what it is, in words.
        share: of the time, from 0 to 1.
        setting: the ``KEY=VALUE`` that helps; None where none is known.
    """

    text: str
    share: float
    setting: str | None = None

    def __str__(self) -> str:
        return f"{self.text}: {self.setting}" if self.setting else self.text


def verdict(profile: Profile) -> list[Advice]:
    """What takes the time of a training, and what helps; the largest share first."""
    found = [advise(profile) for advise in (_on_data, _on_batch, _on_saving, _on_validating)]
    advice = sorted((each for each in found if each is not None), key=lambda each: -each.share)
    busy = profile.phases.gpu_busy
    if busy is not None and busy < _IDLE_GPU:
        advice.append(Advice(f"the GPU works {_percent(busy)} of the time", 1 - busy))
    return advice or [_on_model(profile)]


def shares(profile: Profile) -> dict[str, float]:
    """The share of each phase in an update, from 0 to 1, in the order of :data:`PHASES`."""
    phases = profile.phases
    return {phase: phases.spent.get(phase, 0.0) / phases.updates / phases.update for phase in PHASES}


def over_a_run(profile: Profile) -> dict[str, float]:
    """Seconds of an update in the training that this stands for: ``update``, ``saving``, ``validating``.

    There, each update bears its part of the checkpoint and of the validation that come every so many of them.
    MMF saves after a validation, too, which belongs to that.
    """
    return {
        "update": profile.phases.update,
        "saving": _a_save(profile) / profile.checkpoint_interval,
        "validating": _a_validation(profile) / profile.evaluation_interval,
    }


def as_json(profile: Profile) -> dict[str, Any]:
    """All figures, and the verdict."""
    return {
        "verdict": [
            {"text": a.text, "setting": a.setting, "share": round(a.share, 4)} for a in verdict(profile)
        ],
        **asdict(profile),
    }


def _on_data(profile: Profile) -> Advice | None:
    waiting = profile.phases.waiting
    if not waiting.is_much:
        return None
    cause, images = "", ""
    if waiting.cpu is not None:
        cause = ", mostly for the disk" if waiting.mostly_idle else ", mostly for the processor"
    if profile.phases.images_once:
        images = " (less once all images are decoded)"
    workers = waiting.helpful_workers()
    if workers is None and waiting.is_short:
        short = f"{1000 * waiting.waited:.0f} ms an update, too short for workers to help"
        return Advice(f"{waiting}{cause}{images}: {short}", waiting.share)
    if workers is None:
        more = "more workers would not help on" if waiting.workers else "workers would not help on"
        return Advice(f"{waiting}{cause}{images}; {more} {waiting.processors} processors", waiting.share)
    return Advice(f"{waiting}{cause}{images}", waiting.share, f"training.num_workers={workers}")


def _on_batch(profile: Profile) -> Advice | None:
    phases = profile.phases
    beside_passes = sum(phases.spent.get(phase, 0.0) for phase in _ROWLESS) / phases.updates
    rowless = min(beside_passes + (phases.a_pass or 0.0), phases.update)
    share = rowless / phases.update
    is_one = phases.a_pass is None and phases.batch == 1  # which cannot be put through the model in halves
    if share < (_MUCH_ROWLESS / 2 if is_one else _MUCH_ROWLESS):
        return None
    of_rows = phases.update - rowless
    times = 2
    while times < _MOST_TIMES and rowless > (rowless + times * of_rows) / 4:
        times *= 2
    faster = times * phases.update / (rowless + times * of_rows)
    text = (
        f"at least {_percent(share)} of an update does not depend on its rows ({phases.batch}); "
        f"with {times} times as many, rows are up to {faster:.1f} times as fast, but training is another one"
    )
    return Advice(text, share, f"training.batch_size={times * phases.batch}")


def _a_save(profile: Profile) -> float:
    return profile.phases.saving / max(profile.phases.saves, 1)


def _a_validation(profile: Profile) -> float:
    return profile.phases.validating / max(profile.phases.validations, 1) + _a_save(profile)


def _on_saving(profile: Profile) -> Advice | None:
    text = f"checkpoints of {_a_save(profile):.1f} s each take"
    return _on_aside(profile, "saving", text, "checkpoint_interval")


def _on_validating(profile: Profile) -> Advice | None:
    text = f"validations of {_a_validation(profile):.1f} s each, with the checkpoint after each, take"
    return _on_aside(profile, "validating", text, "evaluation_interval")


def _on_aside(profile: Profile, name: str, text: str, interval: str) -> Advice | None:
    spent = over_a_run(profile)
    share = spent[name] / sum(spent.values())
    if share < _MUCH_ASIDE:
        return None
    others = sum(spent.values()) - spent[name]
    seldom = spent[name] * getattr(profile, interval) * (1 - _LITTLE_ASIDE) / (_LITTLE_ASIDE * others)
    updates, most = _round_up(seldom), (profile.max_updates or math.inf) / _LEAST_TIMES
    setting = f"training.{interval}={updates}" if updates <= most else None
    return Advice(f"{text} {_percent(share)} of the time", share, setting)


def _on_model(profile: Profile) -> Advice:
    found = shares(profile)
    own = ", ".join(f"{phase} {_percent(found[phase])}" for phase in ("forward", "backward", "optimizer"))
    model = sum(found[phase] for phase in ("forward", "backward", "optimizer"))
    return Advice(f"the model itself takes the time: {own}", model)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _round_up(number: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50 …"""
    power: int = 10 ** max(0, math.ceil(math.log10(max(number, 1))) - 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= number)

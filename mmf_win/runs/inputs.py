"""What a run reads, checked before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmf_win.bridge import settings
from mmf_win.bridge.install import Installed
from mmf_win.bridge.needs.check import Inputs, check
from mmf_win.bridge.needs.config import resolve
from mmf_win.bridge.needs.listing import Need, needs_of
from mmf_win.bridge.versions import differences
from mmf_win.console import Progress
from mmf_win.paths import Places
from mmf_win.runs import presets
from mmf_win.runs.folder import RunRequest
from mmf_win.runs.overrides import lasting
from mmf_win.runs.presets import merge


def for_training(mmf: Installed, request: RunRequest, places: Places, resume_file: Path | None) -> Inputs:
    """What training reads.

    Raises:
        DataError: something is missing or broken.
    """
    layers = [settings.common(request.model, request.splits, differences(mmf.version)), request.settings]
    if resume_file is not None:
        layers.append(settings.resume(resume_file))
    return check(
        mmf.root,
        places,
        _resolved(mmf, request, places, layers, request.overrides),
        slots=("train", "val"),
        allow_missing=request.allow_missing,
        offline=request.offline,
        hint_words=[*(_typed(request) or ["PRESET"]), *places.data_option],
    )


def for_prediction(
    mmf: Installed,
    request: RunRequest,
    places: Places,
    *,
    checkpoint: Path,
    split: str,
    overrides: Sequence[str],
) -> None:
    """What a prediction reads.

    Raises:
        DataError: something is missing or broken.
    """
    splits = {**request.splits, "test": split}
    common = settings.common(request.model, splits, differences(mmf.version))
    layers = [common, request.settings, settings.predict(checkpoint)]
    words = [*lasting(request.overrides), *overrides]
    check(
        mmf.root,
        places,
        _resolved(mmf, request, places, layers, words),
        slots=("test",),
        may_leave_out=False,
        offline=request.offline,
        hint_words=[*(_typed(request) or ["PRESET"]), *places.data_option],
    )


def needs_of_presets(mmf: Installed, names: Sequence[str], places: Places) -> dict[Need, list[str]]:
    """What presets need → which of them need it.

    Args:
        mmf: the installed MMF.
        names: of the presets, or their files.
        places: MMF's folders.

    Raises:
        UsageError: there is no such preset, or its configuration cannot be put together.
    """
    found: dict[Need, list[str]] = {}
    with Progress("looking at presets", len(names), "file") as progress:
        for name in names:
            preset = presets.load(name)
            config = resolve(
                mmf.root,
                places,
                model=preset.model,
                config=preset.config,
                settings=preset.settings,
                offline=preset.offline,
            )
            for need in needs_of(mmf.root, places, config):
                found.setdefault(need, []).append(name)
            progress.advance(1)
    return found


def needs_of_run(mmf: Installed, request: RunRequest, places: Places) -> dict[Need, list[str]]:
    """What training a run again would need → its preset, as one would type it."""
    config = _resolved(mmf, request, places, [request.settings], lasting(request.overrides))
    return {need: _typed(request) for need in needs_of(mmf.root, places, config)}


def _typed(request: RunRequest) -> list[str]:
    """The run's preset if one can name it; where the user's own lies, nobody has noted."""
    return [request.preset] if request.preset in presets.names() else []


def _resolved(
    mmf: Installed,
    request: RunRequest,
    places: Places,
    layers: Sequence[settings.Settings],
    overrides: Sequence[str],
) -> settings.Settings:
    return resolve(
        mmf.root,
        places,
        model=request.model,
        config=request.config,
        settings=merge(*layers),
        overrides=overrides,
        offline=request.offline,
    )

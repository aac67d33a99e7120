"""Requests of runs, built from attributes, options and overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from mmf_win.runs.request import CommandOptions, MmfwSettings, RunRequest
from mmf_win.upstream.config import merge_settings

_OPTION_NAMES = ["seed", "batch_size", *(field.name for field in fields(MmfwSettings))]


def make_run_request(*, overrides: Sequence[str] = (), **values: Any) -> RunRequest:
    """A run's request with all that in its settings."""
    chosen = {name: values.pop(name) for name in _OPTION_NAMES if name in values}
    of_preset = values.get("settings", {})
    typed: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)))
    settings = merge_settings(of_preset, CommandOptions(**chosen).settings, typed)
    return RunRequest(**{**values, "settings": settings, "preset_settings": of_preset})

"""Run requests from attributes, options and overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from mmf_win.runs.request import CommandOptions, MmfwSettings, RunRequest
from mmf_win.upstream.config import merge_settings

_OPTION_NAMES = ["seed", "batch_size", *(field.name for field in fields(MmfwSettings))]


def make_run_request(*, overrides: Sequence[str] = (), **values: Any) -> RunRequest:
    """Return a run request; options and overrides are merged into its settings."""
    options = {name: values.pop(name) for name in _OPTION_NAMES if name in values}
    preset_settings = values.get("settings", {})
    override_settings: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)))
    settings = merge_settings(preset_settings, CommandOptions(**options).settings, override_settings)
    return RunRequest(**{**values, "settings": settings, "preset_settings": preset_settings})

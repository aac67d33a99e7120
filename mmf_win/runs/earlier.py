"""Reads the requests of runs that 0.1.0 saved, whose overrides and options lay beside the settings."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mmf_win.protocol import is_a
from mmf_win.runs.request import lasting, options
from mmf_win.upstream.config import OURS, parse_yaml, put
from mmf_win.upstream.overrides import leaves

_OPTIONS = ("seed", "batch_size", "updates", "epochs", "precision", "fast", "keep", "allow_missing")


def in_one_tree(values: Any, config: Path) -> Any:
    """The values of a ``request.json`` with all settings in one tree, also where an earlier version saved it.

    Args:
        values: what is in the file.
        config: MMF's own record of the run's configuration, which knows the lists that an override changed
            an item of.

    Raises:
        ValueError: the overrides or settings cannot be read.
    """
    if not isinstance(values, dict) or "overrides" not in values:
        return values
    given: Any = {name: values.get(name) for name in _OPTIONS}
    settings, words = values.get("settings", {}), values["overrides"]
    if not is_a(words, list[str]) or not isinstance(settings, dict):
        raise ValueError("its overrides and settings are not those of a run")
    tree: dict[str, Any] = {}
    for key, value in [
        *leaves(settings),
        *leaves(options(**given)),
        *(_read(word, config) for word in words),
    ]:
        if key:
            put(tree, key, value)
    if values.get("auto_batch"):
        put(tree, f"{OURS}.auto_batch", True)
    return values | {"settings": lasting(tree), "preset_settings": settings}


def _read(word: str, config: Path) -> tuple[str, Any]:
    """The key and the value of an override, read as MMF read it."""
    key, _, text = word.partition("=")
    if "[" in key:
        key = key.partition("[")[0]
        value: Any = _whole(config)
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return key, value
    try:
        return key, None if text == "None" else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return key, text


def _whole(config: Path) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(parse_yaml(config.read_text(encoding="utf-8")))

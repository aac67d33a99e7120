"""rc10 expects None for a key that a configuration lacks; OmegaConf has raised since 2.1."""

from __future__ import annotations

from typing import Any

from mmf_win.worker.compat.cure import RC10, Context, Cure


def _apply(context: Context) -> None:
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import ConfigAttributeError

    strict = DictConfig.__getattr__

    def lenient(self: DictConfig, key: str) -> Any:
        try:
            return strict(self, key)
        except ConfigAttributeError:
            # Python itself asks for names such as __deepcopy__, and a struct says that it knows its keys.
            if key.startswith("__") or OmegaConf.is_struct(self):
                raise
            return None

    DictConfig.__getattr__ = lenient  # type: ignore[method-assign]


def _needed(context: Context) -> bool:
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigAttributeError

    try:
        return OmegaConf.create({}).key is not None
    except ConfigAttributeError:
        return True


CURE = Cure(
    name="missing-keys",
    cures="Configuration and others: reading a key that was never set raises instead of giving None",
    mmf=RC10,
    library="omegaconf >= 2.1",
    needed=_needed,
    apply=_apply,
)

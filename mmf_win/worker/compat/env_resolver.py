"""rc10's configuration reads the environment through a resolver that OmegaConf renamed to ``oc.env``."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import RC10, Context, Cure

_MODULE = "mmf.utils.configuration"


def _read(name: str, default: str | None = None) -> str | None:
    return os.environ.get(name, default)


def _register(module: ModuleType) -> None:
    from omegaconf import OmegaConf

    register = module.Configuration._register_resolvers

    def register_with_env(self: Any) -> None:
        register(self)  # clears all resolvers first
        OmegaConf.register_new_resolver("env", _read, replace=True)

    module.Configuration._register_resolvers = register_with_env


def _needed(context: Context) -> bool:
    from omegaconf import OmegaConf

    return not OmegaConf.has_resolver("env")


CURE = Cure(
    name="env-resolver",
    cures="configs/defaults.yaml: ${env:...} cannot be resolved",
    mmf=RC10,
    library="omegaconf >= 2.1",
    needed=_needed,
    apply=lambda context: importing.after_import(_MODULE, _register),
)

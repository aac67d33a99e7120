"""Patches for OmegaConf, and for how MMF reads its configuration with it."""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from mmf_win.errors import MmfError
from mmf_win.worker.compat.importing import Edit
from mmf_win.worker.compat.patch import RC10, Patch, missing

_CONFIGURATION = "mmf.utils.configuration"
_LIST_CHECK = """                        (collections.abc.Mapping, collections.abc.Sequence),
                    ):
                        print("""


def _register_env(module: ModuleType) -> None:
    from omegaconf import OmegaConf

    register = module.Configuration._register_resolvers

    def read(name: str, default: str | None = None) -> str | None:
        return os.environ.get(name, default)

    def register_with_env(self: Any) -> None:
        register(self)  # clears all resolvers first
        OmegaConf.register_new_resolver("env", read, replace=True)

    module.Configuration._register_resolvers = register_with_env


def _allow_missing_keys() -> None:
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


def refuse_demjson(text: str) -> NoReturn:
    """In the place of ``demjson.decode``.

    Raises:
        MmfError: always.
    """
    raise MmfError(
        f"MMF's option config_override needs the package demjson, which is not installed: {text[:40]}",
        hint="Pass each setting as KEY=VALUE, or put them into a YAML file.",
    )


PATCHES = (
    Patch(
        name="env-resolver",
        problem="configs/defaults.yaml: ${env:...} cannot be resolved; OmegaConf renamed it to oc.env",
        mmf=RC10,
        library="omegaconf >= 2.1",
        after_import={_CONFIGURATION: _register_env},
    ),
    Patch(
        name="missing-keys",
        problem="Configuration and others: reading a key that was never set raises instead of giving None",
        mmf=RC10,
        library="omegaconf >= 2.1",
        before_import=_allow_missing_keys,
    ),
    Patch(
        name="config-text",
        problem="Checkpoint.save_config: DictConfig.pretty is gone, OmegaConf.to_yaml does its work",
        mmf=RC10,
        library="omegaconf >= 2.1",
        edits=(
            Edit(
                "mmf.utils.checkpoint",
                "self.config.pretty(resolve=True)",
                "OmegaConf.to_yaml(self.config, resolve=True)",
            ),
        ),
    ),
    Patch(
        name="list-items",
        problem="Configuration: KEY[0]=VALUE is silently dropped where the list holds texts",
        mmf=RC10,
        # The condition that 1.0.0rc12 has; 1.0.0rc10 takes each text for a list itself.
        edits=(
            Edit(_CONFIGURATION, _LIST_CHECK, _LIST_CHECK.replace("):\n", ") or idx == len(splits) - 1:\n")),
        ),
    ),
    Patch(
        name="demjson",
        problem="mmf.utils.configuration: imports demjson, which no longer builds, for config_override alone",
        mmf=RC10,
        library="demjson not installed",
        edits=(
            Edit(
                _CONFIGURATION, "import demjson", "pass", {"demjson": SimpleNamespace(decode=refuse_demjson)}
            ),
        ),
        needed=missing("demjson"),
    ),
)

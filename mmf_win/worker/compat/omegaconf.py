"""Patches for OmegaConf, and for how MMF reads its configuration with it."""

from __future__ import annotations

from typing import Any

from mmf_win.worker.compat.patch import RC10, Edit, Patch

_CONFIGURATION = "mmf.utils.configuration"
_LIST_CHECK = """                        (collections.abc.Mapping, collections.abc.Sequence),
                    ):
                        print("""


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


PATCHES = (
    Patch(
        name="env-resolver",
        problem="configs/defaults.yaml: ${env:...} cannot be resolved; OmegaConf renamed it to oc.env",
        mmf=RC10,
        library="omegaconf >= 2.1",
        edits=(
            Edit(
                _CONFIGURATION,
                "OmegaConf.clear_resolvers()",
                'OmegaConf.clear_resolvers(); OmegaConf.register_new_resolver("env", os.environ.get)',
            ),
        ),
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
        # mmfw passes no config_override; settings go into a file.
        problem="mmf.utils.configuration: imports demjson, which no longer builds, for config_override alone",
        mmf=RC10,
        library="demjson",
        edits=(Edit(_CONFIGURATION, "import demjson", "pass"),),
    ),
)

"""Patches for OmegaConf and for how MMF reads its configuration with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmf_win.compat.patch import RC10, Edit, Patch, single_edit, wrap
from mmf_win.upstream.versions import follow_text_links

_CONFIGURATION = "mmf.utils.configuration"


def _allow_missing_keys(module: Any) -> None:
    @wrap(module.DictConfig, "__getattr__")
    def get_or_none(strict: Any, self: Any, key: str) -> Any:
        try:
            return strict(self, key)
        except module.errors.ConfigAttributeError:
            # Python itself looks up names such as __deepcopy__, and a struct is meant to reject unknown keys.
            if key.startswith("__") or module.OmegaConf.is_struct(self):
                raise
            return None


def resolve_text_link(path: str) -> str:
    """Return the real file of a text symlink, so that its includes are found next to that file."""
    real = follow_text_links(Path(path))
    return path if real == Path(path) else str(real)  # MMF also passes URLs, which must stay unchanged


PATCHES = (
    Patch(
        name="env-resolver",
        problem="configs/defaults.yaml: ${env:...} cannot be resolved; OmegaConf renamed it to oc.env",
        mmf_versions=RC10,
        library="omegaconf >= 2.1",
        edits=single_edit(
            _CONFIGURATION,
            "OmegaConf.clear_resolvers()",
            'OmegaConf.clear_resolvers(); OmegaConf.register_new_resolver("env", os.environ.get)',
        ),
    ),
    Patch(
        name="missing-keys",
        problem="Configuration and others: reading a key that was never set raises instead of giving None",
        mmf_versions=RC10,
        library="omegaconf >= 2.1",
        after_import={"omegaconf": _allow_missing_keys},
    ),
    Patch(
        name="config-text",
        problem="Checkpoint.save_config: DictConfig.pretty was removed; OmegaConf.to_yaml replaces it",
        mmf_versions=RC10,
        library="omegaconf >= 2.1",
        edits=single_edit(
            "mmf.utils.checkpoint", "self.config.pretty(resolve=True)", "OmegaConf.to_yaml(self.config, resolve=True)"
        ),
    ),
    Patch(
        name="demjson",
        # mmfw does not use config_override; it writes settings into a file.
        problem="mmf.utils.configuration: imports demjson, which no longer builds, only for config_override",
        mmf_versions=RC10,
        library="demjson",
        edits=single_edit(_CONFIGURATION, "import demjson", "pass"),
    ),
    Patch(
        name="text-symlinks",
        problem="load_yaml: 15 Hateful Memes configurations are symlinks or, in some checkouts, text files",
        library="Windows",
        edits=tuple(
            Edit(_CONFIGURATION, f"{name} = {path}", f"{name} = follow({path})", {"follow": resolve_text_link})
            for name, path in (
                ("abs_f", "get_absolute_path(f)"),
                ("relative", "os.path.abspath(os.path.join(get_mmf_root(), f))"),
                ("include", "os.path.join(mmf_root_dir, include)"),
            )
        ),
    ),
)

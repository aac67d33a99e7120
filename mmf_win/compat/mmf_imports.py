"""Patches for MMF's imports: of all its own files, which is slow and fragile, and of user code."""

from __future__ import annotations

import importlib
import logging
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mmf_win.compat.patch import Patch, source_path, wrap

_log = logging.getLogger(__name__)

# `import mmf` itself imports the models, losses, metrics, optimizers and schedulers. These modules register
# everything else that a run on Hateful Memes looks up by name; some exist in only one version of MMF.
_MODULES = (
    "mmf.common.meter",
    "mmf.common.test_reporter",
    "mmf.datasets.builders.hateful_memes.builder",
    "mmf.datasets.processors",
    "mmf.modules.decoders",
    "mmf.modules.encoders",
    "mmf.modules.poolers",
    "mmf.trainers.base_trainer",
    "mmf.trainers.mmf_trainer",
    "mmf.trainers.callbacks.checkpoint",
    "mmf.trainers.callbacks.early_stopping",
    "mmf.trainers.callbacks.logistics",
    "mmf.trainers.callbacks.lr_scheduler",
)
_FOLDERS = ("common", "modules", "datasets", "models", "trainers")


def setup_imports() -> None:
    """Import the modules needed for Hateful Memes; replaces ``mmf.utils.env.setup_imports``."""
    import mmf
    from mmf.common.registry import registry

    if registry.get("imports_setup", no_warning=True):
        return
    for name in _MODULES:
        if source_path(name, Path(mmf.__file__).parents[1]):
            importlib.import_module(name)
    registry.register("imports_setup", obj=True)


@cache  # once per process
def import_everything() -> None:
    """Import every module of MMF that registers something, like MMF does, but skip failing ones."""
    import mmf

    package = Path(mmf.__file__).parent
    for folder in _FOLDERS:
        for path in sorted((package / folder).rglob("*.py")):
            name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
            try:
                importlib.import_module(name.removesuffix(".__init__"))
            except Exception as error:
                _log.warning("%s cannot be imported: %s", name, error)


def _import_all_on_lookup_miss(module: ModuleType) -> None:
    """Import all of MMF if the registry does not have a model, dataset or trainer, and look it up again."""

    def find_or_import(find: Any, name: str) -> Any:
        result = find(name)
        if result is None and name and module.registry.get("imports_setup", no_warning=True):
            import_everything()
            result = find(name)
        return result

    for lookup in ("get_model_class", "get_builder_class", "get_trainer_class"):
        wrap(module.registry, lookup)(find_or_import)


def _keep_user_code_importable(module: ModuleType) -> None:
    """Keep the parent folder of the user code on ``sys.path``, which spawned processes inherit."""

    @wrap(module, "import_user_module")
    def import_user_module(original: Any, user_dir: str | None, *args: Any, **kwargs: Any) -> None:
        original(user_dir, *args, **kwargs)
        if user_dir and (parent := str(Path(user_dir).absolute().parent)) not in sys.path:
            sys.path.append(parent)


PATCHES = (
    Patch(
        name="setup-imports",
        problem="setup_imports: imports pandas and Lightning (rc12); fails in a folder named models (rc10)",
        after_import={
            "mmf.utils.env": lambda module: setattr(module, "setup_imports", setup_imports),
            "mmf.common.registry": _import_all_on_lookup_miss,
        },
    ),
    Patch(
        name="own-code-in-workers",
        problem="import_user_module: spawned DataLoader workers (on Windows) cannot import user code",
        after_import={"mmf.utils.env": _keep_user_code_importable},
    ),
)

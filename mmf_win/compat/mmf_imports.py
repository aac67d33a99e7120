"""Patches for the imports of MMF: of all its files, which is slow and fails easily, and of own code."""

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

# `import mmf` itself brings the models, losses, metrics, optimizers and schedulers. These register the rest
# of what a run on Hateful Memes looks up by name; some of them exist in one version only.
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
    """In the place of ``mmf.utils.env.setup_imports``: imports what Hateful Memes needs."""
    import mmf
    from mmf.common.registry import registry

    if registry.get("imports_setup", no_warning=True):
        return
    for name in _MODULES:
        if source_path(name, Path(mmf.__file__).parents[1]):
            importlib.import_module(name)
    registry.register("imports_setup", True)


@cache  # once a process
def import_everything() -> None:
    """Import every module of MMF that registers something, as MMF does, but skip those that fail."""
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
    """Where the registry lacks a model, dataset or trainer, import everything and look again."""

    def find_or_import(find: Any, name: str) -> Any:
        found = find(name)
        if found is None and name and module.registry.get("imports_setup", no_warning=True):
            import_everything()
            found = find(name)
        return found

    for lookup in ("get_model_class", "get_builder_class", "get_trainer_class"):
        wrap(module.registry, lookup)(find_or_import)


def _keep_user_code_importable(module: ModuleType) -> None:
    """Leave the folder that the user's own code lies in on ``sys.path``, which spawned processes inherit."""

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
        problem="import_user_module: spawned DataLoader workers, as on Windows, cannot import own code",
        after_import={"mmf.utils.env": _keep_user_code_importable},
    ),
)

"""The configuration that MMF would make of a preset, read without importing MMF.

The order is that of ``mmf.utils.configuration``: MMF's defaults, the model's and the dataset's own
configuration, then the one that the run names with its includes, the run's settings, and last the
``KEY=VALUE`` words.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmf_win.errors import BrokenMmf, UsageError
from mmf_win.paths import Places, no_datasets
from mmf_win.upstream.overrides import assign
from mmf_win.upstream.versions import config_path, follow_text_links, read_version

Tree = dict[str, Any]

DATASET = "hateful_memes"
_DATASET_CONFIG = "configs/datasets/hateful_memes/defaults.yaml"


def resolve(
    root: Path,
    places: Places,
    *,
    model: str,
    config: str | None,
    settings: Mapping[str, Any],
    overrides: Sequence[str] = (),
    offline: bool = False,
) -> Tree:
    """The parts of MMF's configuration that name files: ``env``, ``checkpoint``, ``dataset`` and ``model``.

    Args:
        root: the folder that holds the package ``mmf``.
        places: MMF's folders.
        model: MMF's name of the model.
        config: MMF configuration to start from, as :func:`mmf_win.upstream.versions.config_path` takes it.
        settings: a tree of MMF's keys, merged over it.
        overrides: ``KEY=VALUE`` words.
        offline: MMF must download nothing.

    Raises:
        UsageError: the configuration cannot be put together, or MMF would refuse or drop an override.
        MmfError: a file of MMF is missing.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        merged = merge(root, places, model=model, config=config, settings=settings, offline=offline)
        own_code = merged.env.user_dir or any(word.startswith("env.user_dir=") for word in overrides)
        assign(merged, overrides, version=read_version(root), has_user_dir=bool(own_code))

        def part(path: str) -> Any:
            node = OmegaConf.select(merged, path)
            return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node or {}

        return {
            "env": part("env"),
            "checkpoint": part("checkpoint"),
            "dataset": part(f"dataset_config.{DATASET}"),
            "model": part(f"model_config.{model}"),
        }
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the configuration of {model} cannot be put together: {reason}") from None


def merge(
    root: Path, places: Places, *, model: str, config: str | None, settings: Mapping[str, Any], offline: bool
) -> Any:
    """MMF's whole configuration before the overrides, by OmegaConf; arguments as for :func:`resolve`."""
    from omegaconf import OmegaConf

    named = config_path(root, config) if config else None
    layers = [_load(root, root / "mmf" / "configs" / "defaults.yaml")]
    own = model_config(root, model)
    layers += [_load(root, root / "mmf" / own)] if own else []
    layers.append(_load(root, root / "mmf" / _DATASET_CONFIG))
    layers += [_load(root, named)] if named else []
    with warnings.catch_warnings():
        # Of the empty default in MMF's own "${oc.env:MMF_USER_DIR,}".
        warnings.filterwarnings("ignore", "In the sequence", UserWarning)
        merged: Any = OmegaConf.merge(*layers, OmegaConf.create(dict(settings)))
    merged.env = _environment(places, merged.get("env") or {}, offline)
    return merged


def model_config(root: Path, model: str) -> str | None:
    """The configuration that MMF's class of a model names as its own; None where it names none.

    Args:
        root: the folder that holds the package ``mmf``.
        model: the name under which the class is registered.
    """
    for path in sorted((root / "mmf" / "models").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f'register_model("{model}")' in text:
            return _config_path_in(ast.parse(text), model)
    return None


def _config_path_in(module: ast.Module, model: str) -> str | None:
    classes = [node for node in module.body if isinstance(node, ast.ClassDef) and _registers(node, model)]
    for node in (child for owner in classes for child in owner.body):
        if isinstance(node, ast.FunctionDef) and node.name == "config_path":
            for statement in node.body:
                if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Constant):
                    return str(statement.value.value) if statement.value.value else None
    return None


def _registers(node: ast.ClassDef, model: str) -> bool:
    calls = (decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call))
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "register_model"
        and [ast.literal_eval(argument) for argument in call.args] == [model]
        for call in calls
    )


def _load(root: Path, path: Path) -> Any:
    """A YAML file of MMF's with its ``includes``, relative to the package ``mmf`` or to the file."""
    from omegaconf import OmegaConf

    path = follow_text_links(path)
    try:
        own: Any = OmegaConf.load(path)
    except OSError as error:
        raise BrokenMmf(f"{path} cannot be read: {error.strerror}") from None
    included = []
    for name in own.pop("includes", None) or []:
        of_mmf = follow_text_links(root / "mmf" / name)
        included.append(_load(root, of_mmf if of_mmf.is_file() else path.parent / name))
    return OmegaConf.merge(*included, own)


def _environment(places: Places, given: Mapping[str, Any], offline: bool) -> Tree:
    """MMF's ``env``, as the worker's environment will make it, with nothing for what says no file here."""
    from omegaconf import OmegaConf

    raw: Any = OmegaConf.to_container(given, resolve=False) if OmegaConf.is_config(given) else given

    named = {key: None if "${" in str(value) else value for key, value in raw.items()}

    def chosen(key: str) -> str | None:
        return named.get(key) or os.environ.get(f"MMF_{key.upper()}") or None

    return {
        **named,
        "cache_dir": str(places.cache_dir),
        "data_dir": str(places.data_dir),
        "user_dir": chosen("user_dir"),
        "dataset_zoo": str(no_datasets()) if offline else chosen("dataset_zoo"),
        "model_zoo": chosen("model_zoo"),
    }

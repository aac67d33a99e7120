"""What differs between the versions of MMF, and where things are in a tree of either.

Two versions matter: 1.0.0rc10, the newest on PyPI, and 1.0.0rc12, the head of MMF's repository. Nothing
here imports MMF or torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mmf_win.console import suggestion_hint
from mmf_win.errors import MmfEnvironmentError

# Linux gives up after as many, https://man7.org/linux/man-pages/man7/path_resolution.7.html
_MAX_LINKS = 40

#: Versions that mmfw knows → keys, and groups of keys, of MMF's defaults that each of them has alone.
VERSION_SPECIFIC_KEYS: Mapping[str, frozenset[str]] = {
    "1.0.0rc10": frozenset({"training.stdout_capture"}),
    "1.0.0rc12": frozenset(
        {
            *("checkpoint.max_to_keep", "checkpoint.reset.fp16_scaler", "env.wandb_logdir"),
            *("evaluation.reporter", "evaluation.use_cpu", "multitasking"),
            *("optimizer.allow_unused_parameters", "optimizer.enable_state_sharding", "trainer"),
            *("training.batch_size_per_device", "training.callbacks", "training.colored_logs"),
            *("training.cudnn_benchmark", "training.detect_anomaly", "training.exit_on_nan_losses"),
            *("training.fp16", "training.persistent_workers", "training.update_frequency"),
            "training.wandb",
        }
    ),
}


def versions_with_key(key: str) -> list[str]:
    """The versions that have a configuration key, where not all have it; empty for any other key."""
    return [
        version
        for version, only in VERSION_SPECIFIC_KEYS.items()
        if any(key == known or key.startswith((f"{known}.", f"{known}[")) for known in only)
    ]


def has_key(version: str, key: str) -> bool:
    """Whether a version of MMF, which must be one that mmfw knows, has a key that only some have."""
    if version not in VERSION_SPECIFIC_KEYS:
        message = f"MMF {version} is unknown to mmfw, which works with {' and '.join(VERSION_SPECIFIC_KEYS)}"
        raise MmfEnvironmentError(message, hint="run `mmfw setup --mmf pypi`")
    return version in versions_with_key(key)


def read_version(root: Path) -> str:
    """MMF's version, read from ``mmf/version.py`` below ``root`` as text; an MmfError where there is none."""
    path = root / "mmf" / "version.py"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MmfEnvironmentError(
            f"{path} cannot be read: {error.strerror}", hint="run `mmfw setup`"
        ) from error
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise MmfEnvironmentError(f"no version can be found in {path}", hint="run `mmfw setup`")
    return match[1]


def config_path(root: Path, name: str) -> Path:
    """The real file of one of MMF's configurations; an MmfError where there is no such configuration.

    Where it is a link, real or as text, it is followed, so that files named in it are found beside it. Its
    ``name`` is relative to ``root``, the folder of the packages ``mmf`` and ``mmf_cli``, or to the package
    ``mmf``, with ``/`` on every system; or absolute.
    """
    for folder in (root, root / "mmf"):
        path = follow_text_links(folder / name)
        if path.is_file():
            return path.resolve()
    areas = [(root, "projects"), (root / "mmf", "projects"), (root / "mmf", "configs")]
    known = (path.relative_to(base) for base, area in areas for path in (base / area).rglob("*.yaml"))
    hint = suggestion_hint(name, map(Path.as_posix, known)).strip()
    raise MmfEnvironmentError(f"MMF in {root} has no configuration {name}", hint=hint)


def follow_text_links(path: Path) -> Path:
    """What ``path`` stands for where git wrote symlinks as text.

    Where a system has no symlinks, git writes a file that holds the target's path instead, and so do tools
    that unpack a repository's archive. Such a file may stand anywhere in ``path``, for a file or a folder.
    Real symlinks are left to the system. Links that lead in a circle are an MmfError.
    """
    here = path
    for _ in range(_MAX_LINKS):
        link = next((part for part in (here, *here.parents) if part.is_file()), None)
        target = _read_text_link(link) if link else None
        if link is None or target is None:
            return here
        here = Path(os.path.normpath(link.parent / target / here.relative_to(link)))
    raise MmfEnvironmentError(f"the links from {path} lead in a circle", hint="run `mmfw setup`")


def _read_text_link(path: Path) -> str | None:
    with suppress(OSError, ValueError):  # not text, or text that cannot be a path
        text = path.read_text(encoding="utf-8")
        if text and "\n" not in text and (path.parent / text).exists():
            return text
    return None

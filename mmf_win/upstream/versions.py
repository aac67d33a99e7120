"""Differences between MMF's versions, and the location of files in the source tree of each.

Two versions are supported: 1.0.0rc10, the newest on PyPI, and 1.0.0rc12, the head of MMF's repository.
Nothing here imports MMF or torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mmf_win.console import suggestion_hint
from mmf_win.errors import MmfEnvironmentError

# The limit of Linux, https://man7.org/linux/man-pages/man7/path_resolution.7.html
_MAX_LINKS = 40

#: Keys, and groups of keys, of MMF's defaults that only one version has, for each supported version.
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
    """Return the versions that have a key if not all of them do; empty for any other key."""
    return [
        version
        for version, keys in VERSION_SPECIFIC_KEYS.items()
        if any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in keys)
    ]


def has_key(version: str, key: str) -> bool:
    """Return whether a version of MMF has a key that only some versions have.

    Raises:
        MmfEnvironmentError: The version is not supported.
    """
    if version not in VERSION_SPECIFIC_KEYS:
        message = f"MMF {version} is not supported (supported: {', '.join(VERSION_SPECIFIC_KEYS)})"
        raise MmfEnvironmentError(message, hint="run `mmfw setup --mmf pypi`")
    return version in versions_with_key(key)


def read_version(root: Path) -> str:
    """Return MMF's version, read as text from ``mmf/version.py`` below ``root``.

    Raises:
        MmfEnvironmentError: The file cannot be read or contains no version.
    """
    path = root / "mmf" / "version.py"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MmfEnvironmentError(f"{path}: cannot be read ({error.strerror})", hint="run `mmfw setup`") from error
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise MmfEnvironmentError(f"{path}: no version found", hint="run `mmfw setup`")
    return match[1]


def config_path(root: Path, name: str) -> Path:
    """Return the resolved path of an MMF configuration file.

    Links, also those stored as text, are followed, so relative paths in the file are resolved next to the
    target.

    Args:
        root: Folder of the packages ``mmf`` and ``mmf_cli``.
        name: Path relative to ``root`` or to the package ``mmf``, with ``/`` on every system; or an absolute
            path.

    Raises:
        MmfEnvironmentError: There is no such configuration.
    """
    for folder in (root, root / "mmf"):
        path = follow_text_links(folder / name)
        if path.is_file():
            return path.resolve()
    folders = [(root, "projects"), (root / "mmf", "projects"), (root / "mmf", "configs")]
    existing = (path.relative_to(base) for base, area in folders for path in (base / area).rglob("*.yaml"))
    hint = suggestion_hint(name, map(Path.as_posix, existing)).strip()
    raise MmfEnvironmentError(f"MMF in {root} has no configuration {name}", hint=hint)


def follow_text_links(path: Path) -> Path:
    """Return the path that ``path`` stands for if Git stored symbolic links as text.

    On systems without symbolic links, Git and tools that unpack a repository's archive write a text file with
    the path of the target instead. Such a file may replace any file or folder in ``path``. Real symbolic
    links are left to the system.

    Raises:
        MmfEnvironmentError: The links are circular.
    """
    current = path
    for _ in range(_MAX_LINKS):
        link = next((part for part in (current, *current.parents) if part.is_file()), None)
        target = _read_text_link(link) if link else None
        if link is None or target is None:
            return current
        current = Path(os.path.normpath(link.parent / target / current.relative_to(link)))
    raise MmfEnvironmentError(f"{path}: circular link", hint="run `mmfw setup`")


def _read_text_link(path: Path) -> str | None:
    with suppress(OSError, ValueError):  # not text, or not a valid path
        text = path.read_text(encoding="utf-8")
        if text and "\n" not in text and (path.parent / text).exists():
            return text
    return None

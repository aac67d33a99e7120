"""What ``mmfw doctor`` looks at: versions, MMF, folders and the machine, and what is missing among them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from mmf_win import machine
from mmf_win.archives.zip_extract import engine
from mmf_win.console import shell_line
from mmf_win.dataset.annotations import splits_on_disk, where_to_get
from mmf_win.doctor.system import BUILDS, pip_line, survey_machine, survey_settings, survey_torch, unused_gpu
from mmf_win.errors import DatasetError, InUseError, MmfError, MmfwError, ResourceError, UsageError
from mmf_win.files import free_space
from mmf_win.paths import Places, presets_dir, tool_home
from mmf_win.runs import fits
from mmf_win.unpacking.staging import require_finished, require_makeable
from mmf_win.upstream.install import Installed, changed_files, find_mmf, pip_hint, was_set_up
from mmf_win.version import __version__

# A checkpoint of a BERT model, its optimizer included, is about 1.3 GB, and a few are kept.
_LITTLE_SPACE = 10 << 30


@dataclass(frozen=True)
class MmfState:
    """The MMF that runs.

    Attributes:
        installed: the copy; None when there is none.
        problems: what is wrong with it, a line for each file; None where nothing tells.
        error: why there is none, or why it cannot be used.
    """

    installed: Installed | None
    problems: tuple[str, ...] | None = ()
    error: MmfError | None = None


def survey(places: Places) -> dict[str, Any]:
    """Look at everything; nothing heavy is imported, and nothing is changed.

    What is returned are plain values, but for ``mmf``, ``torch``, and ``missing``: the errors that training
    would end with, in the order in which to repair them.
    """
    mmf, torch, cuda = survey_mmf(), survey_torch(), machine.survey_cuda()
    images = places.dataset.images / "img"
    system = {"mmfw": __version__, "python": sys.version.split()[0], "system": platform.platform()}
    packages = (*required_packages(), *required_packages("train"))
    found = {
        "versions": system | {name: version(name) for name in packages},
        "mmf": mmf,
        "folders": list(_folders(places, mmf)),
        "dataset": {
            "splits": sorted(splits_on_disk(places.dataset)),
            "images": sum(1 for _ in images.iterdir()) if images.is_dir() else 0,
            "features": (places.dataset.features / "detectron.lmdb").is_dir(),
        },
        "machine": survey_machine(),
        "settings": survey_settings(),
        "torch": torch,
        "cuda": cuda and asdict(cuda),
        "decryption": engine(),
        "fits": fits.load(),
    }
    return found | {"missing": list(_missing(found, unused_gpu(torch, cuda), places))}


def required_packages(extra: str = "") -> list[str]:
    """The packages that mmfw requires, or those that an extra adds; none where mmfw is not installed."""
    found = []
    requirements: Iterable[str] = ()
    with suppress(importlib.metadata.PackageNotFoundError):  # it runs from a checkout
        requirements = importlib.metadata.requires("mmf-win") or ()
    for requirement in requirements:
        name, of_extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"](\w+)", requirement)
        if name and extra == (of_extra[1] if of_extra else ""):
            found.append(name[0])
    return found


def version(distribution: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def survey_mmf(*, full: bool = False) -> MmfState:
    """Verify the MMF that runs; ``full`` reads each of its files."""
    try:
        installed = find_mmf()
    except MmfError as error:
        return MmfState(None, (str(error),) if was_set_up() else (), error)
    changed = changed_files(installed, full=full)
    if not changed:
        return MmfState(installed, None if changed is None else ())
    message = f"changed or missing files of MMF: {len(changed)}"
    return MmfState(installed, tuple(changed), MmfError(message, hint="run `mmfw setup`"))


def _folders(places: Places, mmf: MmfState) -> Iterator[dict[str, Any]]:
    """Where everything is; MMF and mmfw make theirs when they need them."""
    named = {
        "data": places.data_dir,
        "cache": places.cache_dir,
        "runs": places.save_dir,
        "dataset": places.dataset.root,
        "presets": presets_dir(),
        "tool home": tool_home(),
        "decoded images": places.images,
        "mmf": mmf.installed.root if mmf.installed else None,
    }
    by = _named_by(places)
    for name, path in named.items():
        if path is not None:
            exists, free = path.is_dir(), free_space(path)
            yield {"name": name, "path": path, "named_by": by.get(name), "exists": exists, "free": free}


def _named_by(places: Places) -> dict[str, str]:
    """The option or variable that names MMF's folders, or that it is the default."""
    usual, of_cache = Places.resolve(), ("MMF_CACHE_DIR", "TORCH_HOME", "XDG_CACHE_HOME")
    by = {"data": ("MMF_DATA_DIR", *of_cache), "cache": of_cache, "runs": ("MMF_SAVE_DIR",)}
    named = {name: next(filter(os.environ.get, variables), "default") for name, variables in by.items()}
    data_option = {"data": "--data-dir"} if places.data_dir != usual.data_dir else {}
    return named | data_option | ({"runs": "--save-dir"} if places.save_dir != usual.save_dir else {})


def _missing(found: dict[str, Any], unused: MmfError | None, places: Places) -> Iterator[MmfwError]:
    if not required_packages():
        message = "mmfw itself is not installed, so it is not known which packages are missing"
        yield MmfError(message, hint=pip_hint())
    # PyTorch first, since with the rest pip would bring the build for CUDA on any Linux.
    hints: dict[tuple[str, ...], str] = {BUILDS: f"run `{shell_line(*pip_line())}`"}
    hints |= {tuple(required_packages(extra)): pip_hint(extra and f"[{extra}]") for extra in ("", "train")}
    for names, hint in hints.items():
        missing = [name for name in names if found["versions"].get(name, "") is None]
        if rest := [name for name in missing if names is BUILDS or name not in BUILDS]:
            yield MmfError(f"not installed: {', '.join(rest)}", hint=hint)
    yield from (error for error in (unused, found["mmf"].error) if error is not None)
    try:
        require_finished(places.dataset.root)
    except (DatasetError, InUseError) as error:
        yield error
    else:
        if not found["dataset"]["splits"] or not found["dataset"]["images"]:
            message = f"no Hateful Memes dataset in {places.dataset.root}"
            yield DatasetError(message, hint=where_to_get(places.dataset))
    try:
        require_makeable(places)
    except MmfwError as error:
        yield error
    for folder in found["folders"]:
        where, free = f"for {folder['name']} in {folder['path']}", folder["free"]
        if free is None:
            yield UsageError(f"no drive {where}", hint="choose another folder")
        elif folder["name"] in ("data", "runs") and free < _LITTLE_SPACE:
            yield ResourceError(f"little disk space {where}", hint="free some space there")

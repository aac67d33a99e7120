"""The fine-tuned weights that MMF's zoo publishes for a preset, and runs of them that were never trained."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mmf_win.console import format_command
from mmf_win.dataset.annotations import choose_splits
from mmf_win.dataset.published_results import find_paper_splits
from mmf_win.errors import DataError, DatasetError, InUseError, UsageError
from mmf_win.files import link_or_copy
from mmf_win.inputs.archive_input import ArchiveInput
from mmf_win.inputs.discovery import zoo_weights_input
from mmf_win.inputs.input_files import Mirror
from mmf_win.inputs.input_files import fetch_inputs as fetch_inputs
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import MmfPaths, short_portable_name
from mmf_win.runs import lookup, presets
from mmf_win.runs.folder import Run
from mmf_win.runs.presets import Preset
from mmf_win.runs.request import RunRequest, drop_start_settings
from mmf_win.upstream.install import MmfInstall, require_mmf
from mmf_win.upstream.zoo import Zoo

_log = logging.getLogger(__name__)


def find_weights(preset: Preset, mmf: MmfInstall, mmf_paths: MmfPaths) -> ArchiveInput | None:
    """The published weights of a preset; None where it has none in the zoo of this MMF.

    Raises UsageError where the zoo that the user chose is none, MmfError where MMF's own cannot be read.
    """
    if preset.zoo is None:
        return None
    zoo = Zoo(mmf.root, mmf_paths)
    models = (preset.settings.get("env") or {}).get("model_zoo") or zoo.models_file
    weights = zoo_weights_input(replace(zoo, models_file=models), preset.zoo)
    return weights if weights.entry else None


def fetch(preset: Preset, mmf_paths: MmfPaths, source: str | None, *, offline: bool = False) -> Path:
    """The file of a preset's published weights, downloaded if it is missing and verified.

    A preset, too, may say that nothing may be downloaded.

    Args:
        source: a folder or a mirror to look in first.
        offline: nothing may be downloaded.

    Raises:
        UsageError: the preset has no published weights, or ``source`` has no copy of them.
        MmfError: they cannot be downloaded.
        DataError: what came is not what it should be.
    """
    mmf = require_mmf()
    published = find_weights(preset, mmf, mmf_paths)
    if published is None:
        message = f"preset {preset.name} has no published weights"
        if preset.zoo is not None:
            message = f"the zoo of MMF {mmf.version} has no {preset.zoo}"
        raise UsageError(message, hint=presets.LIST_HINT)
    # An explicit wish to have them is enough for a download, but not for a preset that forbids it.
    mirror = replace(Mirror.from_source(source), offline=preset.offline or offline)
    [finding] = fetch_inputs([published], mmf_paths, mirror)
    if not finding.is_usable:
        raise DataError("; ".join(finding.problems) or f"{published.title}: {finding.state}")
    files = published.files()
    if len(files) != 1:
        names = ", ".join(path.name for path in files)
        raise DataError(f"{published.folder}: one file of weights is expected, not {names}")
    return files[0]


def get_or_create_run(
    preset_name: str, mmf_paths: MmfPaths, source: str | None = None, *, without_dataset: bool = False
) -> Run:
    """The run of a preset's published weights, which was never trained; made when it is first asked for.

    Raises as :func:`fetch`, and where the dataset is not there.

    Args:
        preset_name: a preset's name or file.
        without_dataset: the dataset need not be there, since own memes are predicted.
    """
    preset = presets.load(preset_name)
    try:  # before a long download
        splits = choose_splits(mmf_paths.dataset)
    except (DatasetError, InUseError):
        if not without_dataset:
            raise
        splits = {"train": "train", "val": "dev_unseen", "test": "test_unseen"}
    splits |= find_paper_splits(mmf_paths.dataset)
    weights = fetch(preset, mmf_paths, source)
    manifest = Manifest.load(weights.parent)  # by which it was verified just now, if there could be one
    entry = manifest.files.get(weights.name) if manifest else None
    sha256 = entry.sha256 if entry else file_digest(weights).hex()
    request = replace(
        presets.build_request(preset, splits, mmf_paths),
        settings=drop_start_settings(preset.settings),
        published_weights=preset.zoo,
        published_sha256=sha256,
    )
    name = short_portable_name(preset.name, "-published")
    run = _find_existing_run(mmf_paths.save_dir, name, request) or Run.create(mmf_paths.save_dir, name)
    best = run.checkpoints / "best.ckpt"
    if not best.is_file() or (not best.samefile(weights) and file_digest(best).hex() != sha256):
        run.checkpoints.mkdir(exist_ok=True)
        link_or_copy(weights, best)
    if not run.request_file.exists():  # a folder without it is no run
        run.save_request(request)
    _log.info("published weights %s: run %s", preset.zoo, run.id)
    return run


def require_trained(run: Run, checkpoint: Path | None = None) -> None:
    """Refuse, by a UsageError, to resume published weights: their run was never trained.

    ``checkpoint`` is the file of it that was named; None for the run itself.
    """
    request = run.request()
    if request.published_weights:
        preset = request.preset_file or request.preset
        train = format_command("mmfw", "train", preset, "--init", checkpoint or "published")
        message = f"run {run.id} holds published weights, and was never trained, so it cannot be resumed"
        raise UsageError(message, hint=f"`{train}` trains on from them")


def _find_existing_run(save_dir: Path, name: str, request: RunRequest) -> Run | None:
    """The newest run of the same weights, configuration and data."""
    for run in lookup.iter_matching_runs(save_dir, name):
        with suppress(DataError):
            if replace(run.request(), created=request.created) == request:
                return run
    return None

"""Fine-tuned weights published in MMF's zoo, and untrained runs that hold them."""

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
from mmf_win.inputs.input_files import Mirror, fetch_inputs
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
    """Return the published weights of a preset, or ``None`` if the zoo of this MMF has none.

    Raises:
        UsageError: The zoo file given by the user is invalid.
        MmfEnvironmentError: MMF's own zoo file cannot be read.
    """
    if preset.zoo is None:
        return None
    zoo = Zoo(mmf.root, mmf_paths)
    models = (preset.settings.get("env") or {}).get("model_zoo") or zoo.models_file
    weights = zoo_weights_input(replace(zoo, models_file=models), preset.zoo)
    return weights if weights.entry else None


def fetch_published_weights(preset: Preset, mmf_paths: MmfPaths, source: str | None, *, offline: bool = False) -> Path:
    """Return the file of a preset's published weights, downloaded if it is missing, and verified.

    Args:
        preset: The preset; it may forbid downloads, too.
        mmf_paths: Folders of MMF.
        source: Folder or mirror to search first, or ``None``.
        offline: Forbid downloads.

    Returns:
        The file.

    Raises:
        UsageError: The preset has no published weights, or ``source`` has no copy of them.
        MmfEnvironmentError: The weights cannot be downloaded.
        DataError: The weights are damaged or unexpected.
    """
    mmf = require_mmf()
    published = find_weights(preset, mmf, mmf_paths)
    if published is None:
        message = f"preset {preset.name} has no published weights"
        if preset.zoo is not None:
            message = f"the zoo of MMF {mmf.version} has no {preset.zoo}"
        raise UsageError(message, hint=presets.LIST_HINT)
    # The user asked for the weights, so they may be downloaded unless the preset forbids it.
    mirror = replace(Mirror.from_source(source), offline=preset.offline or offline)
    [finding] = fetch_inputs([published], mmf_paths, mirror)
    if not finding.is_usable:
        raise DataError("; ".join(finding.problems) or f"{published.title}: {finding.state}")
    files = published.files()
    if len(files) != 1:
        names = ", ".join(path.name for path in files)
        raise DataError(f"{published.folder}: expected one file of weights, found {names}")
    return files[0]


def get_or_create_run(
    preset_name: str, mmf_paths: MmfPaths, source: str | None = None, *, without_dataset: bool = False
) -> Run:
    """Return the run with a preset's published weights, creating it on first use; it was never trained.

    Args:
        preset_name: Name or file of the preset.
        mmf_paths: Folders of MMF.
        source: Folder or mirror to search first, or ``None``.
        without_dataset: The dataset may be missing, because user data is predicted.

    Returns:
        The run.

    Raises:
        DatasetError: The dataset is missing.
        InUseError: The dataset is being installed.
        MmfwError: The weights are not available (see :func:`fetch`).
    """
    preset = presets.load_preset(preset_name)
    try:  # before a long download
        splits = choose_splits(mmf_paths.dataset)
    except (DatasetError, InUseError):
        if not without_dataset:
            raise
        splits = {"train": "train", "val": "dev_unseen", "test": "test_unseen"}
    splits |= find_paper_splits(mmf_paths.dataset)
    weights = fetch_published_weights(preset, mmf_paths, source)
    manifest = Manifest.load(weights.parent)  # which verified it just now, if it exists
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
    if not run.request_file.exists():  # a folder without it is not a run
        run.save_request(request)
    _log.info("published weights %s: run %s", preset.zoo, run.id)
    return run


def require_trained(run: Run, checkpoint: Path | None = None) -> None:
    """Check that a run was trained; a run of published weights cannot be resumed.

    Args:
        run: The run.
        checkpoint: Checkpoint of the run that the user named; ``None`` if the run itself was named.

    Raises:
        UsageError: The run has published weights.
    """
    request = run.request()
    if request.published_weights:
        preset = request.preset_file or request.preset
        train = format_command("mmfw", "train", preset, "--init", checkpoint or "published")
        message = f"run {run.id} cannot be resumed: it has published weights and was never trained"
        raise UsageError(message, hint=f"start a new run from these weights with `{train}`")


def _find_existing_run(save_dir: Path, name: str, request: RunRequest) -> Run | None:
    """Return the newest run with the same weights, configuration and data, or ``None``."""
    for run in lookup.iter_matching_runs(save_dir, name):
        with suppress(DataError):
            if replace(run.request(), created=request.created) == request:
                return run
    return None

"""Verify and repair everything that mmfw has written: dataset, features, weights, checkpoints and MMF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mmf_win import errors
from mmf_win.console import format_command, suggestion_hint
from mmf_win.dataset.convert import convert, find_source_archive, load_dataset_manifest, repair_dataset
from mmf_win.dataset.image_files import choose_common_hint, find_unusable_images, list_checked_images
from mmf_win.doctor.survey import survey_mmf
from mmf_win.inputs.discovery import list_existing_inputs
from mmf_win.inputs.input_files import InputFiles, Mirror, fetch_inputs
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest, load_manifest_notes
from mmf_win.integrity.verify import VerificationResult, VerificationState, find_damage
from mmf_win.paths import MmfPaths, data_dir_arguments, mmfw_home
from mmf_win.runs import lookup, presets
from mmf_win.runs.checkpoints import FOREIGN_PROBLEM, list_checkpoints
from mmf_win.runs.folder import Run
from mmf_win.runs.outcomes import intact_checkpoint_hint
from mmf_win.runs.preflight import find_preset_inputs
from mmf_win.upstream import install

PARTS = ("dataset", "features", "runs", "mmf")

_VERIFIED_AGAINST_NOTHING = "nothing"
_FAILURES = (errors.DataError, errors.InUseError, errors.MmfEnvironmentError, errors.PasswordError, errors.UsageError)


def _resolve_names(
    names: Sequence[str], mmf_paths: MmfPaths, overrides: Sequence[str]
) -> tuple[set[str], list[InputFiles], list[Run]]:
    """Resolve names to parts, inputs and runs; without names, return everything.

    Returns:
        Names of parts, input files, and runs.

    Raises:
        UsageError: Overrides are given without a preset.
    """
    parts = set(names) & set(PARTS) if names or overrides else set(PARTS)
    others = [name for name in names if name not in PARTS]
    preset_names = [name for name in others if name in presets.list_presets() or Path(name).is_file()]
    if overrides and not preset_names:
        message = f"{overrides[0]}: an override requires a preset"
        raise errors.UsageError(message, hint="put the preset before the override")
    inputs: list[InputFiles] = []
    if preset_names:
        inputs += find_preset_inputs(install.find_mmf(), preset_names, mmf_paths, overrides)
    if "features" in parts:
        folders = {item.folder for item in inputs}
        inputs += [item for item in list_existing_inputs(mmf_paths) if item.folder not in folders]
    runs = [run for name in others if name not in preset_names for run in _find_runs(mmf_paths.save_dir, name)]
    if "runs" in parts:
        runs = lookup.list_runs_with_sweeps(mmf_paths.save_dir)
    return parts, inputs, runs


def _find_runs(save_dir: Path, name: str) -> list[Run]:
    """Return the run of a name, or all runs of a sweep.

    Raises:
        RunNotFoundError: The name is neither a part, a preset nor a run.
    """
    try:
        return lookup.find_runs(save_dir, name)
    except errors.RunNotFoundError as error:
        message = f"no part, preset or run named {name}"
        raise errors.RunNotFoundError(message, hint=suggestion_hint(name, PARTS).strip() or error.hint) from None


def verify_parts(
    names: Sequence[str], mmf_paths: MmfPaths, overrides: Sequence[str] = (), *, full: bool = False
) -> list[VerificationResult]:
    """Verify one item after the other, with a progress bar for each that takes long.

    Missing items are skipped unless a preset needs them. Checkpoints are read every time, other files only if
    they were modified since they were last found intact.

    Args:
        names: Parts, presets and runs; empty for everything.
        mmf_paths: MMF's folders.
        overrides: Overrides of the presets.
        full: Read every file.

    Returns:
        One result per item.

    Raises:
        UsageError: A name is unknown.
        MmfEnvironmentError: A preset is given, but MMF is not installed.
    """
    parts, inputs, runs = _resolve_names(names, mmf_paths, overrides)
    results = [
        _verify_dataset(mmf_paths, full) if "dataset" in parts else None,
        *(_verify_input(input_files, full) for input_files in inputs),
        *(_verify_checkpoints(run) for run in runs),
        _verify_mmf(full) if "mmf" in parts else None,
    ]
    return [result for result in results if result is not None]


def repair_parts(
    names: Sequence[str], mmf_paths: MmfPaths, overrides: Sequence[str], mirror: Mirror
) -> list[VerificationResult]:
    """Repair only what is damaged.

    An item that cannot be repaired is left unchanged, and its result contains the error.

    Args:
        names: Parts, presets and runs; empty for everything.
        mmf_paths: MMF's folders.
        overrides: Overrides of the presets.
        mirror: Source of the files.

    Returns:
        One result per item, after the repair.

    Raises:
        ResourceError: There is not enough disk space.
        UsageError: A name is unknown.
        MmfEnvironmentError: A preset is given, but MMF is not installed.
    """
    parts, inputs, runs = _resolve_names(names, mmf_paths, overrides)
    results = []
    if "mmf" in parts:  # first, because it has the sources of the others
        results.append(_repair_if_damaged(_verify_mmf, install.select_mmf))
    if "dataset" in parts:
        extra: VerificationState | None = "not verified" if mirror.url or mirror.path else None
        results.append(
            _repair_if_damaged(lambda: _verify_dataset(mmf_paths), lambda: _repair_dataset(mmf_paths, mirror), extra)
        )
    results += [*_repair_inputs(inputs, mmf_paths, mirror), *map(_verify_checkpoints, runs)]
    return [result for result in results if result is not None]


def _repair_if_damaged(
    verify_part: Callable[[], VerificationResult | None],
    repair_part: Callable[[], object],
    extra_state: VerificationState | None = None,
) -> VerificationResult | None:
    before = verify_part()
    if before is None or before.state not in ("damaged", extra_state):
        return before
    try:
        repair_part()
    except _FAILURES as error:
        return replace(before, error=error)
    after = verify_part()
    return after and replace(after, repaired=before.problems if after.is_usable else ())


def _repair_inputs(inputs: Sequence[InputFiles], mmf_paths: MmfPaths, mirror: Mirror) -> list[VerificationResult]:
    results = {item: _verify_input(item) for item in inputs}
    damaged = [item for item, result in results.items() if result.state == "damaged"]
    if damaged:
        try:
            repaired = fetch_inputs([item.with_source() for item in damaged], mmf_paths, mirror, repair_only=True)
        except (errors.UsageError, errors.InUseError) as error:  # the source has none of the archives
            repaired = [replace(results[item], error=error) for item in damaged]
        results |= dict(zip(damaged, repaired, strict=True))
    return list(results.values())


def _verify_dataset(mmf_paths: MmfPaths, full: bool = False) -> VerificationResult | None:
    paths = mmf_paths.dataset
    result = VerificationResult("dataset", "dataset", paths.root, "not verified", _VERIFIED_AGAINST_NOTHING)
    try:
        manifest = load_dataset_manifest(paths)
        if manifest is None:
            return result if paths.annotations.is_dir() else None
        damage = find_damage(manifest, full=full, title="Verifying the dataset")
    except (errors.DataError, errors.InUseError) as error:
        return replace(result, state="damaged", problems=(str(error),))
    verified_against = manifest.verified_against
    images = {name: manifest.folder / name for name in manifest.files if name.startswith("images/")}
    if not damage and (unusable := find_unusable_images(images, list_checked_images(manifest))):
        arguments = ["--force", "--zip", "ARCHIVE", *data_dir_arguments(mmf_paths.data_dir)]
        command = format_command("mmfw", "convert", *arguments)
        hint = f"{choose_common_hint(unusable)}, then run `{command}` (--allow-missing excludes them)"
        refusal = errors.DatasetError(f"{len(unusable)} images cannot be used", hint=hint)
        problems = tuple(f"unusable: {name} ({problem.description})" for name, problem in unusable.items())
        return replace(result, state="damaged", verified_against=verified_against, problems=problems, error=refusal)
    state: VerificationState = "damaged" if damage else "recorded" if manifest.hash_origin == "recorded" else "intact"
    return replace(result, state=state, verified_against=verified_against, problems=tuple(map(str, damage)))


def _repair_dataset(mmf_paths: MmfPaths, mirror: Mirror) -> None:
    root, archive = mmf_paths.dataset.root, _find_archive(mirror, mmf_paths)
    try:
        repair_dataset(mmf_paths, archive, ask=mirror.ask)
        return
    except errors.IncompleteInstallError:  # and its record is damaged, so it cannot be completed
        alternative_hint = None
    except errors.DamagedManifestError:  # so it is unknown which files are intact
        alternative_hint = f"delete {root / MANIFEST_NAME} to accept the files as they are"
    archive = archive or find_source_archive(load_manifest_notes(root), alternative_hint)
    convert(archive, mmf_paths, ask=mirror.ask, allow_missing=True)


def _find_archive(mirror: Mirror, mmf_paths: MmfPaths) -> Path | None:
    """Return the archive that the dataset was converted from if a source on this machine has it."""
    notes, path = load_manifest_notes(mmf_paths.dataset.root), mirror.path
    source = notes.source if notes else None
    if path is None or source is None:
        return path  # its content is compared later
    if (path / source.name).exists():
        return path / source.name
    has_same_kind = path.is_file() if source.sha256 else path.is_dir()
    return path if has_same_kind else None


def _verify_input(input_files: InputFiles, full: bool = False) -> VerificationResult:
    """Verify an input; for a damaged one, add the error if nothing can repair it."""
    try:
        result = input_files.verify(full=full)
    except errors.MmfEnvironmentError as error:  # a package that reads it is missing
        return replace(input_files.quick_check(), error=error)
    is_damaged = result.state == "damaged" and result.error is None
    return replace(result, error=input_files.with_source().unrepairable_error(result)) if is_damaged else result


def _verify_checkpoints(run: Run) -> VerificationResult | None:
    result = VerificationResult("runs", f"run {run.id}", run.checkpoints, "intact", "the checksums that torch wrote")
    try:
        files = list_checkpoints(run)
    except OSError as refused:
        return replace(result, state="damaged", problems=(f"{refused.filename}: {refused.strerror}",))
    if not files:
        return None
    problems = {file.name: file.problem for file in files if file.problem}
    if not problems:
        return result
    use_hint = intact_checkpoint_hint(run, files)
    if FOREIGN_PROBLEM in problems.values():
        result = replace(result, verified_against=f"{result.verified_against}, and the run's record of hashes")
        kind, fallback_hint = "foreign checkpoint", "train again; the run has no checkpoint of its own"
        hint = f"move the foreign checkpoints away; {use_hint}"
    else:
        kind = "damaged checkpoint"
        fallback_hint = "train again and delete the damaged files; there is no intact checkpoint"
        hint = f"{use_hint}; you can delete the damaged files"
    error = errors.CheckpointError(f"a {kind} cannot be repaired", hint=hint if use_hint else fallback_hint)
    problem_lines = tuple(f"{name}: {problem}" for name, problem in problems.items())
    return replace(result, state="damaged", problems=problem_lines, error=error)


def _verify_mmf(full: bool = False) -> VerificationResult | None:
    mmf = survey_mmf(full=full)
    installed, problems = mmf.installed, mmf.problems
    if installed is None:
        if not problems:
            return None
        return VerificationResult("mmf", "MMF", mmfw_home() / "mmf", "damaged", _VERIFIED_AGAINST_NOTHING, problems)
    result = VerificationResult("mmf", f"MMF {installed.version}", installed.root, "intact", _VERIFIED_AGAINST_NOTHING)
    if problems is None:
        return replace(result, state="not verified", verified_against="nothing (your own checkout)")
    with suppress(errors.DataError):  # already in problems
        manifest = Manifest.load(installed.root)
        result = replace(result, verified_against=manifest.verified_against if manifest else _VERIFIED_AGAINST_NOTHING)
    return replace(result, state="damaged", problems=problems) if problems else result

"""Verifies and repairs all that mmfw has written: the dataset, features and weights, checkpoints, MMF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mmf_win import errors
from mmf_win.console import format_command, suggestion_hint
from mmf_win.dataset.convert import convert, find_source_archive, load_dataset_manifest, repair_dataset
from mmf_win.dataset.image_files import find_unusable_images, list_checked_images, most_common_hint
from mmf_win.doctor.survey import survey_mmf
from mmf_win.inputs.discovery import inputs_on_disk
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
_PART_ERRORS = (
    errors.DataError,
    errors.InUseError,
    errors.MmfEnvironmentError,
    errors.PasswordError,
    errors.UsageError,
)


def _resolve_names(
    names: Sequence[str], places: MmfPaths, overrides: Sequence[str]
) -> tuple[set[str], list[InputFiles], list[Run]]:
    """What a user names: parts, features and the like, and runs; without a name, everything."""
    parts = set(names) & set(PARTS) if names or overrides else set(PARTS)
    others = [name for name in names if name not in PARTS]
    of_presets = [name for name in others if name in presets.names() or Path(name).is_file()]
    if overrides and not of_presets:
        message = f"{overrides[0]}: an override needs a preset"
        raise errors.UsageError(message, hint="name the preset before it")
    inputs: list[InputFiles] = []
    if of_presets:
        inputs += find_preset_inputs(install.find_mmf(), of_presets, places, overrides)
    if "features" in parts:
        folders = {each.folder for each in inputs}
        inputs += [each for each in inputs_on_disk(places) if each.folder not in folders]
    runs = [run for name in others if name not in of_presets for run in _find_runs(places.save_dir, name)]
    if "runs" in parts:
        runs = lookup.list_runs_with_sweeps(places.save_dir)
    return parts, inputs, runs


def _find_runs(save_dir: Path, name: str) -> list[Run]:
    """Return the run of a name, or all of a sweep."""
    try:
        return lookup.find_runs(save_dir, name)
    except errors.RunNotFoundError as error:
        message = f"{name}: no part, preset or run of this name"
        raise errors.RunNotFoundError(
            message, hint=suggestion_hint(name, PARTS).strip() or error.hint
        ) from None


def verify_parts(
    names: Sequence[str], places: MmfPaths, overrides: Sequence[str] = (), *, full: bool = False
) -> list[VerificationResult]:
    """Verify one thing after the other, with a progress bar for each that takes a while.

    What is not there is passed over, unless a preset needs it. Checkpoints are read each time, all else only
    if it was touched since it was last found intact, or with ``full``.

    Raises UsageError where a name stands for nothing, and MmfError for a preset where there is no MMF.
    """
    parts, inputs, runs = _resolve_names(names, places, overrides)
    found = [
        _verify_dataset(places, full) if "dataset" in parts else None,
        *(_verify_input(each, full) for each in inputs),
        *(_verify_checkpoints(run) for run in runs),
        _verify_mmf(full) if "mmf" in parts else None,
    ]
    return [finding for finding in found if finding is not None]


def repair_parts(
    names: Sequence[str], places: MmfPaths, overrides: Sequence[str], mirror: Mirror
) -> list[VerificationResult]:
    """Repair what is damaged, and nothing else; the findings are those afterwards.

    What cannot be repaired stays as it is, and its finding has the error. Raises ResourceError where there is
    not enough room, and else as :func:`verify_parts`.
    """
    parts, inputs, runs = _resolve_names(names, places, overrides)
    found = []
    if "mmf" in parts:  # first, for it knows where the others come from
        found.append(_repair_if_damaged(_verify_mmf, install.select_mmf))
    if "dataset" in parts:
        also: VerificationState | None = "not verified" if mirror.url or mirror.path else None
        found.append(
            _repair_if_damaged(lambda: _verify_dataset(places), lambda: _repair_dataset(places, mirror), also)
        )
    found += [*_repair_inputs(inputs, places, mirror), *map(_verify_checkpoints, runs)]
    return [finding for finding in found if finding is not None]


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
    except _PART_ERRORS as error:
        return replace(before, error=error)
    after = verify_part()
    return after and replace(after, repaired=before.problems if after.is_usable else ())


def _repair_inputs(
    inputs: Sequence[InputFiles], places: MmfPaths, mirror: Mirror
) -> list[VerificationResult]:
    found = {each: _verify_input(each) for each in inputs}
    damaged = [each for each, finding in found.items() if finding.state == "damaged"]
    if damaged:
        try:
            repaired = fetch_inputs(
                [each.with_source() for each in damaged], places, mirror, repair_only=True
            )
        except (errors.UsageError, errors.InUseError) as error:  # the source has none of the archives
            repaired = [replace(found[each], error=error) for each in damaged]
        found |= dict(zip(damaged, repaired, strict=True))
    return list(found.values())


def _verify_dataset(places: MmfPaths, full: bool = False) -> VerificationResult | None:
    paths = places.dataset
    finding = VerificationResult("dataset", "dataset", paths.root, "not verified", _VERIFIED_AGAINST_NOTHING)
    try:
        manifest = load_dataset_manifest(paths)
        if manifest is None:
            return finding if paths.annotations.is_dir() else None
        wrong = find_damage(manifest, full=full, title="Verifying the dataset")
    except (errors.DataError, errors.InUseError) as error:
        return replace(finding, state="damaged", problems=(str(error),))
    against = manifest.verified_against
    images = {name: manifest.folder / name for name in manifest.files if name.startswith("images/")}
    if not wrong and (flaws := find_unusable_images(images, list_checked_images(manifest))):
        again = format_command(
            "mmfw", "convert", "--force", "--zip", "ARCHIVE", *data_dir_arguments(places.data_dir)
        )
        hint = f"{most_common_hint(flaws)}, then `{again}`, with --allow-missing to go without them"
        refusal = errors.DatasetError(f"{len(flaws)} of the images cannot be used", hint=hint)
        problems = tuple(f"unusable: {name} ({flaw.description})" for name, flaw in flaws.items())
        return replace(finding, state="damaged", verified_against=against, problems=problems, error=refusal)
    state: VerificationState = (
        "damaged" if wrong else "recorded" if manifest.hash_origin == "recorded" else "intact"
    )
    return replace(finding, state=state, verified_against=against, problems=tuple(map(str, wrong)))


def _repair_dataset(places: MmfPaths, mirror: Mirror) -> None:
    root, archive = places.dataset.root, _find_archive(mirror, places)
    try:
        repair_dataset(places, archive, ask=mirror.ask)
        return
    except errors.IncompleteInstallError:  # and what tells how to finish it is damaged
        other_way = None
    except errors.DamagedManifestError:  # so nothing tells which of the files are intact
        other_way = f"delete {root / MANIFEST_NAME} to take the files as they are"
    archive = archive or find_source_archive(load_manifest_notes(root), other_way)
    convert(archive, places, ask=mirror.ask, allow_missing=True)


def _find_archive(mirror: Mirror, places: MmfPaths) -> Path | None:
    """What the dataset was converted from, as far as a source on this machine has it."""
    known, place = load_manifest_notes(places.dataset.root), mirror.path
    source = known.source if known else None
    if place is None or source is None:
        return place  # whose content is compared
    if (place / source.name).exists():
        return place / source.name
    is_of_kind = place.is_file() if source.sha256 else place.is_dir()
    return place if is_of_kind else None


def _verify_input(input_files: InputFiles, full: bool = False) -> VerificationResult:
    """What is known of an input; of a damaged one, also the error that nothing can repair it."""
    try:
        finding = input_files.verify(full=full)
    except errors.MmfEnvironmentError as error:  # a package is missing that could read it
        return replace(input_files.quick_check(), error=error)
    is_damaged = finding.state == "damaged" and finding.error is None
    return (
        replace(finding, error=input_files.with_source().unrepairable_error(finding))
        if is_damaged
        else finding
    )


def _verify_checkpoints(run: Run) -> VerificationResult | None:
    finding = VerificationResult(
        "runs", f"run {run.id}", run.checkpoints, "intact", "the checksums that torch wrote"
    )
    try:
        found = list_checkpoints(run)
    except OSError as refused:
        return replace(finding, state="damaged", problems=(f"{refused.filename}: {refused.strerror}",))
    if not found:
        return None
    problems = {each.name: each.problem for each in found if each.problem}
    if not problems:
        return finding
    use = intact_checkpoint_hint(run, found)
    if FOREIGN_PROBLEM in problems.values():
        finding = replace(
            finding, verified_against=f"{finding.verified_against}, and the run's record of hashes"
        )
        what, instead = "checkpoint that is not the run's", "the run has none of its own: train again"
        hint = f"move away what the run has not saved; {use}"
    else:
        what = "damaged checkpoint"
        instead = "there is no intact checkpoint to resume from: train again, and delete the damaged files"
        hint = f"{use}; delete the damaged files when you like"
    error = errors.CheckpointError(f"a {what} cannot be repaired", hint=hint if use else instead)
    told = tuple(f"{name}: {problem}" for name, problem in problems.items())
    return replace(finding, state="damaged", problems=told, error=error)


def _verify_mmf(full: bool = False) -> VerificationResult | None:
    mmf = survey_mmf(full=full)
    installed, problems = mmf.installed, mmf.problems
    if installed is None:
        return (
            VerificationResult(
                "mmf", "MMF", mmfw_home() / "mmf", "damaged", _VERIFIED_AGAINST_NOTHING, problems
            )
            if problems
            else None
        )
    finding = VerificationResult(
        "mmf", f"MMF {installed.version}", installed.root, "intact", _VERIFIED_AGAINST_NOTHING
    )
    if problems is None:
        return replace(finding, state="not verified", verified_against="nothing: it is a copy of your own")
    with suppress(errors.DataError):  # which is the problem then
        manifest = Manifest.load(installed.root)
        finding = replace(
            finding, verified_against=manifest.verified_against if manifest else _VERIFIED_AGAINST_NOTHING
        )
    return replace(finding, state="damaged", problems=problems) if problems else finding

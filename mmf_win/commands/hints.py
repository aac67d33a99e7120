"""What to do about an error, where that is an option or a command: by the class of the error.

An error raised below the commands names neither. Its class is in the table here, and what the hint needs are
its attributes; a class that is not here has the hint of its base. Where the error brings a hint of its own,
the one here is the other way out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmf_win.commands.outcomes import hint_after
from mmf_win.commands.overrides import RESERVED
from mmf_win.console import as_typed
from mmf_win.errors import (
    AlreadyThere,
    BrokenMmf,
    DamagedCheckpoints,
    DamagedFeatures,
    DamagedInputs,
    DamagedManifest,
    DataError,
    DownloadError,
    FeaturesConflict,
    IncompleteDataset,
    InputsError,
    MissingArchive,
    MissingInputs,
    MmfwError,
    NeverTrained,
    NoDataset,
    NoDrive,
    NoFeatureFiles,
    NoFeatures,
    NoOwnFeatures,
    NoPassword,
    NoRoom,
    NoRun,
    NotAPreset,
    NotPredicted,
    PipFailed,
    ReservedKey,
    UnknownArchive,
    UnknownConfiguration,
    UnknownKey,
    UnknownPreset,
    UnscorableFile,
)
from mmf_win.inputs.added import built_from
from mmf_win.integrity import Manifest, last_source
from mmf_win.paths import DatasetPaths, Places
from mmf_win.upstream.sources import SOURCES


def hint_for(error: MmfwError) -> str | None:
    """The next step after ``error``, in options and commands; None where there is none to tell."""
    here = next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), None)
    own = here(error) if callable(here) else here
    glue = " " if (error.hint or "").endswith("?") else ", or "
    hint = glue.join(part for part in (error.hint, own) if part) or None
    if hint is None and error.outcome is not None and error.run_dir is not None:
        return hint_after(error.outcome, error.action, error.run_dir)
    return hint


def data_option(data_dir: Path) -> list[str]:
    """What to type so that a command finds a data folder; nothing where it takes that anyway."""
    return [] if data_dir == Places.resolve().data_dir else ["--data-dir", str(data_dir)]


def _on_inputs(command: Sequence[str]) -> Callable[[InputsError], str]:
    return lambda error: as_typed("mmfw", *command, *error.words, *data_option(error.data_dir))


def _repair_manifest(error: DamagedManifest) -> str:
    """Convert the dataset again; other files are verified against what there is of them."""
    data_dir = error.folder.parents[2] if len(error.folder.parents) > 2 else error.folder
    if error.folder != DatasetPaths.below(data_dir).root:
        return "delete this list of hashes, and the files are verified anew"
    source = last_source(error.folder)
    archive = source.path if source and source.path else "ARCHIVE"
    return as_typed("mmfw", "convert", "--force", "--zip", archive, *data_option(data_dir))


def _repair_features(error: DamagedFeatures) -> str:
    """Repair what came out of an archive, and build again what did not."""
    features = error.lmdb.parent
    manifest = None
    with suppress(DataError):
        manifest = Manifest.load(features)
    data_dir = features.parents[3] if len(features.parents) > 3 else features
    is_default = features == DatasetPaths.below(data_dir).features
    here = data_option(data_dir) if is_default else []
    if is_default and manifest and manifest.source:
        return as_typed("mmfw", "repair", "features", *here)
    where = here if is_default and error.lmdb.name == "detectron.lmdb" else ["--output", error.lmdb]
    folders = built_from(error.lmdb)
    build = as_typed("mmfw", "features", "add", *(folders or ["FOLDER"]), *where, "--force")
    if folders:
        return build
    extract = as_typed("mmfw", "features", "extract", "ARCHIVE", "--force", *here)
    return f"`{build}` builds it of the features in FOLDER alone; `{extract}` puts an archive's back"


def _resume(error: DamagedCheckpoints) -> str:
    if error.intact is None:
        return "no checkpoint of this run is intact: train it again, and delete the files when you like"
    last = as_typed("mmfw", "train", "--resume", "last")
    newest = f"the newest intact one is {error.intact}; `{last}` resumes from it"
    return f"{newest}; delete the damaged files when you like"


def _get_mmf(error: BrokenMmf) -> str:
    return f"run `mmfw setup{f' --mmf {error.origin}' if error.origin else ''}`"


def _make_dataset(error: NoDataset) -> str:
    if error.nearby is not None:
        return as_typed("--data-dir", error.nearby) + " is where a dataset lies"
    return "make it with: mmfw convert --zip ARCHIVE, or name its folder with --data-dir"


def _add_features(error: NoOwnFeatures) -> str:
    add = as_typed("mmfw", "features", "add", "FOLDER", *data_option(error.data_dir))
    return f"`{add}` takes those that MMF's extraction scripts write, and --features names another LMDB"


def _find_run(error: NoRun) -> str:
    if error.wanted is None:
        return "`mmfw train PRESET` makes one"
    if error.wanted.endswith((".ckpt", ".pth", ".pt")):
        return as_typed("mmfw", "predict", "--checkpoint", error.wanted) + " predicts with a checkpoint"
    return as_typed("mmfw", "runs", "--save-dir", error.save_dir) + " lists the runs"


def _list_presets(error: UnknownPreset) -> str:
    if error.run is not None:
        return as_typed("mmfw", "train", "--resume", error.run)
    return "`mmfw train --list` shows the presets, and which have published weights"


def _predict(error: NotPredicted) -> str:
    return as_typed("mmfw", "predict", *([error.run, "--split", error.split] if error.run else []))


def _train_on(error: NeverTrained) -> str:
    return "train on from them with: " + as_typed("mmfw", "train", error.preset, "--init", error.init)


def _get_version(error: UnknownKey) -> str | None:
    origin = next((source.name for source in SOURCES if source.version == error.version), None)
    return origin and f"run `mmfw setup --mmf {origin}`"


_HINTS: dict[type[MmfwError], str | Callable[[Any], str | None]] = {
    DamagedInputs: _on_inputs(["repair"]),
    MissingInputs: _on_inputs(["features", "fetch"]),
    DamagedManifest: _repair_manifest,
    DamagedFeatures: _repair_features,
    DamagedCheckpoints: _resume,
    MissingArchive: "name it, or its folder, with --source",
    UnknownArchive: lambda error: (
        f"give {error.name} or its folder with --source, or unpack another archive with "
        "`mmfw features extract --force`"
    ),
    DownloadError: lambda error: f"name a file, folder or mirror with --source that has {error.names}",
    AlreadyThere: "--force replaces it; --data-dir chooses another folder",
    BrokenMmf: _get_mmf,
    FeaturesConflict: "--output LMDB builds another LMDB; --force takes the features of the last folder",
    IncompleteDataset: "leave these memes out with --allow-missing",
    NoDataset: _make_dataset,
    NoDrive: "choose another with --data-dir",
    NoFeatureFiles: "MMF's extraction scripts write NAME.npy and NAME_info.npy; "
    "`mmfw features extract` puts a finished LMDB in place",
    NoOwnFeatures: _add_features,
    NoFeatures: "`mmfw features add FOLDER --output LMDB` makes some",
    NoRun: _find_run,
    NotAPreset: "`mmfw train --list` shows the presets; `mmfw convert --zip FILE` takes the archive",
    NotPredicted: _predict,
    NeverTrained: _train_on,
    NoPassword: "give it with --password, --password-file or the variable MMFW_PASSWORD",
    NoRoom: "choose a folder on another disk with --data-dir",
    ReservedKey: lambda error: RESERVED.get(error.key),
    UnknownPreset: _list_presets,
    UnscorableFile: "`mmfw check-submission` says all about a prediction file",
    PipFailed: "take `mmfw setup --mmf github`, which does without pip",
    UnknownConfiguration: "name the preset that it was trained with: mmfw train PRESET --resume PATH",
    UnknownKey: _get_version,
}

"""What to do about an error, where that is an option or a command: by the class of the error.

An error raised below the commands names neither. Its class is in the table here, and what the hint needs are
its attributes; a class that is not here has the hint of its base. Where the error brings a hint of its own,
the one here is the other way out. An attempt of a run that did not end well has a hint by its outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import Any

from mmf_win import errors
from mmf_win.console import shell_line
from mmf_win.integrity.manifest import noted
from mmf_win.paths import DatasetPaths, Places, data_option
from mmf_win.runs import checkpoints, presets
from mmf_win.runs.folder import Run
from mmf_win.runs.history import summarize
from mmf_win.runs.lookup import all_runs
from mmf_win.runs.training import precision_of


def hint_for(error: errors.MmfwError) -> str | None:
    """The next step after ``error``, in options and commands; None where there is none to tell."""
    here = next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), "")
    own = None
    with suppress(errors.MmfwError, OSError):  # what a hint reads may be what is broken
        own = here(error) if callable(here) else _filled_in(here, error)
    glue = " " if (error.hint or "").endswith("?") else ", or "
    hint = glue.join(part for part in (error.hint, own) if part) or None
    if hint is None and error.outcome is not None and error.run_dir is not None:
        return _hint_after(error.outcome, error.action == "train", Run(error.run_dir), error.log)
    return hint


class _Typed(Formatter):
    """``{folder}`` is that attribute of the error as it is typed, one word or several.

    ``{folder:--option}`` is ``--option FOLDER``, with a blank before it; nothing where a command takes that
    folder anyway, or there is none.
    """

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """An attribute of the error."""
        return getattr(args[0], str(key))

    def format_field(self, value: Any, option: str) -> str:
        """What to type for it."""
        if not option:
            return shell_line(*(value if isinstance(value, (list, tuple)) else [value]))
        return "" if value in (None, Places.resolve().data_dir) else f" {shell_line(option, value)}"


def _filled_in(hint: str, error: errors.MmfwError) -> str:
    return _Typed().format(hint, error)


def _repair_manifest(error: errors.DamagedManifest) -> str:
    """Write the files again, if they came out of an archive."""
    folder, known = error.folder, noted(error.folder)
    for data_dir in folder.parents if known and known.source else ():
        paths = DatasetPaths.below(data_dir)
        if folder in (paths.root, paths.features):
            part = "dataset" if folder == paths.root else "features"
            return shell_line("mmfw", "repair", part, *data_option(data_dir))
    return "delete this list of hashes, and the files are verified again"


def _finish(error: errors.UnfinishedInstallation) -> str:
    return shell_line("mmfw", "repair", "dataset", *data_option(DatasetPaths(error.folder).data_dir))


def _resume_intact(error: errors.DamagedCheckpoints) -> str:
    if error.intact is None:
        return "there is no intact checkpoint to resume from: train again, and delete the damaged files"
    use = use_intact(Run(error.folder.parent), error.update)
    return f"the newest intact one is {error.intact}; {use}; delete the damaged files when you like"


def _make_dataset(error: errors.NoDataset) -> str:
    if error.nearby is not None:
        return _filled_in("--data-dir {nearby} is where a dataset lies", error)
    make = "`mmfw convert --zip ARCHIVE{data_dir:--data-dir}` makes it"
    return _filled_in(f"{make}, or name its folder with --data-dir", error)


def _find_run(error: errors.NoRun) -> str:
    if error.wanted is None or error.wanted in presets.names():
        train = shell_line("mmfw", "train", error.wanted or "PRESET", "--save-dir", error.save_dir)
        return f"`{train}` makes one"
    if error.wanted.endswith((".ckpt", ".pth", ".pt")):
        return f"`{shell_line('mmfw', 'predict', '--checkpoint', error.wanted)}` predicts with a checkpoint"
    return f"`{shell_line('mmfw', 'runs', '--save-dir', error.save_dir)}` lists the runs"


def _list_presets(error: errors.UnknownPreset) -> str:
    if error.run is not None:
        return shell_line("mmfw", "train", "--resume", error.run)
    return "`mmfw train --list` shows the presets, and which have published weights"


# Braces: see _Typed.
_HINTS: dict[type[errors.MmfwError], str | Callable[[Any], str | None]] = {
    errors.DamagedManifest: _repair_manifest,
    errors.DamagedCheckpoints: _resume_intact,
    errors.MissingArchive: "name it, or its folder, with --source",
    errors.UnfinishedInstallation: _finish,
    errors.UnusedGpu: "`mmfw setup --torch` prints the pip line that brings the build for this machine",
    errors.AlreadyThere: "--force replaces it; --data-dir chooses another folder",
    errors.BrokenMmf: "run `mmfw setup{origin:--mmf}`",
    errors.IncompleteDataset: "--allow-missing goes without them",
    errors.NoDataset: _make_dataset,
    errors.NoValidation: "training needs one: add dev.csv or dev.jsonl to what was converted, and "
    "`mmfw convert --force --zip ARCHIVE{data_dir:--data-dir}`",
    errors.NoDrive: "choose another with --data-dir",
    errors.NoFeatureFiles: "MMF's extraction scripts write NAME.npy and NAME_info.npy; "
    "`mmfw features extract` puts a finished LMDB in place",
    errors.UnknownOrigin: "`mmfw convert --zip ARCHIVE --force{data_dir:--data-dir}` writes it again",
    errors.NoFeatures: "`mmfw features add FOLDER -o LMDB` makes some",
    errors.NoRun: _find_run,
    errors.NotAPreset: "`mmfw train --list` shows the presets; `mmfw convert --zip FILE` takes the archive",
    errors.NotPredicted: "mmfw predict {runs} --split {split}{data_dir:--data-dir}",
    errors.NoOwnCode: "name its folder with env.user_dir=FOLDER",
    errors.UnreadableRun: "`mmfw runs rm {folder}` removes this run",
    errors.NoPassword: "give it with --password, --password-file or the variable MMFW_PASSWORD",
    errors.NoRoom: "choose a folder on another disk with --data-dir",
    errors.UnknownPreset: _list_presets,
    errors.PipFailed: "take `mmfw setup --mmf github`, which does without pip",
    errors.UnknownConfiguration: "name the preset that it was trained with: mmfw train PRESET --resume PATH",
}

_BEGIN = "the same command begins again"

# {resume}: how to resume the training, or to begin again where nothing is saved; {again}: the command for it.
_AFTER = {
    "cuda_oom": "see who else uses the GPU (nvidia-smi), or choose a smaller model",
    "host_oom": "try a smaller --batch-size, or end other programs",
    "disk": "free some space; {resume}",
    "nan": "{again} --detect-anomaly finds the operation that makes it; else begin again with a smaller "
    "optimizer.params.lr",
    "nan in fp16": "fp16 ends at 65,504: {again} --precision fp32 goes further",
    "killed": "{resume}",
    "untrusted": "if you trust where the file comes from, repeat the command with --trust",
    "config": "check the KEY=VALUE overrides and the preset against MMF's configuration",
    "mmf": "mmfw doctor",
    "network": "MMF could not download what the preset needs; check the connection and try again",
}


def _hint_after(outcome: str, trains: bool, run: Run, log: Path | None) -> str | None:
    if outcome == "interrupted":
        if not trains:
            return None
        saved = any(run.checkpoints.glob("*.ckpt"))  # to read them would keep the prompt waiting
        return f"resume with: {resume(run)}" if saved else f"nothing is saved yet; {_BEGIN}"
    if outcome == "nan":
        with suppress(errors.DataError):
            outcome = "nan in fp16" if precision_of(run) == "fp16" else outcome
    hint = _AFTER.get(outcome, "")
    if "{" in hint:
        hint = _with_resume(hint, run) if trains else ""
    where = f"the whole output is in {log}"
    return f"{hint}; {where}" if hint else where


def _with_resume(hint: str, run: Run) -> str:
    if not checkpoints.can_resume(run):
        return hint.format(resume=_BEGIN, again="the same command")
    command = resume(run)
    return hint.format(resume=f"{command} resumes from the last intact checkpoint", again=command)


def resume(run: Run) -> str:
    """The command that resumes this very run, which need not be the newest."""
    save_dir = run.path.parent.parent
    newest = next(iter(all_runs(save_dir)), run)
    which = "last" if newest.path == run.path else run.id
    return shell_line("mmfw", "train", "--resume", which, "--save-dir", save_dir)


def use_intact(run: Run, update: int | None) -> str:
    """Which command goes on with a run that has damaged checkpoints, and intact ones up to an update."""
    with suppress(errors.DataError):
        known = summarize(run)
        if known.state == "done" and known.updates == update:  # nothing is left to train
            predict = shell_line("mmfw", "predict", run.id, "--save-dir", run.path.parent.parent)
            return f"`{predict}` predicts with what is intact"
    return f"`{resume(run)}` resumes from what is intact"

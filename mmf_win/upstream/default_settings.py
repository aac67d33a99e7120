"""MMF's configuration keys that mmfw sets, so that a user does not trip over MMF's defaults."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from mmf_win.machine import available_cpus
from mmf_win.paths import MmfPaths, empty_zoo_file
from mmf_win.upstream.config import Settings
from mmf_win.upstream.overrides import escape_interpolation
from mmf_win.upstream.versions import has_key

ANNOTATIONS_TEMPLATE = "hateful_memes/defaults/annotations/{}.jsonl"

#: Variables that break the worker: libraries need docstrings and warn; tracing takes ten times as long.
HARMFUL_VARIABLES = ("PYTHONOPTIMIZE", "PYTHONTRACEMALLOC", "PYTHONWARNINGS")


def common_settings(model: str, splits: Mapping[str, str], version: str, process_count: int = 1) -> Settings:
    """What every run needs; ``processes`` share this machine.

    ``splits`` has the stems of the files for ``train``, ``val`` and ``test``.
    """
    training: Settings = {
        "num_workers": default_dataloader_workers() // process_count,
        "experiment_name": model,
        # The curves of a run are as fine as this; MMF's own 100 shows nothing of a short one.
        "log_interval": 10,
    }
    if not has_key(version, "training.callbacks"):
        training["trainer"] = "mmfw"
    if has_key(version, "training.stdout_capture"):
        training["stdout_capture"] = False  # else the log says nothing after "Logging to:"
    if has_key(version, "training.colored_logs"):
        training["colored_logs"] = False
    annotations = {slot: [ANNOTATIONS_TEMPLATE.format(stem)] for slot, stem in splits.items()}
    return {
        "training": training,
        "dataset_config": {"hateful_memes": {"annotations": annotations}},
        # GitPython reads the repository around MMF, which may be the user's own or none.
        "checkpoint": {"save_git_details": False},
        # MMF would start a process for each GPU; ours start all that is asked for.
        "distributed": {"world_size": 1},
    }


def training_settings(max_updates: int | None) -> Settings:
    """What training needs, unless a preset says otherwise.

    Where the user named its total of updates, a short run validates and saves at least five times.
    """
    # MMF's train_inference then tests, and fails after hours where the test set has no labels.
    if max_updates is None:
        return {"run_type": "train_val"}
    interval = min(1000, max(1, max_updates // 5))
    intervals = dict.fromkeys(("evaluation_interval", "checkpoint_interval"), interval)
    return {"run_type": "train_val", "training": {**intervals, "log_interval": min(10, interval)}}


def add_hooks(settings: Settings, version: str, precision: str | None) -> Settings:
    """``settings`` with our callback beside those that a preset has.

    Where the model calculates with a ``precision`` of our options, a hook sees to that, and MMF's own half
    precision, which refuses CPUs, is off.
    """
    if not has_key(version, "training.callbacks"):
        return settings
    training = settings.get("training", {})
    callbacks = [*training.get("callbacks", []), {"type": "mmfw", "params": {}}]
    off = {} if precision is None else {"fp16": False}
    return {**settings, "training": {**training, **off, "callbacks": callbacks}}


def resume_settings(checkpoint: Path) -> Settings:
    """What resuming from a checkpoint needs.

    MMF's ``resume`` takes current.ckpt whatever ``resume_file`` says, ``resume_best`` restarts the counts,
    and ``resume_pretrained`` would copy only what the model was pretrained with.
    """
    off = dict.fromkeys(("resume", "resume_best", "resume_pretrained"), False)
    return {"checkpoint": {**off, "resume_file": escape_interpolation(checkpoint), "resume_zoo": None}}


def prediction_settings(checkpoint: Path, version: str) -> Settings:
    """What prediction with one checkpoint needs, whatever the run had."""
    settings = resume_settings(checkpoint)
    settings["checkpoint"]["reset"] = {"optimizer": True}
    evaluation: Settings = {"predict": True, "predict_file_format": "csv"}
    if has_key(version, "evaluation.reporter"):
        evaluation["reporter"] = {"type": "file"}
    return {"run_type": "test", "evaluation": evaluation, **settings}


def settings_for_all_splits(**paths: Path | str) -> Settings:
    """The paths of what a prediction reads: MMF loads the splits for training and validation, too."""
    slots = ("train", "val", "test")
    every = {kind: {slot: [escape_interpolation(path)] for slot in slots} for kind, path in paths.items()}
    return {"dataset_config": {"hateful_memes": every}}


def worker_environment(
    mmf_paths: MmfPaths,
    save_dir: Path,
    log_dir: Path,
    raw_reports: Path,
    *,
    offline: bool,
    may_query_hub: bool = True,
) -> dict[str, str]:
    """The worker's environment: MMF's folders, UTF-8 files, and no downloads when offline.

    MMF keeps checkpoints in ``save_dir``, its own logs in ``logs`` and predictions in ``raw_reports``. Where
    it ``asks_hub``, it may need more of the Hugging Face Hub than what is here.
    """
    return {
        # How long a thread of GNU's OpenMP spins while it waits for another, unless the user has said so.
        # By default that is 300 times as long, and two trainings at once on two cores then took 2.5 times
        # as long as one after the other. A training alone is slower by no more than 2 %.
        **({} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}),
        # What a run reads was fetched and checked before; of the rest, MMF need not download anything.
        "MMF_DATASET_ZOO": str(empty_zoo_file()),
        # transformers would look for newer files of a model, and without a network wait for minutes.
        **({} if may_query_hub else {"HF_HUB_OFFLINE": "1"}),
        **{
            key: value
            for key, value in os.environ.items()
            if key not in ("MMFW_PASSWORD", *HARMFUL_VARIABLES)
        },
        "MMF_CACHE_DIR": str(mmf_paths.cache_dir),
        "MMF_DATA_DIR": str(mmf_paths.data_dir),
        "MMF_SAVE_DIR": str(save_dir),
        "MMF_LOG_DIR": str(log_dir),
        "MMF_REPORT_DIR": str(raw_reports),
        # MMF opens text without naming an encoding; on Windows that would be the code page.
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        # Nothing that happens to lie in the user's folder may stand in for a library (Python 3.11 and later).
        "PYTHONSAFEPATH": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **({"MMF_DATASET_ZOO": str(empty_zoo_file()), "HF_HUB_OFFLINE": "1"} if offline else {}),
    }


def limit_gpus(environment: Mapping[str, str], count: int) -> dict[str, str]:
    """``environment`` with at most ``count`` GPUs in it, and no mention of other processes that take part."""
    left = launcher_variables(environment)
    alone = {key: value for key, value in environment.items() if key not in left}
    names = alone.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return alone | {"CUDA_VISIBLE_DEVICES": ",".join(names[:count]) if count else "-1"}


def launcher_variables(environment: Iterable[str]) -> list[str]:
    """The variables by which a launcher such as torchrun tells MMF of other processes that take part."""
    told = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return [key for key in environment if key in told]


def default_dataloader_workers() -> int:
    """DataLoader workers for this machine.

    On two cores, and on Windows where each worker imports torch again, they cost more than they bring.
    """
    if sys.platform == "win32":
        return 0
    cores = available_cpus()
    return 0 if cores <= 2 else min(4, cores // 2)

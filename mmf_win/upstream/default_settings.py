"""MMF configuration keys that mmfw sets, to correct defaults of MMF that would get in the user's way."""

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

#: Variables that break the worker: libraries need docstrings and emit warnings, and tracing is very slow.
HARMFUL_VARIABLES = ("PYTHONOPTIMIZE", "PYTHONTRACEMALLOC", "PYTHONWARNINGS")


def common_settings(model: str, splits: Mapping[str, str], version: str, process_count: int = 1) -> Settings:
    """Return the settings of every run.

    Args:
        model: MMF's name of the model.
        splits: Stems of the annotation files for ``train``, ``val`` and ``test``.
        version: MMF's version.
        process_count: Number of training processes on this machine.
    """
    training: Settings = {
        "num_workers": default_dataloader_workers() // process_count,
        "experiment_name": model,
        # This is the resolution of a run's curves. With MMF's default of 100, a short run has none.
        "log_interval": 10,
    }
    if not has_key(version, "training.callbacks"):
        training["trainer"] = "mmfw"
    if has_key(version, "training.stdout_capture"):
        training["stdout_capture"] = False  # else the log ends after "Logging to:"
    if has_key(version, "training.colored_logs"):
        training["colored_logs"] = False
    annotations = {slot: [ANNOTATIONS_TEMPLATE.format(stem)] for slot, stem in splits.items()}
    return {
        "training": training,
        "dataset_config": {"hateful_memes": {"annotations": annotations}},
        # GitPython would read the repository that contains MMF, if any; it may be an unrelated one.
        "checkpoint": {"save_git_details": False},
        # MMF would start a process per GPU; mmfw starts the requested processes itself.
        "distributed": {"world_size": 1},
    }


def training_settings(max_updates: int | None) -> Settings:
    """Return the default settings of a training, which a preset may replace.

    Args:
        max_updates: Total number of updates if the user set it. A short run then validates and saves at least
            five times.
    """
    # MMF's train_inference would test at the end, which fails after hours if the test set has no labels.
    if max_updates is None:
        return {"run_type": "train_val"}
    interval = min(1000, max(1, max_updates // 5))
    intervals = dict.fromkeys(("evaluation_interval", "checkpoint_interval"), interval)
    return {"run_type": "train_val", "training": {**intervals, "log_interval": min(10, interval)}}


def add_hooks(settings: Settings, version: str, precision: str | None) -> Settings:
    """Return ``settings`` with mmfw's callback added to those of the preset.

    If ``precision`` is set, a hook casts the model, so MMF's own half precision is switched off; it does not
    support CPUs.
    """
    if not has_key(version, "training.callbacks"):
        return settings
    training = settings.get("training", {})
    callbacks = [*training.get("callbacks", []), {"type": "mmfw", "params": {}}]
    mmf_precision = {} if precision is None else {"fp16": False}
    return {**settings, "training": {**training, **mmf_precision, "callbacks": callbacks}}


def resume_settings(checkpoint: Path) -> Settings:
    """Return the settings to resume from a checkpoint.

    MMF's ``resume`` loads current.ckpt regardless of ``resume_file``, ``resume_best`` restarts the counts,
    and ``resume_pretrained`` would copy only the weights that the model was pretrained with.
    """
    off = dict.fromkeys(("resume", "resume_best", "resume_pretrained"), False)
    return {"checkpoint": {**off, "resume_file": escape_interpolation(checkpoint), "resume_zoo": None}}


def prediction_settings(checkpoint: Path, version: str) -> Settings:
    """Return the settings to predict with one checkpoint, which replace those of the run."""
    settings = resume_settings(checkpoint)
    settings["checkpoint"]["reset"] = {"optimizer": True}
    evaluation: Settings = {"predict": True, "predict_file_format": "csv"}
    if has_key(version, "evaluation.reporter"):
        evaluation["reporter"] = {"type": "file"}
    return {"run_type": "test", "evaluation": evaluation, **settings}


def settings_for_all_splits(**paths: Path | str) -> Settings:
    """Return settings that use the same paths for all splits: MMF loads all of them to predict."""
    slots = ("train", "val", "test")
    by_kind = {kind: {slot: [escape_interpolation(path)] for slot in slots} for kind, path in paths.items()}
    return {"dataset_config": {"hateful_memes": by_kind}}


def worker_environment(
    mmf_paths: MmfPaths, save_dir: Path, log_dir: Path, raw_reports: Path, *, offline: bool, may_query_hub: bool = True
) -> dict[str, str]:
    """Return the worker's environment: MMF's folders, UTF-8 files, and no downloads when offline.

    Args:
        mmf_paths: MMF's folders.
        save_dir: Folder of MMF's checkpoints.
        log_dir: Folder of MMF's logs.
        raw_reports: Folder of MMF's prediction files.
        offline: Allow no downloads.
        may_query_hub: The run may need more from the Hugging Face Hub than its cache contains.
    """
    return {
        # Limit how long a thread of GNU OpenMP spins while it waits, unless the user has chosen. The default
        # is 300 times as long, with which two concurrent trainings on two cores took 2.5 times as long as
        # two consecutive ones. A single training is at most 2 % slower.
        **({} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}),
        # The inputs of a run were fetched and verified before, so MMF has nothing to download.
        "MMF_DATASET_ZOO": str(empty_zoo_file()),
        # transformers would look for newer files of a model, which takes minutes without a network.
        **({} if may_query_hub else {"HF_HUB_OFFLINE": "1"}),
        **{key: value for key, value in os.environ.items() if key not in ("MMFW_PASSWORD", *HARMFUL_VARIABLES)},
        "MMF_CACHE_DIR": str(mmf_paths.cache_dir),
        "MMF_DATA_DIR": str(mmf_paths.data_dir),
        "MMF_SAVE_DIR": str(save_dir),
        "MMF_LOG_DIR": str(log_dir),
        "MMF_REPORT_DIR": str(raw_reports),
        # MMF opens text files without an encoding, which on Windows would be the code page.
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        # A file in the user's folder must not replace a library (Python 3.11 and later).
        "PYTHONSAFEPATH": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **({"MMF_DATASET_ZOO": str(empty_zoo_file()), "HF_HUB_OFFLINE": "1"} if offline else {}),
    }


def limit_gpus(environment: Mapping[str, str], count: int) -> dict[str, str]:
    """Return ``environment`` with at most ``count`` visible GPUs and without a launcher's variables."""
    removed = launcher_variables(environment)
    remaining = {key: value for key, value in environment.items() if key not in removed}
    gpu_ids = remaining.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return remaining | {"CUDA_VISIBLE_DEVICES": ",".join(gpu_ids[:count]) if count else "-1"}


def launcher_variables(environment: Iterable[str]) -> list[str]:
    """Return the variables with which a launcher such as torchrun describes a distributed training."""
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return [key for key in environment if key in names]


def default_dataloader_workers() -> int:
    """Return the number of DataLoader workers for this machine.

    With two cores they cost more than they gain; the same is true on Windows, where each worker imports
    torch.
    """
    if sys.platform == "win32":
        return 0
    cores = available_cpus()
    return 0 if cores <= 2 else min(4, cores // 2)

"""Hooks that mmfw adds to MMF: events, stop requests, safe checkpoints and checks of loaded weights.

MMF 1.0.0rc10 has no callbacks, so a trainer is registered there; later versions get a callback. Both are thin
adapters around a :class:`~mmf_win.worker.hooks.session.TrainingSession`, which writes the reports.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from mmf_win.protocol import AttemptRequest
from mmf_win.upstream.versions import has_key, read_version
from mmf_win.worker.disk_cache import ImageCache, install_image_cache
from mmf_win.worker.hooks import fast_mode, weight_loading
from mmf_win.worker.hooks.observer import Observer, stop_when_batches_stall
from mmf_win.worker.hooks.phase_timer import TIMED_METHODS
from mmf_win.worker.prediction_progress import report_scoring_progress
from mmf_win.worker.stop_signal import StopSignal


def register(request: AttemptRequest, stop: StopSignal) -> list[Any]:
    """Register the hooks in this process and return the list to which MMF's trainer will be added."""
    observer, trainers = Observer(request, stop), list[Any]()
    version = read_version(Path(request.mmf_root))
    adapter = "callback" if has_key(version, "training.callbacks") else "trainer"
    hooks = import_module(f"mmf_win.worker.hooks.{adapter}")
    hooks.register(observer, trainers)
    if request.is_training:
        methods = (*TIMED_METHODS, *hooks.TIMED_METHODS)
        observer.phase_timer.time_methods(entry for entry in methods if request.profile_updates or entry[2] == "data")
        stop_when_batches_stall(observer)
    weight_loading.count_loaded_tensors(observer)
    report_scoring_progress(observer)
    if (task := request.train_task).teacher_probas:
        distillation = import_module("mmf_win.worker.hooks.distillation")
        distillation.register(task.teacher_probas, task.teacher_weight)
    if request.fast:
        fast_mode.pad_to_longest(request)
    if request.image_cache_dir is not None:
        install_image_cache(ImageCache(Path(request.image_cache_dir)))
    return trainers

"""What mmfw adds inside a run: events, the stop file, and a guard against weights left unset.

1.0.0rc10 knows no callbacks, so there a trainer is registered; later versions get a callback. Both are thin
and share a :class:`~mmf_win.worker.hooks.session.TrainingSession`, which reports what they see.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from mmf_win.protocol import AttemptRequest
from mmf_win.upstream.versions import has_key, read_version
from mmf_win.worker.hooks import fast, loading
from mmf_win.worker.hooks.observer import Observer, leave_without_batches
from mmf_win.worker.hooks.phase_timer import TIMED
from mmf_win.worker.image_cache import ImageCache, use
from mmf_win.worker.predictions import watch_scoring
from mmf_win.worker.stopping import Stop


def register(request: AttemptRequest, stop: Stop) -> list[Any]:
    """Register the hooks in this process and return the list that MMF's trainer will be in."""
    observer, trainers = Observer(request, stop), list[Any]()
    version = read_version(Path(request.mmf_root))
    adapter = "callback" if has_key(version, "training.callbacks") else "trainer"
    hooks = import_module(f"mmf_win.worker.hooks.{adapter}")
    hooks.register(observer, trainers)
    if request.is_training:
        timed = (*TIMED, *hooks.TIMED)
        observer.clock.time(each for each in timed if request.profile_updates or each[2] == "data")
        leave_without_batches(observer)
    loading.watch(observer)
    watch_scoring(observer)
    if (task := request.train_task).teacher_probas:
        teacher = import_module("mmf_win.worker.hooks.teacher")
        teacher.register(task.teacher_probas, task.teacher_weight)
    if request.fast:
        fast.pad_to_longest(request)
    if request.image_cache_dir is not None:
        use(ImageCache(Path(request.image_cache_dir)))
    return trainers

"""Entry point of a worker: request file → patches → hooks → MMF's ``run`` → outcome file.

It is started by :func:`~mmf_win.paths.module_command` with the path of the request file. If the start method
is ``spawn``, every DataLoader worker imports this module as ``__mp_main__`` before it unpickles objects of
MMF, and so applies the patches and hooks, too. Each rank of a distributed training does all of this itself.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing import active_children
from pathlib import Path
from typing import Any

from mmf_win.errors import DataError, UsageError
from mmf_win.files import write_bytes
from mmf_win.machine import limit_threads
from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.protocol.attempt import ExportTask, ServeTask
from mmf_win.upstream.overrides import escape_interpolation, to_yaml_scalar
from mmf_win.upstream.versions import config_path
from mmf_win.version import __version__
from mmf_win.worker.launcher import join_process_group, launch_ranks, select_local_gpu
from mmf_win.worker.outcome import ChecksFinished, classify_exception
from mmf_win.worker.stop_signal import StopSignal

_REQUEST_VARIABLE = "MMFW_REQUEST"


def main(request_file: Path) -> int:
    """Run the attempt of a request file and record its outcome.

    Returns:
        The exit code: 0 for the outcome ``ok``, else 1.
    """
    request = AttemptRequest.load(request_file)
    raise_file_limit()
    with suppress(OSError):  # a full disk is reported later, by the first checkpoint
        request.write_event("run_started", pid=os.getpid(), **package_versions())
    stop = StopSignal(request.folder.stop_file)
    stop.start_watching(lambda: stopped_outcome(request).record(request))
    task = request.train_task
    limit_threads(task.nproc)
    if task.nproc * task.nnodes > 1:
        outcome = launch_ranks(request, request_file, stop, run_rank)
    else:
        os.environ[_REQUEST_VARIABLE] = str(request_file)
        outcome = run_attempt(request, stop)
    stop.defer_stop()
    outcome.record(request)
    exit_code = 0 if outcome.kind == "ok" else 1
    exit_immediately(exit_code)
    return exit_code


def run_rank(request_file: str) -> None:
    """Run one of several ranks; record a failure unless another rank already has, and exit."""
    request = AttemptRequest.load(Path(request_file))
    os.environ[_REQUEST_VARIABLE] = request_file
    select_local_gpu()
    stop = StopSignal(request.folder.stop_file)
    if os.environ["LOCAL_RANK"] == "0":
        stop.start_watching(lambda: stopped_outcome(request).save_if_absent(request.folder.helper_outcome_file))
    else:  # all ranks stop together
        stop.handle_signals()
    outcome = run_attempt(request, stop, lambda: join_process_group(request))
    stop.defer_stop()
    if outcome.kind != "ok":
        outcome.save_if_absent(request.folder.helper_outcome_file)
        os._exit(1)
    from torch import distributed

    distributed.barrier()
    distributed.destroy_process_group()  # gloo aborts a process that exits while its threads run


def stopped_outcome(request: AttemptRequest) -> AttemptOutcome:
    """Return the outcome of an attempt that was stopped while it had nothing to save."""
    suffix = ", nothing new to save" if request.is_training else ""
    return AttemptOutcome("interrupted", f"stopped{suffix}")


def raise_file_limit() -> None:
    """Raise the limit of open files, which workers of a DataLoader need to transfer batches."""
    if sys.platform != "win32":  # Windows has no such limit
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(ValueError, OSError):  # macOS reports no limit but enforces one
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def exit_immediately(exit_code: int) -> None:
    """Exit without the teardown of torch and MMF, which takes a second and has no effect.

    Returns normally if a regular exit would wait for a thread or another process.
    """
    other_threads = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    if active_children() or not all(thread.daemon for thread in other_threads):
        return
    atexit._run_exitfuncs()  # for example, Weights & Biases uploads remaining data
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def run_attempt(
    request: AttemptRequest, stop: StopSignal, on_prepared: Callable[[], None] = lambda: None
) -> AttemptOutcome:
    """Run the attempt and return its outcome, whatever happens.

    Args:
        request: The attempt.
        stop: The stop signal.
        on_prepared: Called after MMF is prepared and before it runs.

    Returns:
        The outcome. If a helper process recorded a failure, its outcome takes precedence.
    """
    is_prepared = False
    try:
        trainers = prepare_mmf(request, stop)
        is_prepared = True
        on_prepared()
        with suppress(ChecksFinished):
            run_mmf(request, trainers)
    except BaseException as error:
        with suppress(OSError):  # the disk of the log may be full
            traceback.print_exc()
        outcome = classify_exception(error, is_prepared=is_prepared)
        if outcome.kind != "interrupted":
            with suppress(DataError):
                # This process only sees that the helper has exited.
                if (cause := AttemptOutcome.load(request.folder.helper_outcome_file)) is not None:
                    outcome = replace(cause, during_validation=outcome.during_validation)
        return outcome
    return AttemptOutcome("ok")


def prepare_mmf(request: AttemptRequest, stop: StopSignal) -> list[Any]:
    """Patch MMF, register the hooks and return the list to which MMF's trainer will be added."""
    from mmf_win import compat
    from mmf_win.compat.transformers import forbid_remote_code

    compat.install(Path(request.mmf_root))
    if not request.trust:
        forbid_remote_code()
    from mmf_win.worker import hooks

    trainers = hooks.register(request, stop)
    if request.model == "clip":
        import_module("mmf_win.worker.models.clip").register(request.image_cache_dir)
    return trainers


def run_mmf(request: AttemptRequest, trainers: list[Any]) -> None:
    """Call MMF's ``run``, then export or serve the model if the task says so."""
    import torch
    from mmf_cli.run import run as mmf_run

    from mmf_win.worker.disk_cache import evict_if_nearly_full

    if request.image_cache_dir is not None:
        evict_if_nearly_full(Path(request.image_cache_dir))
    is_prediction, task = not request.is_training, request.task
    # Unlike MMF's no_grad, inference mode does not track tensor versions; its tensors cannot be exported.
    with torch.inference_mode(is_prediction and not isinstance(task, ExportTask)):
        try:
            mmf_run(write_mmf_options(request), predict=is_prediction)
        except (TypeError, RuntimeError) as error:
            _require_model(request.model, error)
            raise
    match task:
        case ServeTask():
            from mmf_win.worker.tasks.serve import serve_model

            serve_model(trainers[0], request)
        case ExportTask():
            from mmf_win.worker.tasks.export import export_onnx

            export_onnx(trainers[0], request, task)


def _require_model(model: str, error: Exception) -> None:
    """Raise an error with a hint if MMF failed because no class is registered for the model.

    MMF 1.0.0rc10 calls ``None`` in this case.

    Raises:
        UsageError: The model is not registered.
    """
    from mmf.common.registry import registry

    frames = traceback.extract_tb(error.__traceback__)
    if frames[-1].name == "build_model" and registry.get_model_class(model) is None:
        message = f"model {model!r} is not registered by MMF or by user code"
        raise UsageError(message, hint="set env.user_dir=FOLDER to user code that registers it") from error


def write_mmf_options(request: AttemptRequest) -> list[str]:
    """Write the configuration of this attempt and return the MMF options that refer to it."""
    config = request.folder.config
    base = config_path(Path(request.mmf_root), request.base_config) if request.base_config else None
    # Both versions of MMF accept an absolute path.
    includes = {"includes": [escape_interpolation(base)] if base else []}
    write_bytes(config, to_yaml_scalar(includes | request.settings).encode())
    return ["config", to_yaml_scalar(escape_interpolation(config)), "model", request.model, "dataset", "hateful_memes"]


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"mmfw": __version__, "python": sys.version.split()[0]}
    for package in ("torch", "transformers", "omegaconf"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

if __name__ == "__mp_main__" and _REQUEST_VARIABLE in os.environ:
    _request = AttemptRequest.load(Path(os.environ[_REQUEST_VARIABLE]))
    try:
        prepare_mmf(_request, StopSignal(_request.folder.stop_file))
    except Exception as _error:
        classify_exception(_error, is_prepared=False).save_if_absent(_request.folder.helper_outcome_file)
        raise

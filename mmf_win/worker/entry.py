"""The worker's entry: request.json → patches → hooks → MMF's own ``run`` → exit.json.

Run by :func:`~mmf_win.paths.module_command` with ``<attempt>/request.json``. Under ``spawn``, a DataLoader
starts helper processes that load rows. Each imports this module as ``__mp_main__`` before it unpickles
anything of MMF, and so gets the patches and hooks too. Of several ranks, each does all this for itself.
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
    """Do what the request says and write its outcome; 0 when that is ``ok``."""
    request = AttemptRequest.load(request_file)
    raise_file_limit()
    with suppress(OSError):  # what trains meets a full disk again, and says so
        request.write_event("run_started", pid=os.getpid(), **package_versions())
    stop = StopSignal(request.folder.stop_file)
    stop.start_watching(lambda: stopped_outcome(request).record(request))
    task = request.train_task
    limit_threads(task.nproc)
    if task.nproc * task.nnodes > 1:
        end = launch_ranks(request, request_file, stop, run_rank)
    else:
        os.environ[_REQUEST_VARIABLE] = str(request_file)
        end = run_attempt(request, stop)
    stop.defer_stop()
    end.record(request)
    code = 0 if end.kind == "ok" else 1
    exit_immediately(code)
    return code


def run_rank(request_file: str) -> None:
    """Be one of several ranks; where it fails, say why unless another has, and end at once."""
    request = AttemptRequest.load(Path(request_file))
    os.environ[_REQUEST_VARIABLE] = request_file
    select_local_gpu()
    stop = StopSignal(request.folder.stop_file)
    if os.environ["LOCAL_RANK"] == "0":
        stop.start_watching(
            lambda: stopped_outcome(request).save_if_absent(request.folder.helper_outcome_file)
        )
    else:  # it leaves when all do
        stop.handle_signals()
    end = run_attempt(request, stop, lambda: join_process_group(request))
    stop.defer_stop()
    if end.kind != "ok":
        end.save_if_absent(request.folder.helper_outcome_file)
        os._exit(1)
    from torch import distributed

    distributed.barrier()
    distributed.destroy_process_group()  # gloo aborts a process that ends with its threads at work


def stopped_outcome(request: AttemptRequest) -> AttemptOutcome:
    """The outcome of an attempt that was stopped while nothing held that off."""
    nothing = ", with nothing new to save" if request.is_training else ""
    return AttemptOutcome("interrupted", f"stopped{nothing}")


def raise_file_limit() -> None:
    """Let this process and its helpers, which hand batches over as open files, have as many as may be."""
    if sys.platform != "win32":  # which has no limit
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(ValueError, OSError):  # macOS has a limit of its own below an infinite one
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def exit_immediately(code: int) -> None:
    """End this process without taking torch and MMF apart, which takes a second and changes nothing.

    It does nothing where an orderly exit would wait for a thread or another process.
    """
    threads = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    if active_children() or not all(thread.daemon for thread in threads):
        return
    atexit._run_exitfuncs()  # such as that of Weights & Biases, which uploads the rest
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_attempt(
    request: AttemptRequest, stop: StopSignal, on_prepared: Callable[[], None] = lambda: None
) -> AttemptOutcome:
    """Do what the request says after ``begin``, and return its outcome, whatever happens."""
    prepared = False
    try:
        trainers = prepare_mmf(request, stop)
        prepared = True
        on_prepared()
        with suppress(ChecksFinished):
            run_mmf(request, stop, trainers)
    except BaseException as error:
        with suppress(OSError):  # the log may be what has no room
            traceback.print_exc()
        end = classify_exception(error, is_prepared=prepared)
        if end.kind != "interrupted":
            with suppress(DataError):
                # What a helper recorded before it died; this process only sees that it is gone.
                if (cause := AttemptOutcome.load(request.folder.helper_outcome_file)) is not None:
                    end = replace(cause, during_validation=end.during_validation)
        return end
    return AttemptOutcome("ok")


def prepare_mmf(request: AttemptRequest, stop: StopSignal) -> list[Any]:
    """Make MMF importable and register the hooks; return the list that MMF's trainer will be in."""
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


def run_mmf(request: AttemptRequest, stop: StopSignal, trainers: list[Any]) -> None:
    """Call MMF's ``run``, and go on to predict what is asked, or to export the model."""
    import torch
    from mmf_cli.run import run as mmf_run

    from mmf_win.worker.disk_cache import evict_if_nearly_full

    if request.image_cache_dir is not None:
        evict_if_nearly_full(Path(request.image_cache_dir))
    predicting, task = not request.is_training, request.task
    # MMF's own no_grad still counts versions of tensors; no exporter takes those that inference mode makes.
    with torch.inference_mode(predicting and not isinstance(task, ExportTask)):
        try:
            mmf_run(write_mmf_options(request), predict=predicting)
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
    """Say so where the error is MMF's way to tell that no class is registered for the model.

    1.0.0rc10 calls None then.
    """
    from mmf.common.registry import registry

    frames = traceback.extract_tb(error.__traceback__)
    if frames[-1].name == "build_model" and registry.get_model_class(model) is None:
        message = f"neither MMF nor code of your own registers a model {model!r}"
        raise UsageError(message, hint="env.user_dir=FOLDER names code of your own that does") from error


def write_mmf_options(request: AttemptRequest) -> list[str]:
    """MMF's options, as key and value in turn, that name the configuration written for this attempt."""
    config = request.folder.config
    base = config_path(Path(request.mmf_root), request.base_config) if request.base_config else None
    # An absolute include is taken as it is by every MMF.
    includes = {"includes": [escape_interpolation(base)] if base else []}
    write_bytes(config, to_yaml_scalar(includes | request.settings).encode())
    return [
        "config",
        to_yaml_scalar(escape_interpolation(config)),
        "model",
        request.model,
        "dataset",
        "hateful_memes",
    ]


def package_versions() -> dict[str, str]:
    """The versions that a result depends on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"mmfw": __version__, "python": sys.version.split()[0]}
    for package in ("torch", "transformers", "omegaconf"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

if __name__ == "__mp_main__" and _REQUEST_VARIABLE in os.environ:
    _request = AttemptRequest.load(Path(os.environ[_REQUEST_VARIABLE]))
    try:
        prepare_mmf(_request, StopSignal(_request.folder.stop_file))
    except Exception as _error:
        classify_exception(_error, is_prepared=False).save_if_absent(_request.folder.helper_outcome_file)
        raise

"""One attempt of a run: a fresh worker, from its start to how it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mmf_win.console import say
from mmf_win.paths import Places
from mmf_win.protocol import AttemptRequest, Exit
from mmf_win.runs.folder import Run
from mmf_win.runs.progress import Watcher
from mmf_win.supervise import Ended, oom_killer, run_child, stop_timeout
from mmf_win.upstream import settings


def attempt(
    run: Run,
    request: AttemptRequest,
    places: Places,
    *,
    offline: bool,
    on_training: Callable[[], None] = lambda: None,
) -> Exit:
    """Run one worker to its end.

    Args:
        run: its folder.
        request: what the worker is to do.
        places: MMF's folders.
        offline: MMF must download nothing.
        on_training: called when training begins.

    Returns:
        How it ended, which the attempt's folder says too, also when the worker could not say so itself.
    """
    files = request.attempt
    request.save()
    # MMF writes its configuration there too; a prediction must not overwrite that of the training.
    save_dir = run.checkpoints if request.action == "train" else files.raw
    save_dir.mkdir(exist_ok=True)
    environment = settings.environment(places, save_dir, run.logs, files.raw, offline=offline)
    if request.action == "predict":
        environment = settings.on_one_device(environment)
    kills = oom_killer.kills()
    with Watcher(run.events, files.name, on_training) as watcher:
        ended = run_child(
            [sys.executable, "-m", "mmf_win.worker.entry", str(files.request)],
            log=run.log,
            environment=environment,
            stop_file=files.stop,
            exit_file=files.exit,
            watch=watcher.poll,
            on_stop=lambda: say(f"\n{_stopping(request)}… press Ctrl+C again to end at once"),
            patience=stop_timeout(),
        )
    return exit_of(request, ended, memory_ran_out=oom_killer.kills() != kills)


def _stopping(request: AttemptRequest) -> str:
    return "saving" if request.action == "train" else "stopping"


def exit_of(request: AttemptRequest, ended: Ended, *, memory_ran_out: bool) -> Exit:
    """What the worker said about its end, or else what its death tells.

    Args:
        request: what the worker was to do.
        ended: how its process ended.
        memory_ran_out: the system killed a process meanwhile because memory ran out.
    """
    try:
        end = Exit.load(request.attempt.exit)
    except (OSError, ValueError, TypeError, AttributeError):
        end = _died(ended, memory_ran_out)
    else:
        said = end
        if end.outcome == "killed" and memory_ran_out:
            end = Exit("host_oom", "memory ran out, and the system killed a rank")
        if ended.stop_requested and end.outcome in ("cuda_oom", "host_oom"):
            # Whoever asked for the prompt must not get another attempt.
            end = Exit("interrupted", f"stopped; memory ran out meanwhile ({end.message})")
        if end is said:
            return end
    end.save(request.attempt.exit)
    if request.action == "train":
        end.save(request.run_exit)
    return end


def _died(ended: Ended, memory_ran_out: bool) -> Exit:
    if ended.killed:
        unsaved = "updates since the last checkpoint are lost"
        return Exit(
            "interrupted", f"ended at once, or after {stop_timeout():g} s without progress; {unsaved}"
        )
    if ended.code == -9:
        if memory_ran_out:
            return Exit("host_oom", "memory ran out, and the system killed the worker")
        return Exit("killed", "the worker was killed from outside (kill -9), or because memory ran out")
    if ended.code == -7:
        return Exit("host_oom", "the worker died of a bus error, most likely because /dev/shm is full")
    return Exit("internal", f"the worker died without a word (exit code {ended.code})")

"""Runs the tasks of a sweep on a Ray cluster, wherever their GPUs are free.

A task is an actor: unlike a Ray task it says how it goes on and leaves when it is asked to. The sweep's
folder lies on storage that all nodes see, and the actor claims the task there, as a driver does on one
machine. When its node is lost, the driver places the task anew, and it continues with what is left of it.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from mmf_win.errors import MmfEnvironmentError, TrainingError, UsageError
from mmf_win.locking import file_lock, is_locked
from mmf_win.signals import active_stop_signals
from mmf_win.sweeps.folder import SweepFolder, Task
from mmf_win.sweeps.specification import CPU, OTHER_GPUS_HINT
from mmf_win.sweeps.task_runner import (
    ALL_GPUS_ENVIRONMENT,
    OnUpdate,
    Slot,
    TaskRunner,
    TaskSignals,
    TaskUpdate,
)
from mmf_win.upstream.install import require_packages
from mmf_win.version import __version__

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_KILL_TIMEOUT_SECONDS = 10.0  # seconds for a node to say that it has killed a task
_CONNECT_TIMEOUT_SECONDS = 10.0
_MAX_TRIES = 4
_LOCK_RELEASE_SECONDS = (
    180.0  # seconds that storage may take to free what a lost node had locked; NFS takes 90
)
# Ray would kill the keeper of a command (mmf_win/supervise/keeper.py) when it ends an actor. The keeper ends
# by itself then, and its command first; killed, it would leave that behind.
_ACTOR_ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "0"}


class _StopWaiting(Exception):
    """The driver does not wait any longer, since it was asked to end."""


class RayTask:
    """A task on the machine that runs it, which two of a driver's calls use at the same time."""

    def __init__(self) -> None:
        self._updates: SimpleQueue[TaskUpdate] = SimpleQueue()
        self._signals = TaskSignals()

    def run(self, runner: TaskRunner, task: Task, slot: Slot, directory: str) -> Task:
        """Run it, in the driver's current directory."""
        os.chdir(directory)
        if sys.platform != "win32":  # Ray's processes block SIGINT, and commands would inherit that
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return runner.run(task, slot, self._updates.put, lambda: self._signals)

    def take_updates(self, signals: TaskSignals) -> list[TaskUpdate]:
        """What happened since the last call."""
        self._signals = signals
        return [self._updates.get() for _ in range(self._updates.qsize())]


@contextmanager
def connect() -> Iterator[RayCluster]:
    """Be connected to the cluster that this machine is part of, within the block; MmfError without one."""
    named = os.environ.get("RAY_ADDRESS") or "auto"
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # or a call after the connection was lost may start a cluster
    require_packages("ray", extra="[ray]")
    import ray

    hint = "`ray start --head` starts one, and `ray start --address=HOST:6379` adds a machine to it"
    # Ray starts a node's own Python by a shell, and does not quote its path. For a Python that is named, and
    # that a node lacks, it waits for ever; so only one whose path must be quoted is named.
    python = shlex.quote(sys.executable)
    how = {} if sys.platform == "win32" or python == sys.executable else {"py_executable": python}
    try:
        if "://" in named:
            raise ValueError("mmfw is to be run on a machine of the cluster")
        _require_listening(named)
        with warnings.catch_warnings():  # of how later versions of Ray will differ
            warnings.simplefilter("ignore")
            ray.init("auto", log_to_driver=False, logging_level=logging.ERROR, runtime_env=how)
    except (OSError, RuntimeError, ValueError) as error:
        missing = f"there is no Ray cluster to connect to at {named}: {_summarize_error(error)}"
        raise MmfEnvironmentError(missing, hint=hint) from None
    try:
        yield RayCluster(ray, ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


class RayCluster:
    """A Ray cluster that this process is connected to; ``ray`` is the module."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray, self._address, self._is_gone = ray, address, False
        how = {"max_restarts": 0, "max_concurrency": 2, "runtime_env": {"env_vars": _ACTOR_ENVIRONMENT}}
        self._actor_class = ray.remote(**how)(RayTask)

    def make_slots(
        self, resources: Sequence[str] | None, count: int | None, sweep: SweepFolder, data_dir: Path
    ) -> list[Slot]:
        """Slots in the cluster, for tasks of a sweep that read data from a folder.

        Args:
            resources: what each slot has, of which only the number of GPUs counts; None for one GPU, or a CPU
                where the cluster has no GPUs.
            count: how many slots; None for as many as the cluster has room for.

        Raises UsageError where no node has so many GPUs, or a CPU, and MmfError where a node that would be
        used has another mmfw or none, or does not see what it needs.
        """
        wanted = [0 if name == CPU else len(name.split(",")) for name in resources or ()]
        wanted = wanted or [min(1, self._capacity(1))]
        for gpus in wanted:
            if not self._capacity(gpus):
                message = f"no node of the cluster has {_format_gpus(gpus)}; {self._inventory()}"
                raise UsageError(message, hint=OTHER_GPUS_HINT)
        used = [node for node in self._alive_nodes() if any(_node_capacity(node, gpus) for gpus in wanted)]
        self._require_shared_storage(used, sweep.path.absolute(), [Path.cwd(), Path(sys.prefix), data_dir])
        chosen = islice(cycle(wanted), count or min(map(self._capacity, wanted)))
        environments = [{"CUDA_VISIBLE_DEVICES": "-1"}, {}, ALL_GPUS_ENVIRONMENT]
        return [
            Slot(n, _format_gpus(gpus), environments[min(gpus, 2)], gpus) for n, gpus in enumerate(chosen)
        ]

    def run(
        self,
        runner: TaskRunner,
        task: Task,
        slot: Slot,
        on_update: OnUpdate,
        get_signals: Callable[[], TaskSignals],
    ) -> Task:
        """Run a task on a node, and on another one when that is lost; as ``runner`` does on this machine.

        Raises TrainingError where no node could run it any more.
        """
        runner = replace(runner, sweep=SweepFolder(runner.sweep.path.absolute()))
        folder = runner.sweep.task_folder(task.name)
        exceptions = self._ray.exceptions
        for _ in range(_MAX_TRIES):
            try:
                return self._run_on_node(runner, task, slot, on_update, get_signals)
            except _StopWaiting:
                return replace(task, state="queued")
            except exceptions.RayTaskError as error:
                raise error.cause from None
            except (exceptions.RayError, ConnectionError) as error:
                lost = error
                _log.warning("%s: %s", task.name, _summarize_error(error))
            if get_signals().stop_count:
                return replace(task, state="queued")
            freed_by = time.monotonic() + _LOCK_RELEASE_SECONDS
            while is_locked(folder.lock) and not get_signals().stop_count and time.monotonic() < freed_by:
                time.sleep(_POLL_SECONDS)
        raise TrainingError(f"Ray could not run it, tried {_MAX_TRIES} times: {_summarize_error(lost)}")

    def _run_on_node(
        self,
        runner: TaskRunner,
        task: Task,
        slot: Slot,
        on_update: OnUpdate,
        get_signals: Callable[[], TaskSignals],
    ) -> Task:
        """Run a task on one node."""
        gpus = slot.gpu_count
        self._require_head()
        node = self._actor_class.options(num_gpus=gpus, num_cpus=0 if gpus else 1).remote()
        killed = 0.0

        def check_placement() -> None:
            if get_signals().stop_count:
                raise _StopWaiting
            self._require_head()
            if not self._capacity(gpus):
                raise TrainingError(
                    f"no node of the cluster has {_format_gpus(gpus)} any more; {self._inventory()}"
                )

        def check_deadline() -> None:
            nonlocal killed
            killed = (killed or time.monotonic()) if get_signals().stop_count > 1 else 0.0
            if killed and time.monotonic() > killed + _KILL_TIMEOUT_SECONDS:
                raise _StopWaiting

        try:
            self._await_answer(node.take_updates.remote(TaskSignals()), check_placement)
            running = node.run.remote(runner, task, slot, str(Path.cwd()))
            while True:
                is_over = self._ray.wait([running], timeout=_POLL_SECONDS)[0]
                for news in self._await_answer(node.take_updates.remote(get_signals()), check_deadline):
                    on_update(news)
                if is_over:
                    ended: Task = self._ray.get(running)
                    return ended
        finally:
            with suppress(Exception):  # it is gone already, or the whole cluster is
                self._ray.kill(node)

    def _await_answer(self, answer: Any, check: Callable[[], None]) -> Any:
        while not self._ray.wait([answer], timeout=_POLL_SECONDS)[0]:
            check()
        return self._ray.get(answer)

    def _require_head(self) -> None:
        """Stop the sweep where the cluster is gone, as Ctrl+C does: its tasks stay queued."""
        try:
            _require_listening(self._address)
        except OSError as error:
            if not self._is_gone:
                self._is_gone = True
                _log.warning("the Ray cluster at %s is gone: %s", self._address, error)
                for number in active_stop_signals()[:1]:
                    signal.raise_signal(number)
            raise _StopWaiting from None

    def _alive_nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _capacity(self, gpu_count: int) -> int:
        """How many tasks with so many GPUs can run at a time; without, one a CPU."""
        return sum(_node_capacity(node, gpu_count) for node in self._alive_nodes())

    def _inventory(self) -> str:
        has = [
            f"{node['NodeManagerHostname']}: {_format_gpus(_node_capacity(node, 1))}"
            for node in self._alive_nodes()
        ]
        return f"it has {', '.join(has) or 'no nodes'}"

    def _require_shared_storage(
        self, nodes: Sequence[dict[str, Any]], sweep: Path, folders: Sequence[Path]
    ) -> None:
        """See to it that nodes have this mmfw, and see the sweep with its locks and the other folders."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        asked = self._ray.remote(num_cpus=0, max_retries=0)(probe_node)
        place = next(folder for folder in (sweep, *sweep.parents) if folder.is_dir())
        needed = [folder for folder in folders if folder.is_dir()]
        with TemporaryDirectory(prefix=".ray-", dir=place) as ours, file_lock(Path(ours, "lock")):
            on_nodes = [asked.options(scheduling_strategy=strategy(node["NodeID"], False)) for node in nodes]
            answers = [on_node.remote(ours, needed) for on_node in on_nodes]
            for node, answer in zip(nodes, answers, strict=True):
                there = f"node {node['NodeManagerHostname']} of the cluster"
                hint = f"install mmfw {__version__} there, for the Python that runs Ray"
                try:
                    version, missing, locks = self._ray.get(answer)
                except self._ray.exceptions.RayError as error:
                    if "No module named 'mmf_win" in str(error):
                        raise MmfEnvironmentError(f"{there} has no mmfw", hint=hint) from None
                    raise MmfEnvironmentError(f"{there}: {_summarize_error(error)}") from None
                if version != __version__:
                    raise MmfEnvironmentError(
                        f"{there} has mmfw {version}, and this machine {__version__}", hint=hint
                    )
                if missing:
                    what = place if missing[0] == Path(ours) else missing[0]
                    hint = "the sweep, the data and the environment must lie on storage that all nodes see"
                    raise MmfEnvironmentError(f"{there} does not see {what} of this machine", hint=hint)
                if not locks:
                    hint = "mount it so that locks work on all nodes, or use other storage"
                    raise MmfEnvironmentError(
                        f"{there} does not see who has locked a file in {place}", hint=hint
                    )


def probe_node(lock_folder: str, folders: Sequence[Path]) -> tuple[str, list[Path], bool]:
    """On a node: its version of mmfw, which folders are missing, and whether a lock in the first is held."""
    missing = [folder for folder in (Path(lock_folder), *folders) if not folder.is_dir()]
    return __version__, missing, is_locked(Path(lock_folder, "lock"))


def _require_listening(address: str) -> None:
    """See that somebody listens where a port is named: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_SECONDS):
            pass


def _node_capacity(node: dict[str, Any], gpu_count: int) -> int:
    has = node["Resources"]
    return int(has.get("GPU", 0) // gpu_count if gpu_count else has.get("CPU", 0))


def _format_gpus(gpu_count: int) -> str:
    return f"{gpu_count} GPU{'s' if gpu_count > 1 else ''}" if gpu_count else CPU


def _summarize_error(error: BaseException) -> str:
    """What Ray says, in a line: the first, or where it is a task's traceback, the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if "ray::" in lines[0] else 0]

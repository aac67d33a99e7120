"""Ray backend: runs the tasks of a sweep on the GPUs of a Ray cluster.

Each task runs in an actor, because a Ray task can neither report progress nor be asked to stop. The sweep's
folder is on storage shared by all nodes, and the actor claims the task there, like a driver on a single
machine. If a node is lost, the driver places its tasks again, and they continue from what was saved.
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
from mmf_win.sweeps.task_runner import ALL_GPUS_ENVIRONMENT, OnUpdate, Slot, TaskRunner, TaskSignals, TaskUpdate
from mmf_win.upstream.install import require_packages
from mmf_win.version import __version__

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_KILL_TIMEOUT_SECONDS = 10.0  # for a node to report that it has killed a task
_CONNECT_TIMEOUT_SECONDS = 10.0
_MAX_TRIES = 4
_LOCK_RELEASE_SECONDS = 180.0  # for storage to release the locks of a lost node; NFS needs 90
# When Ray ends an actor, it would kill the keeper of a command (mmf_win/supervise/keeper.py). The keeper must
# end by itself, because it ends its command first; a killed keeper would leave the command running.
_ACTOR_ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "0"}


class _WaitStoppedError(Exception):
    """Raised to stop waiting for a node, because the sweep was asked to stop."""


class RayTask:
    """Actor that runs a task on a node; two calls of the driver use it at the same time."""

    def __init__(self) -> None:
        self._updates: SimpleQueue[TaskUpdate] = SimpleQueue()
        self._signals = TaskSignals()

    def run(self, runner: TaskRunner, task: Task, slot: Slot, directory: str) -> Task:
        """Run the task in the driver's current directory and return its final state."""
        os.chdir(directory)
        if sys.platform != "win32":  # Ray blocks SIGINT in its processes; commands would inherit that
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return runner.run(task, slot, self._updates.put, lambda: self._signals)

    def take_updates(self, signals: TaskSignals) -> list[TaskUpdate]:
        """Set the current signals and return the updates since the last call."""
        self._signals = signals
        return [self._updates.get() for _ in range(self._updates.qsize())]


@contextmanager
def connect_to_ray() -> Iterator[RayCluster]:
    """Connect to the Ray cluster of this machine for the duration of the block.

    Yields:
        The cluster.

    Raises:
        MmfEnvironmentError: Ray is not installed, or there is no cluster.
    """
    address = os.environ.get("RAY_ADDRESS") or "auto"
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a call after a lost connection could start a cluster
    require_packages("ray", extra="[ray]")
    import ray

    hint = "run `ray start --head`, and `ray start --address=HOST:6379` on each further machine"
    # Ray starts Python on a node through a shell without quoting its path, so a path with special characters
    # is passed explicitly. Other paths are not: Ray waits indefinitely if a node lacks an explicit one.
    python = shlex.quote(sys.executable)
    runtime_env = {} if sys.platform == "win32" or python == sys.executable else {"py_executable": python}
    try:
        _require_listening(address)
        with warnings.catch_warnings():  # about changes in later versions of Ray
            warnings.simplefilter("ignore")
            ray.init("auto", log_to_driver=False, logging_level=logging.ERROR, runtime_env=runtime_env)
    except (OSError, RuntimeError, ValueError) as error:
        message = f"cannot connect to a Ray cluster at {address}: {_summarize_error(error)}"
        raise MmfEnvironmentError(message, hint=hint) from None
    try:
        yield RayCluster(ray, ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


class RayCluster:
    """Ray cluster that this process is connected to."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray, self._address, self._is_gone = ray, address, False
        options = {"max_restarts": 0, "max_concurrency": 2, "runtime_env": {"env_vars": _ACTOR_ENVIRONMENT}}
        self._actor_class = ray.remote(**options)(RayTask)

    def make_slots(
        self, resources: Sequence[str] | None, count: int | None, sweep: SweepFolder, data_dir: Path
    ) -> list[Slot]:
        """Create slots on the cluster.

        Args:
            resources: Resources of each slot, of which only the number of GPUs counts; ``None`` for one GPU
                per slot, or one CPU if the cluster has no GPUs.
            count: Number of slots; ``None`` for as many as the cluster can run.
            sweep: Folder of the sweep, which all nodes must see.
            data_dir: Data folder, which all nodes must see if it exists here.

        Returns:
            The slots.

        Raises:
            UsageError: No node has that many GPUs, or a CPU.
            MmfEnvironmentError: A node lacks this version of mmfw, or does not see a folder or its locks.
        """
        counts = [0 if name == CPU else len(name.split(",")) for name in resources or ()]
        counts = counts or [min(1, self._capacity(1))]
        for gpus in counts:
            if not self._capacity(gpus):
                message = f"no node of the cluster has {_format_gpus(gpus)}; {self._inventory()}"
                raise UsageError(message, hint=OTHER_GPUS_HINT)
        nodes = [node for node in self._alive_nodes() if any(_node_capacity(node, gpus) for gpus in counts)]
        self._require_shared_storage(nodes, sweep.path.absolute(), [Path.cwd(), Path(sys.prefix), data_dir])
        slot_gpu_counts = islice(cycle(counts), count or min(map(self._capacity, counts)))
        environments = [{"CUDA_VISIBLE_DEVICES": "-1"}, {}, ALL_GPUS_ENVIRONMENT]
        return [Slot(n, _format_gpus(gpus), environments[min(gpus, 2)], gpus) for n, gpus in enumerate(slot_gpu_counts)]

    def run(
        self, runner: TaskRunner, task: Task, slot: Slot, on_update: OnUpdate, get_signals: Callable[[], TaskSignals]
    ) -> Task:
        """Run a task like ``runner`` does on this machine; if its node is lost, run it on another one.

        Args:
            runner: Runs the task on a node.
            task: Task to run.
            slot: Slot of this driver.
            on_update: Receives the updates of the task.
            get_signals: Returns the current signals for the task.

        Returns:
            The task in its new state.

        Raises:
            TrainingError: No node could run the task.
        """
        runner = replace(runner, sweep=SweepFolder(runner.sweep.path.absolute()))
        folder = runner.sweep.task_folder(task.name)
        exceptions = self._ray.exceptions
        for _ in range(_MAX_TRIES):
            try:
                return self._run_on_node(runner, task, slot, on_update, get_signals)
            except _WaitStoppedError:
                return replace(task, state="queued")
            except exceptions.RayTaskError as error:
                raise error.cause from None
            except (exceptions.RayError, ConnectionError) as error:
                last_error = error
                _log.warning("%s: %s", task.name, _summarize_error(error))
            if get_signals().stop_count:
                return replace(task, state="queued")
            deadline = time.monotonic() + _LOCK_RELEASE_SECONDS
            while is_locked(folder.lock) and not get_signals().stop_count and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        raise TrainingError(f"Ray failed to run the task {_MAX_TRIES} times: {_summarize_error(last_error)}")

    def _run_on_node(
        self, runner: TaskRunner, task: Task, slot: Slot, on_update: OnUpdate, get_signals: Callable[[], TaskSignals]
    ) -> Task:
        """Run a task on one node."""
        gpus = slot.gpu_count
        self._require_head()
        actor = self._actor_class.options(num_gpus=gpus, num_cpus=0 if gpus else 1).remote()
        kill_time = 0.0

        def check_placement() -> None:
            if get_signals().stop_count:
                raise _WaitStoppedError
            self._require_head()
            if not self._capacity(gpus):
                raise TrainingError(f"the cluster no longer has a node with {_format_gpus(gpus)}; {self._inventory()}")

        def check_deadline() -> None:
            nonlocal kill_time
            kill_time = (kill_time or time.monotonic()) if get_signals().stop_count > 1 else 0.0
            if kill_time and time.monotonic() > kill_time + _KILL_TIMEOUT_SECONDS:
                raise _WaitStoppedError

        try:
            self._await_answer(actor.take_updates.remote(TaskSignals()), check_placement)
            running = actor.run.remote(runner, task, slot, str(Path.cwd()))
            while True:
                is_over = self._ray.wait([running], timeout=_POLL_SECONDS)[0]
                for update in self._await_answer(actor.take_updates.remote(get_signals()), check_deadline):
                    on_update(update)
                if is_over:
                    result: Task = self._ray.get(running)
                    return result
        finally:
            with suppress(Exception):  # the actor or the whole cluster may be gone
                self._ray.kill(actor)

    def _await_answer(self, answer: Any, check: Callable[[], None]) -> Any:
        while not self._ray.wait([answer], timeout=_POLL_SECONDS)[0]:
            check()
        return self._ray.get(answer)

    def _require_head(self) -> None:
        """Raise if the cluster is gone, and stop the sweep like Ctrl+C does; its tasks stay queued."""
        try:
            _require_listening(self._address)
        except OSError as error:
            if not self._is_gone:
                self._is_gone = True
                _log.warning("lost the Ray cluster at %s: %s", self._address, error)
                for number in active_stop_signals()[:1]:
                    signal.raise_signal(number)
            raise _WaitStoppedError from None

    def _alive_nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _capacity(self, gpu_count: int) -> int:
        """Return how many tasks with this many GPUs can run at a time; without GPUs, one per CPU."""
        return sum(_node_capacity(node, gpu_count) for node in self._alive_nodes())

    def _inventory(self) -> str:
        hosts = [
            f"{node['NodeManagerHostname']}: {_format_gpus(_node_capacity(node, 1))}" for node in self._alive_nodes()
        ]
        return f"it has {', '.join(hosts) or 'no nodes'}"

    def _require_shared_storage(self, nodes: Sequence[dict[str, Any]], sweep: Path, folders: Sequence[Path]) -> None:
        """Raise if a node lacks this version of mmfw, or does not see the sweep, its locks or the folders."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        remote_probe = self._ray.remote(num_cpus=0, max_retries=0)(probe_node)
        parent = next(folder for folder in (sweep, *sweep.parents) if folder.is_dir())
        needed = [folder for folder in folders if folder.is_dir()]
        with TemporaryDirectory(prefix=".ray-", dir=parent) as lock_folder, file_lock(Path(lock_folder, "lock")):
            probes = [remote_probe.options(scheduling_strategy=strategy(node["NodeID"], soft=False)) for node in nodes]
            answers = [probe.remote(lock_folder, needed) for probe in probes]
            for node, answer in zip(nodes, answers, strict=True):
                node_name = f"node {node['NodeManagerHostname']} of the cluster"
                hint = f"install mmfw {__version__} there, in the Python that runs Ray"
                try:
                    version, missing, locks = self._ray.get(answer)
                except self._ray.exceptions.RayError as error:
                    if "No module named 'mmf_win" in str(error):
                        raise MmfEnvironmentError(f"{node_name} has no mmfw", hint=hint) from None
                    raise MmfEnvironmentError(f"{node_name}: {_summarize_error(error)}") from None
                if version != __version__:
                    message = f"{node_name} has mmfw {version}, but this machine has {__version__}"
                    raise MmfEnvironmentError(message, hint=hint)
                if missing:
                    unseen = parent if missing[0] == Path(lock_folder) else missing[0]
                    hint = "put the sweep, the data and the environment on storage shared by all nodes"
                    raise MmfEnvironmentError(f"{node_name} does not see {unseen} of this machine", hint=hint)
                if not locks:
                    hint = "mount it with locks that work between nodes, or use other storage"
                    raise MmfEnvironmentError(f"{node_name} does not see file locks in {parent}", hint=hint)


def probe_node(lock_folder: str, folders: Sequence[Path]) -> tuple[str, list[Path], bool]:
    """Return this node's mmfw version, the missing folders, and whether a lock in ``lock_folder`` is held."""
    missing = [folder for folder in (Path(lock_folder), *folders) if not folder.is_dir()]
    return __version__, missing, is_locked(Path(lock_folder, "lock"))


def _require_listening(address: str) -> None:
    """Raise an error for a remote address or if nothing listens at it; Ray itself would try for minutes."""
    if "://" in address:
        raise ValueError("mmfw must run on a machine of the cluster")
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_SECONDS):
            pass


def _node_capacity(node: dict[str, Any], gpu_count: int) -> int:
    resources = node["Resources"]
    return int(resources.get("GPU", 0) // gpu_count if gpu_count else resources.get("CPU", 0))


def _format_gpus(gpu_count: int) -> str:
    return f"{gpu_count} GPU{'s' if gpu_count > 1 else ''}" if gpu_count else CPU


def _summarize_error(error: BaseException) -> str:
    """Return one line of a Ray error: the first, or the last of a traceback from a node."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if "ray::" in lines[0] else 0]

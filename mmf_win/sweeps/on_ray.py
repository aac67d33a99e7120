"""Runs the tasks of a sweep on a Ray cluster, wherever their GPUs are free.

A task is an actor: unlike a Ray task it says how it goes on and leaves when it is asked to, also where the
driver is connected by Ray's client. When its node is lost, the driver places it anew; it knows which of the
task's commands have ended, and Ray's own retries would not.

Where a node sees the sweep's folder, its tasks run there. Otherwise a task's files are sent to the node and
come back when it ends, all but the older checkpoints, and ``current.ckpt`` only where it may be resumed.
Nothing comes back from a node that is lost: what it ran starts again with what the driver has.

The clocks of the nodes and of the driver have to agree, as they do with NTP.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmf_win import __version__
from mmf_win.errors import MmfError, NoSuchGpu
from mmf_win.files import rename
from mmf_win.sweeps import remote
from mmf_win.sweeps.folder import TaskFolder
from mmf_win.sweeps.job import Ending, Job, Resume, Watcher
from mmf_win.sweeps.slots import Slot
from mmf_win.sweeps.specification import CPU
from mmf_win.upstream.install import require_packages

_log = logging.getLogger(__name__)

_PORT = 10001  # of Ray's client
_TICK = 0.5
_FAREWELL = 10.0  # seconds for a node to say that it has killed a task
_TO_CONNECT = 10.0
_TRIES = 4
# Ray would kill the keeper of a command (mmf_win/supervise/keeper.py) when it ends an actor. The keeper ends
# by itself then, and its command first; killed, it would leave that behind.
_ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "0"}


class _Left(Exception):
    """The driver does not wait any longer, since it was asked to end."""


@dataclass(frozen=True)
class Place(Slot):
    """A slot of a cluster, which chooses the GPUs itself.

    Attributes:
        gpus: how many.
    """

    gpus: int = 0


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Be connected to a cluster until the block ends.

    Args:
        address: ``ray`` for that which this machine is part of, or ``ray://HOST[:PORT]``.

    Raises:
        MmfError: Ray is not installed, or there is no such cluster.
    """
    named = os.environ.get("RAY_ADDRESS", "auto") if address == "ray" else address
    if named.startswith("ray://") and ":" not in named.removeprefix("ray://"):
        named = f"{named}:{_PORT}"
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # or a call after the connection was lost may start a cluster
    require_packages("ray", extra="[ray]")
    import ray

    try:
        _knock(named)
        with warnings.catch_warnings():  # of how later versions of Ray will differ
            warnings.simplefilter("ignore")
            ray.init(named, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        if named == "auto":
            hint = "`ray start --head` starts one, and `ray start --address=HOST:6379` adds a machine to it"
        else:
            hint = "see that it runs, and that this machine can reach it"
        missing = f"there is no Ray cluster to connect to at {named}: {_line(error)}"
        raise MmfError(missing, hint=hint) from None
    with suppress(AttributeError):  # or a thread of Ray's prints to stdout the logs of nodes that are lost
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield Cluster(ray, named if named.startswith("ray://") else ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


class Cluster:
    """A Ray cluster that this process is connected to; ``ray`` is the module."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray, self._address, self._gone = ray, address, False
        self._runner = ray.remote(max_restarts=0, runtime_env={"env_vars": _ENVIRONMENT})(remote.Runner)

    def slots(self, resources: Sequence[str] | None, count: int | None) -> list[Slot]:
        """Slots in the cluster.

        Args:
            resources: what each slot has, as for :func:`mmf_win.sweeps.slots.local`, but only the number of
                GPUs counts. None for one GPU, or a CPU where the cluster has no GPUs.
            count: how many slots; None for as many as the cluster has room for.

        Raises:
            NoSuchGpu: no node has so many GPUs, or a CPU.
            MmfError: a node that would be used has no mmfw, or another version.
        """
        wanted = [0 if name == CPU else len(name.split(",")) for name in resources or ()]
        wanted = wanted or [1 if self._room(1) else 0]
        for gpus in wanted:
            if not self._room(gpus):
                raise NoSuchGpu(f"no node of the cluster has {_told(gpus)}; {self._inventory()}")
        self._require_mmfw([node for node in self._nodes() if any(_fitting(node, gpus) for gpus in wanted)])
        chosen = islice(cycle(wanted), count or min(map(self._room, wanted)))
        hidden = {"CUDA_VISIBLE_DEVICES": "-1"}
        return [Place(n, _told(gpus), {} if gpus else hidden, gpus) for n, gpus in enumerate(chosen)]

    def run(
        self, job: Job, resume: Resume, slot: Slot, watcher: Watcher, stops: Callable[[], int] = lambda: 0
    ) -> Ending:
        """Run a task on a node, and on another one when that is lost; as :func:`mmf_win.sweeps.job.run`.

        Raises:
            MmfError: no node could run it any more.
            OSError: a folder cannot be written, here or there.
        """
        output = str(Path(job.output).absolute())
        job = replace(job, output=output, templates=dict(job.templates), began=dict(job.began))
        exceptions = self._ray.exceptions
        for _ in range(_TRIES):
            try:
                return self._try(job, resume, slot, watcher, stops)
            except _Left:
                return Ending("stopped")
            except exceptions.RayTaskError as error:
                raise error.cause from None
            except (exceptions.RayError, ConnectionError) as error:
                lost = error
                _log.warning("%s: %s", job.name, _line(error))
            if stops():
                return Ending("stopped")
        raise MmfError(f"Ray could not run it, tried {_TRIES} times: {_line(lost)}")

    def _try(
        self, job: Job, resume: Resume, slot: Slot, watcher: Watcher, stops: Callable[[], int]
    ) -> Ending:
        """Run a task on one node, and let the job be what is left of it, where the folder shows that."""
        self._require_head()
        gpus = slot.gpus if isinstance(slot, Place) else 0
        runner = self._runner.options(num_gpus=gpus, num_cpus=0 if gpus else 1).remote()
        killed = 0.0

        def is_placed() -> None:
            if stops():
                raise _Left
            self._require_head()
            if not self._room(gpus):
                raise MmfError(f"no node of the cluster has {_told(gpus)} any more; {self._inventory()}")

        def is_awaited() -> None:
            nonlocal killed
            killed = (killed or time.monotonic()) if stops() > 1 else 0.0
            if killed and time.monotonic() > killed + _FAREWELL:
                raise _Left

        def ask(method: Any, *arguments: Any, **options: Any) -> Any:
            return self._answer(method.remote(*arguments, **options), is_awaited)

        # Beside the task's folder, where it can take its place.
        with TemporaryDirectory(prefix=".ray-", dir=job.output, ignore_cleanup_errors=True) as ours:
            try:
                shared = self._answer(runner.sees.remote(ours), is_placed)
                ask(runner.take, job, shared=shared)
                if not shared:
                    _send(job.folder, runner, ask)
                ask(runner.start, resume, str(Path.cwd()))
                known, finished = 0, list[str]()
                ending: Ending | None = None
                while ending is None:
                    notes, ending = ask(runner.news, known, stops())
                    known += len(notes)
                    for name, arguments in notes:
                        if name == "begins" and arguments[1] is not None:
                            job.began[arguments[0]] = {"script": arguments[1]}
                        if name == "trains":
                            job.began.setdefault(arguments[0], {})["run"] = arguments[1]
                        if name == "finished" and not shared:
                            finished.append(arguments[0])
                            continue  # not before its files are here
                        if name == "finished":
                            job.templates.pop(arguments[0])
                        getattr(watcher, name)(*arguments)
                if not shared and stops() < 2:
                    _bring(job.folder.path, runner, ask, Path(ours), resumable=ending.state != "success")
                    for command in finished:
                        watcher.finished(command)
                ask(runner.leave)
                return ending
            finally:
                with suppress(Exception):  # it is gone already, or the whole cluster is
                    self._ray.kill(runner)

    def _answer(self, answer: Any, check: Callable[[], None]) -> Any:
        while not self._ray.wait([answer], timeout=_TICK)[0]:
            check()
        return self._ray.get(answer)

    def _require_head(self) -> None:
        """Stop the sweep where the cluster is gone, as Ctrl+C does: its tasks stay queued."""
        try:
            _knock(self._address)
        except OSError as error:
            if not self._gone:
                self._gone = True
                _log.warning("the Ray cluster at %s is gone: %s", self._address, error)
                signal.raise_signal(signal.SIGINT)
            raise _Left from None

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _room(self, gpus: int) -> int:
        """How many tasks with so many GPUs can run at a time; without, one a CPU."""
        return sum(_fitting(node, gpus) for node in self._nodes())

    def _inventory(self) -> str:
        nodes = ", ".join(
            f"{node['NodeManagerHostname']}: {_told(int(node['Resources'].get('GPU', 0)))}"
            for node in self._nodes()
        )
        return f"it has {nodes}" if nodes else "it has no nodes"

    def _require_mmfw(self, nodes: Sequence[dict[str, Any]]) -> None:
        """See to it that nodes have this version of mmfw: one error now instead of one a task."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        version = self._ray.remote(num_cpus=0, max_retries=0)(remote.version)
        asked = [
            version.options(scheduling_strategy=strategy(node["NodeID"], False)).remote() for node in nodes
        ]
        for node, answer in zip(nodes, asked, strict=True):
            host = node["NodeManagerHostname"]
            hint = f"install mmfw {__version__} there, for the Python that runs Ray"
            try:
                there = self._ray.get(answer)
            except self._ray.exceptions.RayError as error:
                if "No module named 'mmf_win" in str(error):
                    raise MmfError(f"node {host} of the cluster has no mmfw", hint=hint) from None
                raise MmfError(f"node {host} of the cluster: {_line(error)}") from None
            if there != __version__:
                raise MmfError(f"node {host} has mmfw {there}, and this machine {__version__}", hint=hint)


def _knock(address: str) -> None:
    """See that somebody listens where a port is named: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), _TO_CONNECT):
            pass


def _send(folder: TaskFolder, runner: Any, ask: Callable[..., Any]) -> None:
    """Send a node what there is of a task from before."""
    for name in remote.files(folder, resumable=True):
        offset = 0
        while (piece := remote.read(folder.path / name, offset)) or not offset:
            ask(runner.write, name, piece)
            offset += len(piece) or 1


def _bring(folder: Path, runner: Any, ask: Callable[..., Any], ours: Path, *, resumable: bool) -> None:
    """Let the files of a task on a node take the place of its folder here, all at once."""
    new = ours / "new"
    new.mkdir()
    for name in ask(runner.files, resumable=resumable):
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        with (new / name).open("wb") as file:
            while piece := ask(runner.read, name, file.tell()):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    if folder.exists():
        rename(folder, ours / "old")
    rename(new, folder)


def _fitting(node: dict[str, Any], gpus: int) -> int:
    has = node["Resources"]
    return int(has.get("GPU", 0) // gpus if gpus else has.get("CPU", 0))


def _told(gpus: int) -> str:
    return f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else CPU


def _line(error: BaseException) -> str:
    """What Ray says, in a line: the first, or where it is a task's traceback, the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if "ray::" in lines[0] else 0]

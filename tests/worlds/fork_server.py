"""Server that forks workers with their imports already done.

A small training spends most of its time on imports. A forked worker is a separate process with the same
arguments, environment, files and exit code as a worker that mmfw starts.

::

    keeper ── client ══ socket ══ handler ── worker
                                  both are forked from a server

The first server imports torch and other libraries. For workers of mmfw it forks further servers, which also
import MMF with the patches and hooks of mmfw: one server for each MMF and each set of variables that these
imports read. Only the most recently used servers are kept. The ranks of a training are forked from their worker.
If ``MMFW_TEST_OWN_IMPORTS`` is set, a worker imports MMF itself and spawns its ranks.

A server ends when no process holds a lease on it (see ``acquire_lease``). Therefore no server outlives the tests,
even if they are killed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import NoReturn

NO_PRELOAD_VARIABLE = "MMFW_TEST_OWN_IMPORTS"
"""Environment variable that makes a worker import MMF itself."""

# Prefixes of the variables that libraries read when they are imported.
_IMPORT_VARIABLE_PREFIXES = (
    *("CUDA", "GOMP_", "HF_", "HOME", "LD_", "MMF_CACHE_DIR", "OMP_", "PYTHON", "TOKENIZERS_", "TORCH"),
    "TRANSFORMERS_",
)
_CPU_TIMES_VARIABLE = "MMFW_TEST_CPU_TIMES"  # see tests/worlds/cpu_time.py
_MAX_PATH_BYTES = 100  # Linux allows 107; the sockets of other servers have suffixes
_MAX_SERVERS = 4  # servers that have imported an MMF; each takes about 300 MB
_PR_SET_PDEATHSIG = 1  # PR_SET_PDEATHSIG of prctl(2)
_LEASE, _SERVER_FOR_MMF, _WORKER = "lease", "server for MMF", "worker"
_ImportSpec = tuple[str, dict[str, str]]  # folder of an MMF, variables that its imports read


def can_fork_workers(path: str) -> bool:
    """Return whether this system can fork workers for a socket at ``path``."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # not Linux, or forbidden by a sandbox
        return False
    return len(os.fsencode(path)) < _MAX_PATH_BYTES


def acquire_lease(path: str) -> Connection:
    """Start the server at ``path`` if it is not running, and keep it running until the result is closed."""
    try:
        return _take_lease(path)
    except (OSError, EOFError):  # no server, or it is about to end
        # Torch and Python read these variables when they start.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MMF")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        subprocess.run([sys.executable, __file__, path], env=environment, check=True)
        return _take_lease(path)


def _take_lease(path: str) -> Connection:
    lease = Client(path)
    lease.send((_LEASE, None))
    lease.recv()
    return lease


def run_server(path: str) -> NoReturn:
    """Import the libraries that every worker needs, then serve in the background."""
    import jinja2  # noqa: F401
    import lmdb  # noqa: F401
    import PIL.Image  # noqa: F401
    import regex  # noqa: F401
    import requests  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import tokenizers  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401

    Path(path).unlink(missing_ok=True)  # left by a server that was killed
    with Listener(path) as listener:
        if os.fork():
            os._exit(0)
        os.setsid()
        null_device = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(null_device, descriptor)
        _accept_clients(listener, path)


def _accept_clients(listener: Listener, path: str, *, needs_lease: bool = True) -> NoReturn:
    """Fork a handler for each client that requests a worker, and a server for each requested MMF."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    leases: list[Connection] = []
    servers: dict[str, tuple[str, int]] = {}  # socket and pidfd of each server, the most recently used last
    numbers = itertools.count()
    server_socket = listener._listener._socket  # type: ignore[attr-defined]
    while True:
        ready = wait([server_socket, *leases], timeout=60 if needs_lease and not leases else None)
        if needs_lease and not ready:
            os._exit(0)  # the process that started it died before it acquired a lease
        had_lease, leases = bool(leases), [lease for lease in leases if lease not in ready]
        if had_lease and not leases:
            os._exit(0)
        if server_socket not in ready:
            continue
        try:
            client = listener.accept()
            kind, imports = client.recv()
            if kind == _LEASE:
                client.send(True)
                leases.append(client)
                continue
            if kind == _SERVER_FOR_MMF:
                key = repr(imports)
                if key in servers:
                    servers[key] = servers.pop(key)
                else:
                    if len(servers) == _MAX_SERVERS:
                        _kill_server(servers.pop(next(iter(servers)))[1])
                    socket_path = f"{path}-{next(numbers)}"
                    process = _fork_mmf_server(socket_path, imports, [server_socket, client, *leases])
                    servers[key] = socket_path, process
                # If the imports failed, the worker repeats them and fails as a user's worker does.
                client.send(servers[key][0] if Path(servers[key][0]).exists() else path)
                client.close()
                continue
        except (EOFError, OSError):  # the client has died
            continue
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (listener, *leases):
                inherited.close()
            _handle_client(client)
        client.close()


def _fork_mmf_server(path: str, imports: _ImportSpec, open_connections: list[Connection]) -> int:
    """Fork a server that imports an MMF, wait until it accepts clients, and return its pidfd."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        process = os.pidfd_open(child)
    else:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            for connection in open_connections:
                connection.close()
            os.close(read_end)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _import_mmf(*imports)
            with Listener(path) as listener:
                os.close(write_end)
                _accept_clients(listener, path, needs_lease=False)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write_end)
    os.read(read_end, 1)  # returns when the server is ready or dead
    os.close(read_end)
    return process


def _kill_server(pidfd: int) -> None:
    """Kill a server; the workers that it has forked keep running."""
    with suppress(ProcessLookupError):  # its imports have failed
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def _import_mmf(root: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    from mmf_win import compat

    compat.install(Path(root))
    import transformers.models.bert.tokenization_bert_fast  # noqa: F401
    from mmf.utils.env import setup_imports

    # No adapters: each version of MMF can import only one of them.
    from mmf_win.worker.hooks import (  # noqa: F401
        batch_splitting,
        checkpoints,
        micro_batch,
        nonfinite,
        precision,
        random_state,
        resume_state,
    )

    setup_imports()
    compat.install = lambda *_: None  # type: ignore[assignment]
    # Garbage collections in a worker then ignore the objects of the server.
    gc.collect()
    gc.freeze()


def _handle_client(client: Connection) -> NoReturn:
    """Fork a worker, send its process id and exit code to the client, and kill it when the client dies."""
    argv, folder, environment, count = client.recv()
    descriptors = [recv_handle(client) for _ in range(count)]
    worker = os.fork()
    if worker == 0:
        client.close()
        _run_worker(argv, folder, environment, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    client.send(worker)
    worker_fd = os.pidfd_open(worker)
    has_ended = worker_fd in wait([worker_fd, client])
    if not has_ended:
        os.kill(worker, signal.SIGKILL)
    _, status, usage = os.wait4(worker, 0)
    if times := environment.get(_CPU_TIMES_VARIABLE):
        with suppress(OSError), Path(times).open("a", encoding="ascii") as file:
            file.write(f"{usage.ru_utime + usage.ru_stime}\n")
    if has_ended:
        client.send(os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run_worker(argv: list[str], folder: str, environment: dict[str, str], descriptors: list[int]) -> NoReturn:
    """Run the client's module in this process, with the client's environment, folder and files."""
    import runpy

    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)  # the others only stay open
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv
    _reseed_random()
    if _import_spec(argv):
        _fork_ranks()
    code: object = 1
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # they also end DataLoader workers, which would be orphans
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _reseed_random() -> None:
    """Seed the random numbers of this process, as in a new process; torch has a fixed seed in new processes."""
    import random

    import numpy

    random.seed()
    numpy.random.seed()


def _fork_ranks() -> None:
    """Make torch's launcher fork ranks from this worker, because spawned ranks would import MMF again."""
    from torch.distributed.launcher import api

    launch_config, set_signal = api.LaunchConfig, signal.signal
    api.LaunchConfig = lambda **settings: launch_config(**settings | {"start_method": "fork"})  # type: ignore[assignment,misc]
    # signal.signal is replaced in the launcher, but a rank has to handle signals.
    os.register_at_fork(after_in_child=lambda: setattr(signal, "signal", set_signal))


def relay_worker(path: str, argv: list[str]) -> NoReturn:
    """Represent a worker in this process: forward signals to it and exit as it does."""
    descriptors = [number for number in range(256) if _is_open(number)]
    server, worker = _request_worker(path, argv, descriptors)
    with server:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: _forward_signal(worker, number))
        code = server.recv()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _request_worker(path: str, argv: list[str], descriptors: list[int]) -> tuple[Connection, int]:
    """Request a worker from a server and return the connection to its handler and its process id."""
    imports, socket_path = _import_spec(argv), path
    while True:
        if imports:
            with Client(path) as server:
                server.send((_SERVER_FOR_MMF, imports))
                socket_path = server.recv()
        try:
            server = Client(socket_path)
            server.send((_WORKER, None))
            server.send((argv, str(Path.cwd()), dict(os.environ), len(descriptors)))
            for number in descriptors:
                send_handle(server, number, 0)
            return server, server.recv()
        except (OSError, EOFError):  # the server was just killed to make room for another
            if socket_path == path:
                raise


def _import_spec(argv: list[str]) -> _ImportSpec | None:
    """Return what a server has to import for these arguments; None if the worker imports MMF itself."""
    if argv[0] != "mmf_win.worker.entry" or NO_PRELOAD_VARIABLE in os.environ:
        return None
    root = json.loads(Path(argv[1]).read_text(encoding="utf-8"))["mmf"]
    return root, {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_IMPORT_VARIABLE_PREFIXES)}


def _forward_signal(worker: int, number: int) -> None:
    with suppress(ProcessLookupError):  # the worker has ended; its exit code will arrive
        os.kill(worker, number)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.path.remove(str(Path(__file__).parent))  # as with `python -m`, which starts a worker
        run_server(sys.argv[1])
    relay_worker(sys.argv[1], sys.argv[2:])

"""Workers that need not import torch: each is forked from a process that has done so.

Half of what a worker does in these tests is to import torch and other libraries. A worker from here is a
process of its own as ever, with the same arguments, environment, files and end, and imports the rest itself.

::

    keeper ── client ══ socket ══ handler ── worker
                                  both are forked from the server, which has imported torch

Run as a script with the socket's path it is the server; with a module and its arguments after that, a client.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from multiprocessing.connection import Client, Connection, Listener, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import NoReturn


def serve(path: str) -> NoReturn:
    """Import what takes long and depends on no test, say so, and have a worker forked for each client."""
    import jinja2  # noqa: F401
    import lmdb  # noqa: F401
    import PIL.Image  # noqa: F401
    import regex  # noqa: F401
    import requests  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import tokenizers  # noqa: F401
    import torch._dynamo  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with Listener(path) as server:
        print("ready", flush=True)
        while True:
            client = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                _handle(client)
            client.close()


def _handle(client: Connection) -> NoReturn:
    """Fork a worker and tell the client its id and how it ends; kill it when the client dies."""
    words, folder, environment, count = client.recv()
    descriptors = [recv_handle(client) for _ in range(count)]
    worker = os.fork()
    if worker == 0:
        client.close()
        _work(words, folder, environment, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    client.send(worker)
    end = os.pidfd_open(worker)
    has_ended = end in wait([end, client])
    if not has_ended:
        os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    if has_ended:
        client.send(os.waitstatus_to_exitcode(status))
    os._exit(0)


def _work(words: list[str], folder: str, environment: dict[str, str], descriptors: list[int]) -> NoReturn:
    """Run the client's module in this process, which gets the client's environment, folder and files."""
    import runpy

    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)  # the others are only held
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    code: object = 1
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code
    finally:
        atexit._run_exitfuncs()  # among others they end DataLoader workers, which nobody adopts here
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def attend(path: str, words: list[str]) -> NoReturn:
    """Stand for a worker: hand signals on to it, and end as it does."""
    descriptors = [number for number in range(256) if _is_open(number)]
    with Client(path) as server:
        server.send((words, str(Path.cwd()), dict(os.environ), len(descriptors)))
        for number in descriptors:
            send_handle(server, number, 0)
        worker = server.recv()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(worker, number))
        code = server.recv()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.path.remove(str(Path(__file__).parent))  # as for `python -m`, which a worker is started with
        serve(sys.argv[1])
    attend(sys.argv[1], sys.argv[2:])

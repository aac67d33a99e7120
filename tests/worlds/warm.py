"""Workers that need not import torch: each is forked from a process that has done so.

Half of what a worker does in these tests is to import torch and scikit-learn. A worker from here is a process
of its own as ever, with the same arguments, environment, files and end, and imports the rest itself.

::

    keeper ── client ══ socket ══ handler ── worker
                                  both are forked from the server, which has imported torch

Run as a script with the socket's path it is the server; with a module and its arguments after that, a client.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

_NUMBER = 8  # bytes


def serve(path: str) -> NoReturn:
    """Import what takes long and depends on no test, then have a worker forked for each client."""
    import sklearn.metrics  # noqa: F401
    import torch._dynamo  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen()
        Path(f"{path}.new").rename(path)  # it appears when it answers
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                _handle(connection)
            connection.close()


def _handle(client: socket.socket) -> NoReturn:
    """Fork a worker and tell the client its id and how it ends; kill it when the client dies."""
    asked = json.loads(_receive(client, _number(client)))
    _, descriptors, _, _ = socket.recv_fds(client, 1, asked["descriptors"])
    worker = os.fork()
    if worker == 0:
        client.close()
        _work(asked, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    _tell(client, worker)
    end = os.pidfd_open(worker)
    ready, _, _ = select.select([end, client], [], [])
    if end not in ready:
        os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    if end in ready:
        _tell(client, os.waitstatus_to_exitcode(status))
    os._exit(0)


def _work(asked: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run the client's module in this process, which gets the client's environment, folder and files."""
    import runpy

    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)  # the others are only held
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    module, *arguments = asked["words"]
    sys.argv = [module, *arguments]
    code: object = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code
    finally:
        atexit._run_exitfuncs()  # among others they end DataLoader workers, which nobody adopts here
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def attend(path: str, words: list[str]) -> NoReturn:
    """Stand for a worker: hand signals on to it, and end as it does."""
    descriptors = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        descriptors = [number for number in descriptors if _is_open(number) and number != server.fileno()]
        asked = {
            "words": words,
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
            "descriptors": len(descriptors),
        }
        content = json.dumps(asked).encode()
        _tell(server, len(content))
        server.sendall(content)
        socket.send_fds(server, [b"."], descriptors)
        worker = _number(server)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(worker, number))
        code = _number(server)
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


def _tell(other: socket.socket, number: int) -> None:
    other.sendall(number.to_bytes(_NUMBER, "big", signed=True))


def _number(other: socket.socket) -> int:
    return int.from_bytes(_receive(other, _NUMBER), "big", signed=True)


def _receive(other: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = other.recv(size - len(content))
        if not part:
            sys.exit("the other process is gone")
        content += part
    return content


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.path.remove(str(Path(__file__).parent))  # as for `python -m`, which a worker is started with
        serve(sys.argv[1])
    attend(sys.argv[1], sys.argv[2:])

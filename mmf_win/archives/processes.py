"""Extracts members of a zip in other processes, for where the C extension is missing.

The wheel that decrypts then, fast-zip-decryption, keeps the interpreter's lock, so threads would wait for
each other. A process reads its members and the password from its standard input, where nobody else sees them.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from mmf_win.archives.base import Extracted, write_member
from mmf_win.archives.zip_reader import Task, ZipReader
from mmf_win.errors import MmfwError, ResourceError
from mmf_win.threads import ThreadGroup


def extract_in_process(
    path: Path, secret: bytes, tasks: Sequence[Task], group: ThreadGroup[Extracted]
) -> None:
    """Have a process extract ``tasks`` and report to the group; it is killed when nobody wants any more.

    What it has not reported is removed: it may be half a file.

    Raises:
        MmfwError, OSError: what went wrong there.
        ResourceError: the process died.
    """
    command = [sys.executable, "-m", "mmf_win.archives.processes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        unreported = deque(sorted(tasks, key=lambda task: task.member.info.header_offset))
        try:
            with process.stdin:
                pickle.dump((path, secret, list(unreported)), process.stdin)
            while (message := pickle.load(process.stdout)) is not None:
                if isinstance(message, BaseException):
                    raise message
                if isinstance(message, int):
                    group.advance(message)
                else:
                    group.report(message)
                    unreported.popleft()
        except (EOFError, BrokenPipeError):
            raise ResourceError(
                f"{path}: a process that extracts it died with code {process.wait()}",
                hint="often the memory is full; close other programs and try again",
            ) from None
        finally:
            process.kill()
            process.wait()
            for task in unreported:
                task.target.unlink(missing_ok=True)


def main() -> None:
    """The process: reads what to extract; writes numbers of bytes, finished members, an error or None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches it, too, but its parent knows best
    path, secret, tasks = pickle.load(sys.stdin.buffer)
    out = sys.stdout.buffer

    def send(message: object) -> None:
        pickle.dump(message, out)
        out.flush()

    try:
        with closing(ZipReader(path, secret)) as reader:
            for task in tasks:
                send(write_member(path, task.member, task.target, reader.content(task.member), send))
    except BrokenPipeError:  # the parent has gone
        return
    except (MmfwError, OSError) as error:
        send(error)
    else:
        send(None)


if __name__ == "__main__":
    main()

"""File systems that a test mounts as root, with a sudo that needs no password, or in a user namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

_NO_PERMISSION_REASON = "no permission to mount a file system"
_NAMESPACE_COMMAND = ("unshare", "--user", "--map-root-user", "--mount")


def _succeeds(*command: str) -> bool:
    if sys.platform == "win32" or shutil.which(command[0]) is None:
        return False
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return result.returncode == 0


@cache
def _elevation_command() -> tuple[str, ...] | None:
    """Return the command prefix that allows a command to mount; None if no prefix does."""
    candidates: tuple[tuple[str, ...], ...] = ((), ("sudo", "-n"))
    return next((prefix for prefix in candidates if _succeeds(*prefix, "unshare", "--mount", "true")), None)


@cache
def _can_use_namespace() -> bool:
    return _succeeds(*_NAMESPACE_COMMAND, "true")


def needs_namespace() -> bool:
    """Return whether a process may mount only as root of a user namespace."""
    return _elevation_command() is None and _can_use_namespace()


@contextmanager
def mount_filesystem(folder: Path, *mount_arguments: str) -> Iterator[None]:
    """Mount a file system at an existing folder, with these arguments of ``mount``; skip the test if not permitted."""
    elevation = _elevation_command()
    if elevation is None or not _succeeds(*elevation, "mount", *mount_arguments, str(folder)):
        pytest.skip(_NO_PERMISSION_REASON)
    try:
        yield
    finally:
        subprocess.run([*elevation, "umount", str(folder)], check=True)


def remount(folder: Path, option: str) -> None:
    """Change an option of a mounted file system, such as ``ro`` or ``size=``."""
    # The current options include the owner's id outside the namespace, which is unknown inside it.
    command = ["mount", "--options-source=disable", "-o", f"remount,{option}", str(folder)]
    subprocess.run([*(_elevation_command() or ()), *command], check=True)


def private_mounts_command(script: str) -> list[str]:
    """Return the prefix that runs a command in a private mount namespace, after a shell script that mounts.

    The command runs as the user of the test. The test is skipped if mounting is not permitted.
    """
    elevation = _elevation_command()
    if elevation is None and not _can_use_namespace():
        pytest.skip(_NO_PERMISSION_REASON)
    shell = ["sh", "-c", f'{script} && exec "$@"', "sh"]
    if elevation is None:
        return [*_NAMESPACE_COMMAND, *shell]
    if not elevation:
        return ["unshare", "--mount", *shell]
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    user = ["setpriv", f"--reuid={os.getuid()}", f"--regid={os.getgid()}", "--init-groups"]
    return [*elevation, "unshare", "--mount", *shell, *user, "env", *environment]


def run_in_namespace(item: pytest.Function) -> None:
    """Run one test in a separate pytest process, which may mount as root of a user namespace."""
    removed_prefixes = ("PYTEST_", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(removed_prefixes)}
    folder = item.funcargs["tmp_path"] / "namespace"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={folder}"]
    result = subprocess.run(
        [*_NAMESPACE_COMMAND, sys.executable, "-m", "pytest", *options, item.nodeid],
        cwd=item.config.rootpath,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if "\n1 passed" not in result.stdout:
        pytest.fail(f"in a user namespace:\n{result.stdout}{result.stderr}", pytrace=False)

"""Makes or reuses a virtual environment in the checkout; needs the standard library only."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_EXE_SUFFIX = ".exe" if os.name == "nt" else ""
# Says that a folder was made here and may be replaced, and once all is installed what that was.
_STAMP_NAME = "mmfw-stamp"
# On Linux, PyPI's PyTorch brings 3 GB of CUDA along.
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_PROGRESS_SECONDS = 5  # seconds
_STOP_TIMEOUT_SECONDS = 60  # seconds for a program to finish after Ctrl+C


class Venv:
    """A virtual environment with mmfw in it, editable, at the versions of a file of constraints.

    Extras that another script has installed into it stay, so that scripts can share one.

    Args:
        folder: its name in the checkout.
        extras: the extras of mmfw that are installed.
        constraints: the file.
        cpu_torch: take PyTorch for the CPU, where PyPI's is another and there is none yet.
        compiled: compile all packages to bytecode; otherwise Python does so as it imports them.
    """

    def __init__(
        self,
        folder: str,
        extras: Sequence[str],
        constraints: str = "constraints.txt",
        *,
        cpu_torch: bool = False,
        compile_bytecode: bool = True,
    ) -> None:
        self.path = ROOT / folder
        self.programs = self.path / ("Scripts" if os.name == "nt" else "bin")
        self.extras = frozenset(extras)
        self.constraints = constraints
        self.cpu_torch = cpu_torch
        self.compile_bytecode = compile_bytecode
        self._running: list[subprocess.Popen[str]] = []

    def program_path(self, name: str) -> str:
        """The path of a program of the environment, such as ``python`` or ``mmfw``."""
        return str(self.programs / (name + _EXE_SUFFIX))

    def ensure_installed(self) -> None:
        """Make it, or bring it up to date, unless it is just what this checkout asks for."""
        if sys.version_info < (3, 10):  # noqa: UP036 - this script is what tells a user of an older one
            sys.exit("mmfw needs Python 3.10 or newer.")
        stamp = self.path / _STAMP_NAME
        if self.path.exists() and not stamp.is_file():
            sys.exit(f"{self.path} was not made by this script. Move it away, or remove it yourself.")
        python = f"{sys.version} {sys.base_prefix}".replace("\n", " ")
        found = stamp.read_text(encoding="utf-8").splitlines() if stamp.is_file() else []
        there = frozenset(found[2].split()) if len(found) == 3 else frozenset()
        if found[:2] == [python, self._requirements_hash()] and self.extras <= there:
            return
        print(f"Installing into {self.path}; the first time takes a minute or more. So far:", flush=True)
        if found[:1] != [python]:
            self._create()
        stamp.write_text("unfinished", encoding="utf-8")  # an installation may be cut short
        extras = sorted(self.extras | there)
        pip = [self.program_path("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-compile", "-c", self.constraints]  # that is done below, on all processors
        if self.cpu_torch and sys.platform == "linux":
            pytorch = ["--extra-index-url", _CPU_INDEX, "--retries", "1", "--no-deps", "torch", "torchvision"]
            run_command([*pip, *pytorch], watched_folder=self.path)
        run_command([*pip, "-e", f".[{','.join(extras)}]"], watched_folder=self.path)
        if self.compile_bytecode:
            # Without bytecode, as PYTHONDONTWRITEBYTECODE has it, each start takes twice as long. Some
            # packages have files that are no Python.
            print("Compiling it to bytecode:", flush=True)
            compiling = [self.program_path("python"), "-m", "compileall", "-qq", "-j", "0"]
            run_command(
                [*compiling, str(self.path), str(ROOT / "mmf_win")], watched_folder=self.path, may_fail=True
            )
        stamp.write_text("\n".join([python, self._requirements_hash(), " ".join(extras)]), encoding="utf-8")

    def run(
        self,
        name: str,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        quiet: bool = False,
        nice: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs in the checkout.

        Args:
            name: the program, such as ``python``.
            arguments: its arguments.
            environ: variables to set.
            quiet: collect the output in ``stdout`` of the result.
            nice: leave the processors to others, where the system has the program ``nice``.
        """
        prefix = ["nice"] if nice and os.name != "nt" and shutil.which("nice") else []
        process = self._start([*prefix, self.program_path(name), *arguments], environ or {}, quiet=quiet)
        output, _ = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def run_until_exit(self, name: str, *arguments: str) -> int:
        """Run one of its programs, and let it finish its report after Ctrl+C; return the exit code.

        Raises:
            KeyboardInterrupt: the program ended after Ctrl+C.
        """
        process = self._start([self.program_path(name), *arguments], {}, quiet=False)
        try:
            return process.wait()
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):  # the terminal has told it, too
                process.wait(_STOP_TIMEOUT_SECONDS)
            raise

    def stop(self) -> None:
        """End all programs that still run."""
        for process in self._running:
            if process.poll() is None:
                process.terminate()

    def _start(
        self, command: Sequence[str], environ: Mapping[str, str], *, quiet: bool
    ) -> subprocess.Popen[str]:
        environment = {**os.environ, **environ}
        if not self.compile_bytecode:
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
            encoding="utf-8",
            errors="replace",
        )
        self._running.append(process)
        return process

    def _create(self) -> None:
        if Path(sys.prefix) == self.path:
            sys.exit(f"{self.path} has to be made anew: run this with the Python that it was made with.")
        if self.path.exists():
            shutil.rmtree(self.path)
        self.path.mkdir()
        (self.path / _STAMP_NAME).touch()
        run_command([sys.executable, "-m", "venv", str(self.path)])

    def _requirements_hash(self) -> str:
        content = hashlib.sha256()
        files = [ROOT / name for name in ("pyproject.toml", "setup.py", self.constraints)]
        for file in (*files, *sorted((ROOT / "mmf_win" / "archives" / "native").rglob("*.[ch]"))):
            content.update(file.read_bytes())
        return content.hexdigest()


def run_command(
    command: Sequence[str], *, watched_folder: Path | None = None, may_fail: bool = False
) -> None:
    """Run a command in the checkout; where it fails, say so and exit.

    Meanwhile it says every few seconds how large the folder ``watched`` and pip's downloads are.
    """
    begun = time.monotonic()
    try:
        with subprocess.Popen(command, cwd=ROOT) as process:
            while process.returncode is None:
                try:
                    process.wait(_PROGRESS_SECONDS if watched_folder else None)
                except subprocess.TimeoutExpired:
                    downloaded = _size_in_mib(*Path(tempfile.gettempdir()).glob("pip-unpack-*"))
                    told = f"{downloaded} MB downloaded, {_size_in_mib(watched_folder)} MB installed"
                    print(f"  {time.monotonic() - begun:3.0f} s: {told}", flush=True)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")
    if process.returncode and not may_fail:
        sys.exit(f"Exit code {process.returncode}: {' '.join(command)}")


def _size_in_mib(*folders: Path | None) -> int:
    """How large folders are, in which others write and remove files at this moment."""
    total = 0
    for path, _, names in chain.from_iterable(os.walk(folder) for folder in folders if folder):
        for name in names:
            with suppress(OSError):
                total += Path(path, name).lstat().st_size
    return total >> 20

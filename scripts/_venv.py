"""Virtual environment in the checkout, created or reused; needs only the standard library."""

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
# Marks a folder that was created here and may be replaced; after installation, contains what was installed.
_STAMP_NAME = "mmfw-stamp"
# On Linux, PyPI's PyTorch depends on 3 GB of CUDA.
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_PROGRESS_SECONDS = 5
_STOP_TIMEOUT_SECONDS = 60  # for a program to finish after Ctrl+C


class Venv:
    """Virtual environment with an editable mmfw and the versions of a constraints file.

    Extras that another script installed are kept, so that scripts can share an environment.

    Args:
        folder: Name of the folder in the checkout.
        extras: Extras of mmfw to install.
        constraints: The constraints file.
        cpu_torch: Install PyTorch for the CPU, if PyPI's is another one and none is installed.
        compile_bytecode: Compile all packages to bytecode; otherwise Python does so on import.
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
        """Return the path of a program of the environment, such as ``python`` or ``mmfw``."""
        return str(self.programs / (name + _EXE_SUFFIX))

    def ensure_installed(self) -> None:
        """Create or update the environment, unless it matches this checkout."""
        if sys.version_info < (3, 10):  # noqa: UP036 - this script informs the users of older versions
            sys.exit("mmfw needs Python 3.10 or newer.")
        stamp = self.path / _STAMP_NAME
        if self.path.exists() and not stamp.is_file():
            sys.exit(f"{self.path} was not created by this script. Move or remove it.")
        python = f"{sys.version} {sys.base_prefix}".replace("\n", " ")
        stamp_lines = stamp.read_text(encoding="utf-8").splitlines() if stamp.is_file() else []
        installed_extras = frozenset(stamp_lines[2].split()) if len(stamp_lines) == 3 else frozenset()
        if stamp_lines[:2] == [python, self._requirements_hash()] and self.extras <= installed_extras:
            return
        print(f"Installing into {self.path}; the first time takes a minute or more. So far:", flush=True)
        if stamp_lines[:1] != [python]:
            self._create()
        stamp.write_text("unfinished", encoding="utf-8")  # in case the installation is interrupted
        extras = sorted(self.extras | installed_extras)
        pip = [self.program_path("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-compile", "-c", self.constraints]  # compiled below, on all CPUs
        if self.cpu_torch and sys.platform == "linux":
            pytorch = ["--extra-index-url", _CPU_INDEX, "--retries", "1", "--no-deps", "torch", "torchvision"]
            run_command([*pip, *pytorch], watched_folder=self.path)
        run_command([*pip, "-e", f".[{','.join(extras)}]"], watched_folder=self.path)
        if self.compile_bytecode:
            # With PYTHONDONTWRITEBYTECODE, each start would take twice as long without this. It may fail,
            # since some packages contain files that are not valid Python.
            print("Compiling it to bytecode:", flush=True)
            compiling = [self.program_path("python"), "-m", "compileall", "-qq", "-j", "0"]
            run_command([*compiling, str(self.path), str(ROOT / "mmf_win")], watched_folder=self.path, may_fail=True)
        stamp.write_text("\n".join([python, self._requirements_hash(), " ".join(extras)]), encoding="utf-8")

    def run(
        self,
        name: str,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        quiet: bool = False,
        nice: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the checkout.

        Args:
            name: The program, such as ``python``.
            arguments: Its arguments.
            environ: Environment variables to set.
            quiet: Collect the output in ``stdout`` of the result.
            nice: Run with a low priority, if the system has the program ``nice``.

        Returns:
            The finished process.
        """
        prefix = ["nice"] if nice and os.name != "nt" and shutil.which("nice") else []
        process = self._start([*prefix, self.program_path(name), *arguments], environ or {}, quiet=quiet)
        output, _ = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def run_until_exit(self, name: str, *arguments: str) -> int:
        """Run a program of the environment; after Ctrl+C, let it finish its report.

        Returns:
            The exit code.

        Raises:
            KeyboardInterrupt: The program ended after Ctrl+C.
        """
        process = self._start([self.program_path(name), *arguments], {}, quiet=False)
        try:
            return process.wait()
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):  # the terminal has interrupted it, too
                process.wait(_STOP_TIMEOUT_SECONDS)
            raise

    def stop(self) -> None:
        """Terminate all programs that are still running."""
        for process in self._running:
            if process.poll() is None:
                process.terminate()

    def _start(self, command: Sequence[str], environ: Mapping[str, str], *, quiet: bool) -> subprocess.Popen[str]:
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
            sys.exit(f"{self.path} must be recreated: run this with the Python that created it.")
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


def run_command(command: Sequence[str], *, watched_folder: Path | None = None, may_fail: bool = False) -> None:
    """Run a command in the checkout; if it fails, exit with a message.

    While it runs, print the size of ``watched_folder`` and of pip's downloads every few seconds.
    """
    start = time.monotonic()
    try:
        with subprocess.Popen(command, cwd=ROOT) as process:
            while process.returncode is None:
                try:
                    process.wait(_PROGRESS_SECONDS if watched_folder else None)
                except subprocess.TimeoutExpired:
                    downloaded = _size_in_mib(*Path(tempfile.gettempdir()).glob("pip-unpack-*"))
                    sizes = f"{downloaded} MB downloaded, {_size_in_mib(watched_folder)} MB installed"
                    print(f"  {time.monotonic() - start:3.0f} s: {sizes}", flush=True)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")
    if process.returncode and not may_fail:
        sys.exit(f"Exit code {process.returncode}: {' '.join(command)}")


def _size_in_mib(*folders: Path | None) -> int:
    """Return the size of folders in which other processes create and remove files."""
    total = 0
    for path, _, names in chain.from_iterable(os.walk(folder) for folder in folders if folder):
        for name in names:
            with suppress(OSError):
                total += Path(path, name).lstat().st_size
    return total >> 20

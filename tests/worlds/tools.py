"""External programs and packages that tests need, and functions that run commands."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from mmf_win.cli import main
from tests.worlds.message_log import record_messages


def is_wine() -> bool:
    """Return whether this is a Windows Python under Wine, where few tools can be installed."""
    if sys.platform != "win32":
        return False
    import ctypes

    return hasattr(ctypes.windll.ntdll, "wine_get_version")


def requires_tool(*names: str, exists_on_windows: bool = True) -> pytest.MarkDecorator:
    """Skip a test if one of these programs is not installed; in CI, the test then fails.

    Args:
        names: Names of the programs.
        exists_on_windows: False if there is no such program for Windows.
    """
    if sys.platform == "win32" and not exists_on_windows:
        return pytest.mark.skip(reason=f"Windows has no {' or '.join(names)}")
    missing = [name for name in names if shutil.which(name) is None]
    suffix = " under Wine" if is_wine() else ""
    return pytest.mark.skipif(bool(missing), reason=f"not installed{suffix}: {', '.join(missing)}")


def requires_package(*names: str) -> pytest.MarkDecorator:
    """Skip a test if one of these packages is not installed; the packages are not imported."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"could not import {', '.join(missing)}")


class LazyModule:
    """Module that is imported at the first access to one of its attributes.

    Importing large packages takes seconds, which runs of other tests save.
    """

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__") or name == "_mock_name"
        ):  # pytest looks up these attributes of all names in a test module
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f'patch the module itself: monkeypatch.setattr("{self._name}.{name}", ...)')


NEWEST_MMF = os.environ.get("MMFW_TEST_MMF")
"""Checkout of MMF 1.0.0rc12, or None if there is none to test with."""

requires_newest_mmf = pytest.mark.skipif(NEWEST_MMF is None, reason="MMFW_TEST_MMF names no checkout of MMF 1.0.0rc12")

requires_console_events = pytest.mark.skipif(is_wine(), reason="Wine sends no console events")
"""Mark for a test that sends Ctrl+Break on Windows."""


def mark_wide(values: Iterable[Any], *, except_for: Container[Any]) -> list[Any]:
    """Return test parameters of which most are marked as wide; see pyproject.toml.

    Args:
        values: All values; for several parameters, each value is a tuple.
        except_for: Values that are not marked, because the default tests include them.
    """
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    is_default = [case in except_for or (len(case) == 1 and case[0] in except_for) for case in cases]
    assert any(is_default), f"none of {except_for} is a parameter"
    return [
        pytest.param(*case, marks=() if default else pytest.mark.wide)
        for case, default in zip(cases, is_default, strict=True)
    ]


def run_unprivileged(
    *arguments: object, program: Sequence[str] = ("-m", "mmf_win")
) -> subprocess.CompletedProcess[str]:
    """Run a command of mmfw or another program that has to respect file modes, even if the user is root.

    Args:
        arguments: Arguments of the command.
        program: Arguments of Python that select the program.
    """
    drop_privileges = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    is_root = sys.platform != "win32" and os.geteuid() == 0
    command = [*(drop_privileges if is_root else ()), sys.executable, *program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)


class MmfwRunner:
    """Runner of commands in this process; none may print a traceback.

    Attributes:
        out, err: Output of the last command.
    """

    out = err = ""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Run a command that must exit with ``code``; return stdout if ``code`` is 0 and stderr otherwise."""
        self._capsys.readouterr()
        exit_code = main([*map(str, arguments)])
        self.out, self.err = self._capsys.readouterr()
        record_messages(self.err)
        assert exit_code == code and "Traceback" not in self.err, self.err
        return self.err if code else self.out

    def json(self, *arguments: object, code: int = 0) -> Any:
        """Run a command with ``--json`` and return its result; an error must be on the last line."""
        self(*arguments, "--json", code=code)
        lines = self.out.splitlines()
        if code:
            *result_lines, last = lines
            error = json.loads(last)["error"]
            assert list(error) == ["code", "message", "hint"] and error["code"] == code
            assert error["message"] in self.err and (error["hint"] or "") in self.err
            lines = result_lines or [last]
        return json.loads("\n".join(lines))


def split_command(command: str) -> list[str]:
    """Split a command line into arguments, as this system does.

    On Windows each program splits its command line itself, usually with this function of the system.
    """
    if sys.platform != "win32":
        return shlex.split(command)
    import ctypes

    split_line, count = ctypes.windll.shell32.CommandLineToArgvW, ctypes.c_int()
    split_line.restype = ctypes.POINTER(ctypes.c_wchar_p)
    arguments = split_line(f"mmfw {command}", ctypes.byref(count))  # the program name has different rules
    return [str(arguments[index]) for index in range(1, count.value)]


def load_script(name: str) -> ModuleType:
    """Import a script of the checkout as a new module, which is not in sys.modules."""
    folder = Path(__file__).parents[2] / "scripts"
    spec = importlib.util.spec_from_file_location(f"_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))  # scripts import one another
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def untar(archive: Path, folder: Path) -> None:
    """Unpack a trusted tar."""
    # Python 3.10.11, the last 3.10 with an installer for Windows, has no filters.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(folder, **options)


def run_program(*command: str | Path, cwd: Path) -> None:
    """Run a program that must succeed."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}  # unzip replaces letters that the locale lacks
    subprocess.run(command, cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def read_tensorboard_scalars(run: Path, tag: str) -> dict[int, float]:
    """Return step → value of a scalar, from all event files of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run))
    accumulator.Reload()
    return {event.step: event.value for event in accumulator.Scalars(tag)}


def preload_environment(source: str, folder: Path) -> dict[str, str]:
    """Return an environment that preloads the functions of a C file in ``tests/worlds``.

    Args:
        source: Name of the C file, which gcc compiles.
        folder: Target folder of the library.
    """
    source_file, library = Path(__file__).parent / source, folder / Path(source).with_suffix(".so")
    subprocess.run(["gcc", "-shared", "-fPIC", source_file, "-o", library, "-ldl"], check=True)
    return {**os.environ, "LD_PRELOAD": str(library), "PYTHONUTF8": "1"}


def make_failing_function(error_number: int) -> Callable[..., NoReturn]:
    """Return a function that raises OSError with this error number and no file name."""

    def fail(*_: object) -> NoReturn:
        raise OSError(error_number, os.strerror(error_number))

    return fail

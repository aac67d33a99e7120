"""Programs that a test wants from outside."""

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
    """Return whether this is a Windows Python under Wine, for which hardly any tool can be installed."""
    if sys.platform != "win32":
        return False
    import ctypes

    return hasattr(ctypes.windll.ntdll, "wine_get_version")


def requires_tool(*names: str, exists_on_windows: bool = True) -> pytest.MarkDecorator:
    """Skip a test, saying so, where one of these programs is not installed; in CI that fails it.

    Args:
        names: of the programs.
        exists_on_windows: False if Windows has no such program.
    """
    if sys.platform == "win32" and not exists_on_windows:
        return pytest.mark.skip(reason=f"Windows has no {' or '.join(names)}")
    missing = [name for name in names if shutil.which(name) is None]
    where = " under Wine" if is_wine() else ""
    return pytest.mark.skipif(bool(missing), reason=f"not installed{where}: {', '.join(missing)}")


def requires_package(*names: str) -> pytest.MarkDecorator:
    """Skip a test where one of these packages is not installed; none is imported to find out."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"could not import {', '.join(missing)}")


class LazyModule:
    """A module that is imported when a test first asks for something in it.

    Importing the large packages takes seconds, which a run of other tests need not spend.
    """

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_mock_name":  # pytest asks every name of a test module for these
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f'patch the module itself: monkeypatch.setattr("{self._name}.{name}", ...)')


NEWEST_MMF = os.environ.get("MMFW_TEST_MMF")
"""A checkout of MMF 1.0.0rc12, where there is one to test with."""

requires_newest_mmf = pytest.mark.skipif(NEWEST_MMF is None, reason="MMFW_TEST_MMF names no checkout of MMF 1.0.0rc12")

requires_console_events = pytest.mark.skipif(is_wine(), reason="Wine sends no console events")
"""For a test that sends Ctrl+Break on Windows."""


def mark_wide(values: Iterable[Any], *, except_for: Container[Any]) -> list[Any]:
    """Return parameters of a test that are wide, see pyproject.toml, except for some.

    Args:
        values: all of them, each the tuple of one case where a test has several parameters.
        except_for: Those that the default tests run, too.
    """
    many = [value if isinstance(value, tuple) else (value,) for value in values]
    kept = [value in except_for or (len(value) == 1 and value[0] in except_for) for value in many]
    assert any(kept), f"none of {except_for} is a parameter"
    return [
        pytest.param(*value, marks=() if keep else pytest.mark.wide) for value, keep in zip(many, kept, strict=True)
    ]


def run_unprivileged(
    *arguments: object, program: Sequence[str] = ("-m", "mmf_win")
) -> subprocess.CompletedProcess[str]:
    """Run a command of mmfw, or of another program, which the modes of files hold for even if it is root.

    Args:
        arguments: The arguments of the command.
        program: what Python runs.
    """
    bare = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    is_root = sys.platform != "win32" and os.geteuid() == 0
    command = [*(bare if is_root else ()), sys.executable, *program, *map(str, arguments)]
    environ = {**os.environ, "PYTHONUTF8": "1"}
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environ)


class MmfwRunner:
    """Runs commands in this process, as a user types them; none may end in a traceback.

    Attributes:
        out, err: what the last one printed.
    """

    out = err = ""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Run one that has to end with this exit code; its result, or what it said where it failed."""
        self._capsys.readouterr()
        ended = main([*map(str, arguments)])
        self.out, self.err = self._capsys.readouterr()
        record_messages(self.err)
        assert ended == code and "Traceback" not in self.err, self.err
        return self.err if code else self.out

    def json(self, *arguments: object, code: int = 0) -> Any:
        """Run with ``--json`` and return the result, or the error on the last line."""
        self(*arguments, "--json", code=code)
        lines = self.out.splitlines()
        if code:
            *before, last = lines
            told = json.loads(last)["error"]
            assert list(told) == ["code", "message", "hint"] and told["code"] == code
            assert told["message"] in self.err and (told["hint"] or "") in self.err
            lines = before or [last]
        return json.loads("\n".join(lines))


def split_command(command: str) -> list[str]:
    """The words of a command, as this system takes them apart.

    On Windows a program does that itself, nearly always by this function of the system.
    """
    if sys.platform != "win32":
        return shlex.split(command)
    import ctypes

    split, count = ctypes.windll.shell32.CommandLineToArgvW, ctypes.c_int()
    split.restype = ctypes.POINTER(ctypes.c_wchar_p)
    words = split(f"mmfw {command}", ctypes.byref(count))  # it takes the first word apart otherwise
    return [str(words[number]) for number in range(1, count.value)]


def load_script(name: str) -> ModuleType:
    """A script of the checkout as a module, which nobody else has."""
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
    """Unpack a tar of our own."""
    # 3.10.11, the last Python 3.10 with an installer for Windows, knows no filters.
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(folder, **safely)


def run_program(*command: str | Path, cwd: Path) -> None:
    """Run a program that must succeed."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}  # unzip spoils letters that the locale lacks
    subprocess.run(command, cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def read_tensorboard_scalars(run: Path, tag: str) -> dict[int, float]:
    """Step → value of a scalar, from all the event files of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(run))
    shown.Reload()
    return {event.step: event.value for event in shown.Scalars(tag)}


def preload_environment(source: str, folder: Path) -> dict[str, str]:
    """Return an environment in which processes have the functions of a C file of ``tests/worlds`` preloaded.

    Args:
        source: the name of the C file, which gcc compiles.
        folder: where the library is written to.
    """
    code, shim = Path(__file__).parent / source, folder / Path(source).with_suffix(".so")
    subprocess.run(["gcc", "-shared", "-fPIC", code, "-o", shim, "-ldl"], check=True)
    return {**os.environ, "LD_PRELOAD": str(shim), "PYTHONUTF8": "1"}


def make_failing_function(error_number: int) -> Callable[..., NoReturn]:
    """Return a function that fails as the system does with an error of this number, without a file's name."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(error_number, os.strerror(error_number))

    return refuse

"""Scripts that prepare a checkout, with fake environments and pip, and a few cases of fuzzing."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.worlds.liveness import HOLD_CONNECTION_CODE, liveness_monitor
from tests.worlds.tools import is_wine, load_script, mark_wide

SCRIPTS = Path(__file__).parents[1] / "scripts"
only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the Windows Python is built on Linux")


@pytest.fixture
def venv_script(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module ``_venv`` for an empty checkout."""
    module = load_script("_venv")
    monkeypatch.setattr(module, "ROOT", user_dir)
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (user_dir / name).touch()
    return module


class FakeCommands(list[str]):
    """Names of a script's commands, and the last command; a command named ``failing`` ends the script."""

    failing = ""
    last: Sequence[str] = ()

    def __call__(self, command: Sequence[str], **_: object) -> None:
        name = next(name for name in ("pip", "compileall", "venv") if name in command)
        self.last = self.last if name == "compileall" else command
        self.append(name)
        if name == self.failing:
            sys.exit(1)


@pytest.fixture
def commands(venv_script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    """Replace the commands of the script by fakes and return them."""
    fake = FakeCommands()
    monkeypatch.setattr(venv_script, "run_command", fake)
    return fake


def test_environment_created_by_the_user_is_not_changed(venv_script: ModuleType, commands: FakeCommands) -> None:
    config = venv_script.ROOT / ".venv" / "pyvenv.cfg"
    config.parent.mkdir()
    config.touch()
    with pytest.raises(SystemExit, match="was not created by this script"):
        venv_script.Venv(".venv", ["dev"]).ensure_installed()
    assert config.exists()
    assert commands == []


def test_scripts_share_an_environment_and_install_only_new_extras(
    venv_script: ModuleType, commands: FakeCommands
) -> None:
    venv_script.Venv(".venv", ["train"]).ensure_installed()
    venv_script.Venv(".venv", ["train", "dev"]).ensure_installed()
    assert commands == ["venv", "pip", "compileall", "pip", "compileall"]
    venv_script.Venv(".venv", ["train"]).ensure_installed()
    venv_script.Venv(".venv", ["dev", "train"]).ensure_installed()
    assert commands == ["venv", "pip", "compileall", "pip", "compileall"]
    (venv_script.ROOT / "constraints.txt").write_text("click==8.0\n", encoding="utf-8")
    venv_script.Venv(".venv", ["train"]).ensure_installed()
    assert commands == ["venv", *3 * ["pip", "compileall"]]
    assert commands.last[-1] == ".[dev,train]"


@pytest.mark.parametrize("failing", ["venv", "pip"])
def test_incomplete_environment_is_recreated(venv_script: ModuleType, commands: FakeCommands, failing: str) -> None:
    commands.failing = failing
    with pytest.raises(SystemExit):
        venv_script.Venv(".venv", ["dev"]).ensure_installed()
    leftover = venv_script.ROOT / ".venv" / "half"
    leftover.touch()
    commands.clear()
    commands.failing = ""
    venv_script.Venv(".venv", ["dev"]).ensure_installed()
    assert commands == ["venv", "pip", "compileall"]
    assert not leftover.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program"], "no-such-program cannot be run"),
        ([sys.executable, "-c", "import sys; sys.exit(3)"], "Exit code 3: "),
    ],
    ids=["missing", "failing"],
)
def test_failing_command_ends_the_script_with_a_message(
    venv_script: ModuleType, command: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        venv_script.run_command(command)


def copy_demo(checkout: Path) -> None:
    """Copy the modules of ``scripts/demo.py`` into a checkout."""
    (checkout / "scripts").mkdir(parents=True)
    for name in ("demo.py", "_demo.py", "_venv.py"):
        shutil.copy(SCRIPTS / name, checkout / "scripts")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [("--help", 0, "python scripts/demo.py"), ("--setup-only --seed 2", 1, "--setup-only cannot be combined")],
    ids=["help", "conflict"],
)
def test_demo_script_explains_its_arguments_and_installs_nothing(
    tmp_path: Path, arguments: str, code: int, message: str
) -> None:
    copy_demo(tmp_path)
    command = [sys.executable, str(tmp_path / "scripts" / "demo.py"), *arguments.split()]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert process.returncode == code and message in process.stdout + process.stderr
    assert not (tmp_path / ".venv").exists()


def find_old_pythons() -> list[Path]:
    """Return the Pythons of pyenv that are too old for mmfw."""
    if sys.platform == "win32":
        return []
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return [file for file in root.glob("versions/*/bin/python") if int(file.parts[-3].split(".")[1]) < 10]


def test_demo_script_refuses_an_old_python_and_installs_nothing(tmp_path: Path) -> None:
    copy_demo(tmp_path)
    script = tmp_path / "scripts" / "demo.py"
    for python in find_old_pythons():
        process = subprocess.run([python, script], capture_output=True, encoding="utf-8", check=False)
        assert process.returncode == 1 and process.stdout == ""
        assert re.fullmatch(r"mmfw needs Python 3\.10 or newer, and this is Python [23]\.\d+\.\n", process.stderr)
    text = script.read_text(encoding="utf-8")
    assert ast.parse(text, feature_version=(3, 7))
    has_new_syntax = "annotations" in text or re.search(r"""\bf["']|:=|\) ->""", text)
    assert not has_new_syntax, "Python 2.7 must be able to parse the script"
    assert not (tmp_path / ".venv").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="the fake mmfw is a shell script, not a program of Windows")
def test_demo_script_ends_with_commands_that_can_be_pasted(user_dir: Path) -> None:
    checkout = user_dir / "Doe, Jane's"
    copy_demo(checkout)
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (checkout / name).touch()
    setup = "sys.path.insert(0, 'scripts'); from _venv import *; v = Venv('.venv', ['train'], cpu_torch=True); "
    setup += "python = f'{sys.version} {sys.base_prefix}'.replace(chr(10), ' '); v.programs.mkdir(parents=True); "
    setup += "(v.path / 'mmfw-stamp').write_text(chr(10).join([python, v._requirements_hash(), 'train']))"
    subprocess.run([sys.executable, "-c", f"import sys; {setup}"], cwd=checkout, check=True)
    mmfw = checkout / ".venv" / "bin" / "mmfw"
    mmfw.write_text('#!/bin/sh\necho "mmfw $*"\n', encoding="utf-8")
    mmfw.chmod(0o755)
    (mmfw.parent / "activate").write_text(f'PATH="{mmfw.parent}:$PATH"', encoding="utf-8")
    command = [sys.executable, str(checkout / "scripts" / "demo.py")]
    output = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    activate, path = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    for pasted_text in (f"{activate}\nmmfw demo --keep", path):
        process = subprocess.run(["sh", "-c", pasted_text], capture_output=True, encoding="utf-8", check=True)
        assert process.stdout == "mmfw demo --keep\n"


def test_packages_from_fake_pip_are_compiled_and_progress_is_shown(
    venv_script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(venv_script, "_PROGRESS_SECONDS", 0.01)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    venv, run_command = venv_script.Venv(".venv", ["train"]), venv_script.run_command
    installed = venv.path / "installed"

    def run_or_pretend(command: Sequence[str], **options: Any) -> None:
        if "compileall" in command:
            run_command(command, **options)
        elif "pip" in command:
            installed.mkdir()
            (installed / "module.py").touch()
            (installed / "of_python_2.py").write_text("print 1", encoding="utf-8")

    monkeypatch.setattr(venv_script, "run_command", run_or_pretend)
    monkeypatch.setattr(venv_script.Venv, "program_path", lambda *_: sys.executable)
    venv.ensure_installed()
    assert Path(cache_from_source(str(installed / "module.py"))).is_file()
    assert re.search(r"^ +\d+ s: \d+ MB downloaded, \d+ MB installed$", capsys.readouterr().out, re.MULTILINE)


@pytest.fixture
def test_py() -> ModuleType:
    """Return ``scripts/test.py`` as a module."""
    return load_script("test")


def test_windows_python_gets_pinned_versions_of_packages(test_py: ModuleType) -> None:
    pins = test_py.pinned_requirements()
    assert set(pins) > set(test_py.PACKAGES_WITHOUT_TORCH)
    assert set(pins) > {"torch", "torchvision", "transformers", "lmdb", "scikit-learn"}
    constraints = (SCRIPTS.parent / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert set(pins.values()) <= {line.partition(";")[0] for line in constraints}


@only_on_linux
def test_windows_python_is_not_built_without_wine_or_compiler(
    user_dir: Path, test_py: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(user_dir))
    with pytest.raises(SystemExit, match="is not installed") as raised:
        test_py.windows_python.build_windows_python(user_dir / "windows", [])
    assert not list(user_dir.iterdir())
    packages = str(raised.value).partition("apt-get install ")[2].split()
    installed_by_ci = (SCRIPTS.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert packages and all(package in installed_by_ci for package in packages)


@pytest.fixture
def fake_wine(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a Wine server that does nothing."""
    (user_dir / "wineserver").write_text("#!/bin/sh\n", encoding="utf-8")
    (user_dir / "wineserver").chmod(0o755)
    monkeypatch.setenv("PATH", f"{user_dir}{os.pathsep}{os.environ['PATH']}")


@only_on_linux
def test_parts_run_in_parallel_and_failed_ones_are_named_with_fake_wine(
    user_dir: Path, test_py: ModuleType, fake_wine: None, capfd: pytest.CaptureFixture[str]
) -> None:
    code_template = "import os; print(os.sched_getaffinity(0), os.environ['MMFW_WINE_PREFIX']); raise SystemExit({})"
    parts = {f"part {code}": [sys.executable, "-c", code_template.format(code)] for code in (0, 3, 1)}
    assert test_py.windows_tests.run_parts(parts, user_dir) == ["part 3", "part 1"]
    output = capfd.readouterr().out
    assert "failed: part 3" in output and "passed: part 0" in output
    pairs = set(re.findall(r"^(\{\d+\}) (prefix-\d)$", output, re.MULTILINE))
    assert len(pairs) == len({core for core, _ in pairs}) == len({prefix for _, prefix in pairs})


@only_on_linux
def test_parts_that_hang_are_ended_and_fail_with_fake_wine(
    user_dir: Path, test_py: ModuleType, fake_wine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_py.windows_tests, "_MAX_SECONDS", 1)
    hanging_command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    parts = {"hangs": hanging_command, "hangs too": hanging_command}
    assert test_py.windows_tests.run_parts(parts, user_dir) == ["hangs", "hangs too"]


@only_on_linux
def test_ctrl_c_ends_running_parts_with_fake_wine(user_dir: Path, fake_wine: None) -> None:
    with liveness_monitor() as held:
        parts = {name: [sys.executable, "-c", f"port = {held.port}{HOLD_CONNECTION_CODE}held.recv(1)"] for name in "12"}
        code = f"import windows_tests, pathlib; windows_tests.run_parts({parts}, pathlib.Path())"
        environ = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        with subprocess.Popen([sys.executable, "-c", code], env=environ, stderr=subprocess.DEVNULL) as tests:
            held.wait_for_processes(2 if len(os.sched_getaffinity(0)) > 1 else 1)
            tests.send_signal(signal.SIGINT)
            assert tests.wait() != 0
        assert held.wait_until_all_exited()


@pytest.mark.skipif(not is_wine(), reason="only a Windows Python under Wine reads file information differently")
@pytest.mark.parametrize("file", [sys.executable, r"C:\windows\win.ini"])
def test_stat_under_wine_equals_the_file_information_of_wine(file: str) -> None:
    import ctypes
    import msvcrt

    information = (ctypes.c_uint32 * 13)()  # BY_HANDLE_FILE_INFORMATION
    with Path(file).open("rb") as opened:
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(opened.fileno()))
        assert ctypes.windll.kernel32.GetFileInformationByHandle(handle, information)
        stat = os.fstat(opened.fileno())
    volume, size_high, size, links, index_high, index = information[7:]
    assert (stat.st_dev, stat.st_nlink) == (volume, links)
    assert (stat.st_size, stat.st_ino) == (size_high << 32 | size, index_high << 32 | index)
    modified = (information[6] << 32 | information[5]) * 100 - 11_644_473_600 * 10**9  # since 1601, in 100 ns
    assert stat.st_mtime_ns == modified


@pytest.mark.skipif(not is_wine(), reason="only a Windows Python under Wine retries the start of processes")
def test_failed_start_of_process_under_wine_is_retried_with_fake_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import wine_fixes

    start, codes = wine_fixes._create_process, [1359, 1359]

    def fail_or_start(*arguments: object) -> object:
        if codes:
            raise OSError(22, "Internal error", None, codes.pop())
        return start(*arguments)

    monkeypatch.setattr(wine_fixes, "_create_process", fail_or_start)
    assert subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode == 3
    codes.append(2)
    with pytest.raises(FileNotFoundError):
        subprocess.run([sys.executable])


@pytest.mark.skipif(sys.platform == "win32", reason="other tests cover this on Windows, and Wine is slow")
@pytest.mark.parametrize(
    ("kind", "cases"),
    mark_wide(
        [("archives", "12"), ("headers", "500"), ("kills", "2"), ("pickles", "200"), ("runs", "2"), ("sweeps", "2")],
        except_for=[("pickles", "200")],
    ),
)
def test_fuzzing_finds_no_failure(kind: str, cases: str) -> None:
    command = [sys.executable, str(SCRIPTS / "fuzz.py"), "--seed", "1", "--cases", cases, kind]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"{kind}: cases 1 to {cases}" in process.stdout

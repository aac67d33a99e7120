"""The scripts: those that set a checkout up, where environments and pip are faked, and a little fuzzing."""

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
def scripts(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``_venv``, at work in an empty checkout."""
    module = load_script("_venv")
    monkeypatch.setattr(module, "ROOT", user_dir)
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (user_dir / name).touch()
    return module


class FakeCommands(list[str]):
    """Record the commands of a script, in one word each, and the last one; ``failing`` ends the script."""

    failing = ""
    last: Sequence[str] = ()

    def __call__(self, command: Sequence[str], **_: object) -> None:
        name = next(name for name in ("pip", "compileall", "venv") if name in command)
        self.last = self.last if name == "compileall" else command
        self.append(name)
        if name == self.failing:
            sys.exit(1)


@pytest.fixture
def commands(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    """Replace the real commands."""
    fake = FakeCommands()
    monkeypatch.setattr(scripts, "run_command", fake)
    return fake


def test_an_environment_of_the_users_own_is_left_alone(scripts: ModuleType, commands: FakeCommands) -> None:
    own = scripts.ROOT / ".venv" / "pyvenv.cfg"
    own.parent.mkdir()
    own.touch()
    with pytest.raises(SystemExit, match="was not created by this script"):
        scripts.Venv(".venv", ["dev"]).ensure_installed()
    assert own.exists()
    assert commands == []


def test_scripts_with_other_extras_share_one_in_which_only_what_is_new_is_installed(
    scripts: ModuleType, commands: FakeCommands
) -> None:
    scripts.Venv(".venv", ["train"]).ensure_installed()
    scripts.Venv(".venv", ["train", "dev"]).ensure_installed()
    assert commands == ["venv", "pip", "compileall", "pip", "compileall"]
    scripts.Venv(".venv", ["train"]).ensure_installed()
    scripts.Venv(".venv", ["dev", "train"]).ensure_installed()
    assert commands == ["venv", "pip", "compileall", "pip", "compileall"]
    (scripts.ROOT / "constraints.txt").write_text("click==8.0\n", encoding="utf-8")
    scripts.Venv(".venv", ["train"]).ensure_installed()
    assert commands == ["venv", *3 * ["pip", "compileall"]]
    assert commands.last[-1] == ".[dev,train]"


@pytest.mark.parametrize("failing", ["venv", "pip"])
def test_half_an_environment_is_made_anew(scripts: ModuleType, commands: FakeCommands, failing: str) -> None:
    commands.failing = failing
    with pytest.raises(SystemExit):
        scripts.Venv(".venv", ["dev"]).ensure_installed()
    leftover = scripts.ROOT / ".venv" / "half"
    leftover.touch()
    commands.clear()
    commands.failing = ""
    scripts.Venv(".venv", ["dev"]).ensure_installed()
    assert commands == ["venv", "pip", "compileall"]
    assert not leftover.exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-program"], "no-such-program cannot be run"),
        ([sys.executable, "-c", "import sys; sys.exit(3)"], "Exit code 3: "),
    ],
    ids=["missing", "failing"],
)
def test_a_failing_command_ends_the_script_saying_so(scripts: ModuleType, command: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        scripts.run_command(command)


def copy_demo(checkout: Path) -> None:
    """Put what ``scripts/demo.py`` is made of into a checkout."""
    (checkout / "scripts").mkdir(parents=True)
    for name in ("demo.py", "_demo.py", "_venv.py"):
        shutil.copy(SCRIPTS / name, checkout / "scripts")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [("--help", 0, "python scripts/demo.py"), ("--setup-only --seed 2", 1, "--setup-only cannot be combined")],
    ids=["help", "dropped"],
)
def test_the_demo_script_says_what_it_takes_and_installs_nothing(
    tmp_path: Path, words: str, code: int, said: str
) -> None:
    copy_demo(tmp_path)
    asked = [sys.executable, str(tmp_path / "scripts" / "demo.py"), *words.split()]
    ended = subprocess.run(asked, capture_output=True, encoding="utf-8", check=False)
    assert ended.returncode == code and said in ended.stdout + ended.stderr
    assert not (tmp_path / ".venv").exists()


def old_pythons() -> list[Path]:
    """Pythons that are too old for mmfw, as pyenv has them."""
    if sys.platform == "win32":
        return []
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return [file for file in root.glob("versions/*/bin/python") if int(file.parts[-3].split(".")[1]) < 10]


def test_an_old_python_says_so_in_one_sentence_and_installs_nothing(tmp_path: Path) -> None:
    copy_demo(tmp_path)
    script = tmp_path / "scripts" / "demo.py"
    for python in old_pythons():
        ended = subprocess.run([python, script], capture_output=True, encoding="utf-8", check=False)
        assert ended.returncode == 1 and ended.stdout == ""
        assert re.fullmatch(r"mmfw needs Python 3\.10 or newer, and this is Python [23]\.\d+\.\n", ended.stderr)
    text = script.read_text(encoding="utf-8")
    assert ast.parse(text, feature_version=(3, 7))
    assert "annotations" not in text and not re.search(r"""\bf["']|:=|\) ->""", text), "for Python 2.7"
    assert not (tmp_path / ".venv").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="the program of Windows that stands in is no script")
def test_the_demo_script_ends_with_lines_that_can_be_pasted(user_dir: Path) -> None:
    checkout = user_dir / "Doe, Jane's"
    copy_demo(checkout)
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (checkout / name).touch()
    ready = "sys.path.insert(0, 'scripts'); from _venv import *; v = Venv('.venv', ['train'], cpu_torch=True); "
    ready += "python = f'{sys.version} {sys.base_prefix}'.replace(chr(10), ' '); v.programs.mkdir(parents=True); "
    ready += "(v.path / 'mmfw-stamp').write_text(chr(10).join([python, v._requirements_hash(), 'train']))"
    subprocess.run([sys.executable, "-c", f"import sys; {ready}"], cwd=checkout, check=True)
    mmfw = checkout / ".venv" / "bin" / "mmfw"
    mmfw.write_text('#!/bin/sh\necho "mmfw $*"\n', encoding="utf-8")
    mmfw.chmod(0o755)
    (mmfw.parent / "activate").write_text(f'PATH="{mmfw.parent}:$PATH"', encoding="utf-8")
    asked = [sys.executable, str(checkout / "scripts" / "demo.py")]
    told = subprocess.run(asked, capture_output=True, encoding="utf-8", check=True).stdout
    activate, path = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    for pasted in (f"{activate}\nmmfw demo --keep", path):
        ended = subprocess.run(["sh", "-c", pasted], capture_output=True, encoding="utf-8", check=True)
        assert ended.stdout == "mmfw demo --keep\n"


def test_what_a_fake_pip_installs_is_compiled_whatever_the_environment_says_and_progress_is_shown(
    scripts: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scripts, "_PROGRESS_SECONDS", 0.01)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    venv, run = scripts.Venv(".venv", ["train"]), scripts.run_command
    installed = venv.path / "installed"

    def run_or_pretend(command: Sequence[str], **how: Any) -> None:
        if "compileall" in command:
            run(command, **how)
        elif "pip" in command:
            installed.mkdir()
            (installed / "module.py").touch()
            (installed / "of_python_2.py").write_text("print 1", encoding="utf-8")

    monkeypatch.setattr(scripts, "run_command", run_or_pretend)
    monkeypatch.setattr(scripts.Venv, "program_path", lambda *_: sys.executable)
    venv.ensure_installed()
    assert Path(cache_from_source(str(installed / "module.py"))).is_file()
    assert re.search(r"^ +\d+ s: \d+ MB downloaded, \d+ MB installed$", capsys.readouterr().out, re.MULTILINE)


@pytest.fixture
def test_script() -> ModuleType:
    """The module that is ``scripts/test.py``."""
    return load_script("test")


def test_the_windows_python_gets_the_pinned_version_of_each_package(test_script: ModuleType) -> None:
    pins = test_script.pinned_requirements()
    assert set(pins) > set(test_script.PACKAGES_WITHOUT_TORCH)
    assert set(pins) > {"torch", "torchvision", "transformers", "lmdb", "scikit-learn"}
    constraints = (SCRIPTS.parent / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert set(pins.values()) <= {line.partition(";")[0] for line in constraints}


@only_on_linux
def test_without_wine_or_its_compiler_the_windows_python_is_not_built(
    user_dir: Path, test_script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(user_dir))
    with pytest.raises(SystemExit, match="is not installed") as refused:
        test_script.windows_python.build_windows_python(user_dir / "windows", [])
    assert not list(user_dir.iterdir())
    packages = str(refused.value).partition("apt-get install ")[2].split()
    installed_by_ci = (SCRIPTS.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert packages and all(package in installed_by_ci for package in packages)


@pytest.fixture
def fake_wine(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of Wine that does nothing."""
    (user_dir / "wineserver").write_text("#!/bin/sh\n", encoding="utf-8")
    (user_dir / "wineserver").chmod(0o755)
    monkeypatch.setenv("PATH", f"{user_dir}{os.pathsep}{os.environ['PATH']}")


@only_on_linux
def test_parts_run_side_by_side_and_those_that_failed_are_named_with_a_fake_wine(
    user_dir: Path, test_script: ModuleType, fake_wine: None, capfd: pytest.CaptureFixture[str]
) -> None:
    tell = "import os; print(os.sched_getaffinity(0), os.environ['MMFW_WINE_PREFIX']); raise SystemExit({})"
    parts = {f"part {code}": [sys.executable, "-c", tell.format(code)] for code in (0, 3, 1)}
    assert test_script.windows_tests.run_parts(parts, user_dir) == ["part 3", "part 1"]
    told = capfd.readouterr().out
    assert "failed: part 3" in told and "passed: part 0" in told
    on = set(re.findall(r"^(\{\d+\}) (prefix-\d)$", told, re.MULTILINE))
    assert len(on) == len({core for core, _ in on}) == len({prefix for _, prefix in on})


@only_on_linux
def test_parts_that_hang_are_ended_and_fail_with_a_fake_wine(
    user_dir: Path, test_script: ModuleType, fake_wine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_script.windows_tests, "_MAX_SECONDS", 1)
    hangs = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    parts = {"hangs": hangs, "hangs too": hangs}
    assert test_script.windows_tests.run_parts(parts, user_dir) == ["hangs", "hangs too"]


@only_on_linux
def test_ctrl_c_ends_the_parts_that_run_with_a_fake_wine(user_dir: Path, fake_wine: None) -> None:
    with liveness_monitor() as held:
        parts = {name: [sys.executable, "-c", f"port = {held.port}{HOLD_CONNECTION_CODE}held.recv(1)"] for name in "12"}
        code = f"import windows_tests, pathlib; windows_tests.run_parts({parts}, pathlib.Path())"
        environ = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        with subprocess.Popen([sys.executable, "-c", code], env=environ, stderr=subprocess.DEVNULL) as tests:
            held.wait_for_processes(2 if len(os.sched_getaffinity(0)) > 1 else 1)
            tests.send_signal(signal.SIGINT)
            assert tests.wait() != 0
        assert held.has_only_dead_processes()


@pytest.mark.skipif(not is_wine(), reason="only a Windows Python under Wine has another function")
@pytest.mark.parametrize("file", [sys.executable, r"C:\windows\win.ini"])
def test_under_wine_python_learns_of_a_file_what_wine_says(file: str) -> None:
    import ctypes
    import msvcrt

    wine_says = (ctypes.c_uint32 * 13)()  # BY_HANDLE_FILE_INFORMATION
    with Path(file).open("rb") as opened:
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(opened.fileno()))
        assert ctypes.windll.kernel32.GetFileInformationByHandle(handle, wine_says)
        stat = os.fstat(opened.fileno())
    volume, size_high, size, links, index_high, index = wine_says[7:]
    assert (stat.st_dev, stat.st_nlink) == (volume, links)
    assert (stat.st_size, stat.st_ino) == (size_high << 32 | size, index_high << 32 | index)
    modified = (wine_says[6] << 32 | wine_says[5]) * 100 - 11_644_473_600 * 10**9  # since 1601, in 100 ns
    assert stat.st_mtime_ns == modified


@pytest.mark.skipif(not is_wine(), reason="only a Windows Python under Wine starts processes again")
def test_under_wine_a_process_that_did_not_start_is_started_again_with_a_fake_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import wine_fixes

    start, codes = wine_fixes._create_process, [1359, 1359]

    def fails(*words: object) -> object:
        if codes:
            raise OSError(22, "Internal error", None, codes.pop())
        return start(*words)

    monkeypatch.setattr(wine_fixes, "_create_process", fails)
    assert subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode == 3
    codes.append(2)
    with pytest.raises(FileNotFoundError):
        subprocess.run([sys.executable])


@pytest.mark.skipif(sys.platform == "win32", reason="other tests try the same on Windows, and Wine is slow")
@pytest.mark.parametrize(
    ("kind", "cases"),
    mark_wide(
        [("archives", "12"), ("headers", "500"), ("kills", "2"), ("pickles", "200"), ("runs", "2"), ("sweeps", "2")],
        except_for=[("pickles", "200")],
    ),
)
def test_fuzzing_finds_nothing(kind: str, cases: str) -> None:
    command = [sys.executable, str(SCRIPTS / "fuzz.py"), "--seed", "1", "--cases", cases, kind]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{kind}: cases 1 to {cases}" in ended.stdout

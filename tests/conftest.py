"""Fixtures and hooks for all tests."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from mmf_win.paths import MmfPaths
from tests.worlds import cpu_time, message_log, mounts
from tests.worlds.fake_nvml import FakeNvml
from tests.worlds.flush_recorder import FlushRecorder, record_flushes
from tests.worlds.packages import Packages, build_packages
from tests.worlds.tools import NEWEST_MMF, MmfwRunner, is_wine, requires_newest_mmf

# In CI, a skip for any other reason is an error, since a missing tool must not silently disable a test. This does
# not apply under Wine, which has hardly any tool, or to packages of the extra `train` if it is not installed.
_SKIPS_FAIL = bool(os.environ.get("CI")) and not is_wine()
ALLOWED_SKIP_REASONS = (
    *("MMFW_TEST_MMF", "CUDA", "GPU", "Windows"),
    *("permission to limit", "hashes were recorded with another"),
)
SKIP_REASONS_ALLOWED_WITHOUT_TORCH = ("could not import", "PyTorch is not installed", "only lmdb")
# Use the same random input in each run, and store no examples on disk.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, print_blob=False)
settings.load_profile("fixed")
_SLOWEST_FOLDERS = ("tests/endtoend/", "tests/sweeps/", "tests/upstream/", "tests/worker/")
_KEPT_VARIABLES = {"MMFW_HOME", "MMFW_TEST_MMF", "MMFW_WINE_PREFIX", cpu_time.VARIABLE, message_log.VARIABLE}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the user's settings from the environment, except the location of MMF, and pauses of downloads."""
    monkeypatch.setattr("mmf_win.download.RETRY_PAUSE_SECONDS", 0.0)
    for name in set(os.environ) - _KEPT_VARIABLES:
        if name.startswith(("MMF_", "MMFW_", "MLFLOW_", "CLEARML_", "WANDB_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _restore_signal_handlers() -> None:
    """Let signals end the children of tests even if this run was started with the signals ignored.

    SIGINT is ignored in a script's background job, and SIGHUP under ``nohup``. Children inherit this, and a
    test would wait forever for one of them to end. Children do not inherit a handler.
    """
    handlers = {"SIGINT": signal.default_int_handler, "SIGTERM": _ignore_signal, "SIGHUP": _ignore_signal}
    for name, handler in handlers.items():
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def _ignore_signal(_number: int, _frame: object) -> None:
    """Do nothing, like a process that ignores a signal."""


@pytest.fixture
def mmfw(capsys: pytest.CaptureFixture[str]) -> MmfwRunner:
    """Return a runner of mmfw commands."""
    return MmfwRunner(capsys)


@pytest.fixture
def user_dir(tmp_path: Path) -> Path:
    """Return a folder whose name has a space and Cyrillic and Chinese letters, as users' folders do."""
    folder = tmp_path / "Мои данные 数据"
    folder.mkdir()
    return folder


@pytest.fixture
def mmf_paths(user_dir: Path) -> MmfPaths:
    """Return the folders of a user, none of which exists yet."""
    return MmfPaths(user_dir / "cache", user_dir / "data dir", user_dir / "save")


@pytest.fixture(scope="session", params=["rc10", pytest.param("rc12", marks=requires_newest_mmf)])
def mmf_root(request: pytest.FixtureRequest) -> Path:
    """Return the MMF that ``mmfw setup`` installed, then a checkout of the newest version."""
    from mmf_win.upstream.install import find_mmf

    return find_mmf().root if request.param == "rc10" else Path(str(NEWEST_MMF))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a folder shared by all processes of pytest-xdist, for slow results that are built once, under a lock."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(request.config, "workerinput") else base


@pytest.fixture(scope="session")
def packages(shared_folder: Path) -> Packages:
    """Build the sdist and the wheel, once per session."""
    if is_wine() and not all(map(find_spec, ("pip", "setuptools"))):
        pytest.skip("this Windows Python cannot build a wheel")
    return build_packages(shared_folder / "packages")


@pytest.fixture
def mmfw_home(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty tool home, in which nothing is installed."""
    folder = user_dir / "home"
    monkeypatch.setenv("MMFW_HOME", str(folder))
    return folder


@pytest.fixture
def flush_recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlushRecorder]:
    """Record which files are flushed to the disk before they are renamed."""
    with record_flushes(monkeypatch) as flushes:
        yield flushes


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 80 MB and return its folder."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    if sys.platform == "win32":
        pytest.skip("Windows mounts no file system of a test")
    if mounts.needs_namespace():  # pytest_pyfunc_call runs the test in a namespace
        yield folder
        return
    options = f"size=80m,uid={os.getuid()},gid={os.getgid()},mode=755"
    with mounts.mount_filesystem(folder, "-t", "tmpfs", "-o", options, "tmpfs"):
        yield folder


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with ``small_disk`` in a user namespace if only the root user of a namespace may mount it."""
    if "small_disk" not in pyfuncitem.fixturenames or not mounts.needs_namespace():
        return None
    mounts.run_in_namespace(pyfuncitem)
    return True


def _reset_windows_std_handles() -> None:
    """Set Windows' standard handles to the current standard streams.

    Under Wine the C runtime does not set them, since it does not take the program for a console program. Pytest
    redirects the streams between the phases of a test, and a child that inherits the old handles would get
    whatever file has replaced them.
    """
    if sys.platform == "win32":
        import ctypes
        import msvcrt

        for descriptor, handle in ((0, -10), (1, -11), (2, -12)):
            ctypes.windll.kernel32.SetStdHandle(handle, msvcrt.get_osfhandle(descriptor))


pytest_runtest_setup = pytest.hookimpl(tryfirst=True)(_reset_windows_std_handles)
pytest_runtest_call = pytest_runtest_setup


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the folders with the longest tests first, so that short tests fill the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(_SLOWEST_FOLDERS))  # stable: keeps the order otherwise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Fail a test or module in CI if it is skipped for a reason that is not allowed."""
    report = yield
    if _SKIPS_FAIL and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        allowed_reasons = ALLOWED_SKIP_REASONS + (() if find_spec("torch") else SKIP_REASONS_ALLOWED_WITHOUT_TORCH)
        if not any(allowed_reason in reason for allowed_reason in allowed_reasons):
            report.outcome = "failed"
            report.longrepr = f"In CI no test may be skipped for this: {reason}"
    return report


pytest_make_collect_report = pytest_runtest_makereport


def pytest_configure(config: pytest.Config) -> None:
    """Measure the CPU time of tests and collect the messages of commands."""
    folder = tempfile.TemporaryDirectory(prefix="mmfw-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ[cpu_time.VARIABLE] = str(Path(folder.name) / "cpu times")
    config.pluginmanager.register(cpu_time)
    config.pluginmanager.register(message_log)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Replace pynvml by a fake with two GPUs and return it."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake

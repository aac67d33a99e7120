"""``mmfw setup``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win.integrity.verify import LOCK_NAME
from mmf_win.locking import file_lock
from mmf_win.upstream import install, sources
from tests.worlds import mmf_sources
from tests.worlds.mmf_sources import TREE, VERSION, git_archive, github_archive
from tests.worlds.tools import MmfwRunner
from tests.worlds.web_server import WebServer


@pytest.fixture
def checkout(user_dir: Path) -> Path:
    return mmf_sources.write_checkout(user_dir / "my mmf")


def test_checkout_is_used_and_stays_selected(mmfw_home: Path, checkout: Path, mmfw: MmfwRunner) -> None:
    assert mmfw.json("setup", "--mmf", checkout) == {
        "root": str(checkout.resolve()),
        "version": VERSION,
        "source": "path",
        "commit": None,
    }
    mmfw("setup")
    assert install.find_mmf().source == "path"
    assert str(checkout.resolve()) in mmfw.err


def test_setup_without_options_repairs_a_damaged_copy(
    mmfw_home: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    with WebServer.serving(mmf_tar_gz=git_archive(TREE)) as server:
        known_sources = (sources.PYPI, github_archive(server.url))
        monkeypatch.setattr("mmf_win.upstream.install.SOURCES", known_sources)
        mmfw("setup", "--mmf", "github")
        (install.find_mmf().root / "mmf/__init__.py").write_bytes(b"?")
        changed = "changed: mmf/__init__.py (1 instead of 0 bytes)"
        assert install.find_changed_files(install.find_mmf()) == [changed]
        mmfw("setup")
    assert install.find_changed_files(install.find_mmf()) == []


def test_second_setup_waits_for_the_first(mmfw_home: Path, checkout: Path) -> None:
    folder = mmfw_home / "mmf"
    folder.mkdir(parents=True)
    command = [sys.executable, "-X", "utf8", "-m", "mmf_win", "setup", "--mmf", str(checkout)]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with file_lock(folder / LOCK_NAME):
        second = subprocess.Popen(command, **streams, stderr=subprocess.PIPE, encoding="utf-8")
        assert second.stderr is not None
        message = second.stderr.readline()
        assert "waiting for it" in message and str(folder) in message
        assert not (folder / "installed.json").exists()
    with second:
        assert second.wait() == 0
    assert install.find_mmf().source == "path"


def test_unwritable_environment_is_an_error_with_a_hint(mmfw_home: Path, checkout: Path, mmfw: MmfwRunner) -> None:
    mmfw_home.write_text("a file, where a folder is needed", encoding="utf-8")
    assert f"{mmfw_home / 'mmf'}: not writable" in mmfw("setup", "--mmf", checkout, code=6)
    assert "MMFW_HOME" in mmfw.err


def test_unknown_source_is_a_usage_error(mmfw_home: Path, mmfw: MmfwRunner) -> None:
    assert "gihub is not a checkout of MMF" in mmfw("setup", "--mmf", "gihub", code=2)
    assert "use pypi, github or a clone of" in mmfw.err
    assert not mmfw_home.exists()


def test_constraints_prints_only_the_path(mmfw_home: Path, mmfw: MmfwRunner) -> None:
    mmfw("setup", "--constraints")
    path = Path(mmfw.out.removesuffix("\n"))
    assert "\ntorch==" in path.read_text(encoding="utf-8")
    assert mmfw.json("setup", "--constraints") == {"constraints": str(path)}
    assert not mmfw_home.exists()


def test_torch_prints_only_the_command_to_stdout(mmfw_home: Path, mmfw: MmfwRunner) -> None:
    mmfw("setup", "--torch")
    assert mmfw.out.startswith("pip install -c ") and mmfw.out.count("\n") == 1
    assert "[train]" in mmfw.err
    assert mmfw.json("setup", "--torch")["pip"][:2] == ["pip", "install"]


@pytest.mark.parametrize("also", ["--constraints", "--force", "--mmf=pypi"])
def test_printing_options_cannot_be_combined(mmfw_home: Path, also: str, mmfw: MmfwRunner) -> None:
    assert "cannot be combined" in mmfw("setup", "--torch", also, code=2)

"""``mmfw setup`` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.integrity.verify import LOCK
from mmf_win.locking import locked
from mmf_win.upstream import install, sources
from tests.worlds.mmf_sources import TREE, VERSION, github, tar_gz
from tests.worlds.web import WebServer


@pytest.fixture
def checkout(user_dir: Path) -> Path:
    root = user_dir / "my mmf"
    for path, file in TREE.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(file.content)
    return root


def test_a_checkout_is_taken_and_stays_without_another_choice(
    home: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--mmf", str(checkout), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "root": str(checkout.resolve()),
        "version": VERSION,
        "source": "path",
        "commit": None,
    }
    assert main(["setup"]) == 0
    assert install.find_mmf().source == "path"
    assert str(checkout.resolve()) in capsys.readouterr().err


def test_without_a_choice_a_broken_copy_is_mended(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with WebServer.serving(mmf_tar_gz=tar_gz(TREE)) as server:
        known = (sources.PYPI, github(server.url))
        monkeypatch.setattr("mmf_win.upstream.install.SOURCES", known)
        assert main(["setup", "--mmf", "github"]) == 0
        (install.find_mmf().root / "mmf/__init__.py").write_bytes(b"?")
        changed = "changed: mmf/__init__.py (1 instead of 0 bytes)"
        assert install.changed_files(install.find_mmf()) == [changed]
        assert main(["setup"]) == 0
    assert install.changed_files(install.find_mmf()) == []


def test_a_second_setup_waits_for_the_first(home: Path, checkout: Path) -> None:
    folder = home / "mmf"
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "mmf_win", "setup", "--mmf", str(checkout)]
    utf8 = {**os.environ, "PYTHONUTF8": "1"}
    with locked(folder / LOCK):
        second = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=utf8,
            encoding="utf-8",
        )
        assert second.stderr is not None
        said = second.stderr.readline()
        assert "waiting for it" in said and str(folder) in said
        assert not (folder / "installed.json").exists()
    with second:
        assert second.wait() == 0
    assert install.find_mmf().source == "path"


def test_an_environment_that_cannot_be_written_to_is_an_error_with_a_way_out(
    home: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_text("a file, where a folder is needed", encoding="utf-8")
    assert main(["setup", "--mmf", str(checkout)]) == 6
    said = capsys.readouterr().err
    assert f"{home / 'mmf'} cannot be written to" in said
    assert "MMFW_HOME" in said


def test_a_name_that_is_neither_source_nor_folder_is_a_usage_error(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--mmf", "gihub"]) == 2
    said = capsys.readouterr().err
    assert "there is no folder gihub" in said
    assert "pypi, github or a folder" in said
    assert not home.exists()


def test_the_path_of_the_tested_versions_is_all_that_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--constraints"]) == 0
    path = Path(capsys.readouterr().out.removesuffix("\n"))
    assert "\ntorch==" in path.read_text(encoding="utf-8")
    assert main(["setup", "--constraints", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"constraints": str(path)}
    assert not home.exists()


def test_the_line_for_pytorch_can_be_pasted_and_the_rest_is_for_people(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--torch"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("pip install -c ") and said.out.count("\n") == 1
    assert "[train]" in said.err
    assert main(["setup", "--torch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pip"][:2] == ["pip", "install"]


@pytest.mark.parametrize("also", ["--constraints", "--force", "--mmf=pypi"])
def test_printing_goes_with_nothing_else(home: Path, also: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "--torch", also]) == 2
    assert "only print" in capsys.readouterr().err

"""Folders of mmfw, portable names, and commands that run modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.errors import DataError, UsageError
from mmf_win.paths import MmfPaths, is_portable, make_portable, module_command, portable_name

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not allow such names")


@pytest.mark.parametrize(
    ("variables", "folder", "child"),
    [
        (["TORCH_HOME"], "data_dir", "mmf/data"),
        (["XDG_CACHE_HOME"], "cache_dir", "torch/mmf"),
        (["MMF_CACHE_DIR"], "data_dir", "data"),
        (["MMF_CACHE_DIR", "MMF_DATA_DIR"], "data_dir", "."),
        (["MMF_SAVE_DIR"], "save_dir", "."),
    ],
)
def test_folders_come_from_options_or_the_variables_of_mmf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: list[str], folder: str, child: str
) -> None:
    for name in ("TORCH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert MmfPaths.resolve().save_dir == Path.cwd() / "save"
    for name in variables:
        monkeypatch.setenv(name, str(tmp_path))
    assert getattr(MmfPaths.resolve(), folder) == tmp_path / child
    mmf_paths = MmfPaths.resolve(tmp_path / "a", tmp_path / "b")
    assert (mmf_paths.data_dir, mmf_paths.save_dir) == (tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        ("hateful_memes_run_test_2020-05-11T10:20:30.csv", "hateful_memes_run_test_2020-05-11T10-20-30.csv"),
        ('a<b>c"d|e?f*g', "a-b-c-d-e-f-g"),
        ("ends with dots...", "ends with dots"),
        ("aux.json", "_aux.json"),
        ("COM1", "_COM1"),
        ("Память 中文.csv", "Память 中文.csv"),
    ],
)
def test_portable_name_has_no_reserved_characters_or_names(name: str, portable: str) -> None:
    assert portable_name(name) == portable
    assert is_portable(portable)
    assert is_portable(name) == (name == portable)


@posix_only
def test_fix_names_renames_reports_and_folders_with_colons(tmp_path: Path) -> None:
    folder = tmp_path / "logs_10:20" / "reports"
    folder.mkdir(parents=True)
    (folder / "test_10:20:30.csv").write_text("id,proba,label\n", encoding="utf-8")
    (folder / "fine.csv").touch()
    assert main(["runs", "fix-names", str(tmp_path)]) == 0
    names = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.csv"))
    assert names == ["logs_10-20/reports/fine.csv", "logs_10-20/reports/test_10-20-30.csv"]


@posix_only
def test_no_file_is_renamed_if_a_new_name_exists(tmp_path: Path) -> None:
    for name in ("a:b", "c:d", "c-d"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="cannot be renamed to c-d"):
        make_portable(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a:b", "c-d", "c:d"]


@pytest.mark.parametrize("safe_path", ["", "1"])
def test_module_command_ignores_current_folder_and_uses_pythonpath(tmp_path: Path, safe_path: str) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)", encoding="utf-8")
    (tmp_path / "runpy.py").write_text("raise SystemExit(9)", encoding="utf-8")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "used.py").write_text("import json, sys; print(*sys.argv[1:])", encoding="utf-8")
    environment = {**os.environ, "PYTHONSAFEPATH": safe_path, "PYTHONPATH": str(tmp_path / "modules")}
    command = module_command("used", "--compact", "a b")
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "--compact a b\n")


def test_image_cache_is_a_folder_or_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mmf_paths = MmfPaths(tmp_path, tmp_path, tmp_path)
    assert mmf_paths.image_cache_dir == tmp_path / "mmfw-images"
    monkeypatch.setenv("MMFW_IMAGE_CACHE", "off")
    assert mmf_paths.image_cache_dir is None
    monkeypatch.setenv("MMFW_IMAGE_CACHE", "of")
    with pytest.raises(UsageError, match="MMFW_IMAGE_CACHE=of: "):
        _ = mmf_paths.image_cache_dir

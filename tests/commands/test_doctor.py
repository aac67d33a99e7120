"""``mmfw doctor``."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

from mmf_win import __version__
from mmf_win.console import format_command
from mmf_win.doctor import survey
from mmf_win.paths import constraints_file
from mmf_win.upstream.install import find_mmf, install, use_checkout
from tests.worlds.memes import write_tree
from tests.worlds.mmf_sources import TREE, VERSION, git_archive, github_archive, write_checkout
from tests.worlds.tools import MmfwRunner
from tests.worlds.web_server import WebServer


def read_hints(survey_data: dict[str, Any]) -> list[str]:
    return [missing["hint"] for missing in survey_data["missing"]]


def test_every_path_is_shown_with_its_free_space(mmfw_home: Path, user_dir: Path, mmfw: MmfwRunner) -> None:
    data, save = user_dir / "data", user_dir / "save"
    survey_data = mmfw.json("doctor", "--data-dir", data, "--save-dir", save)
    folders = {folder["name"]: folder for folder in survey_data["folders"]}
    assert folders["data"]["path"] == str(data)
    assert folders["runs"]["path"] == str(save)
    assert folders["dataset"]["path"].startswith(str(data))
    assert folders["tool home"]["path"] == str(mmfw_home)
    assert folders["presets"]["exists"]
    assert all(folder["free"] > 0 for folder in folders.values())
    assert [folders[name]["named_by"] for name in ("data", "runs", "dataset")] == ["--data-dir", "--save-dir", None]
    assert not data.exists(), "the command must not create anything"


@pytest.mark.parametrize(
    ("variables", "data", "cache", "runs"),
    [
        ((), "default", "default", "default"),
        (("MMF_DATA_DIR", "MMF_SAVE_DIR"), "MMF_DATA_DIR", "default", "MMF_SAVE_DIR"),
        (("MMF_CACHE_DIR", "TORCH_HOME"), "MMF_CACHE_DIR", "MMF_CACHE_DIR", "default"),
        (("XDG_CACHE_HOME", "TORCH_HOME"), "TORCH_HOME", "TORCH_HOME", "default"),
    ],
)
def test_variable_that_sets_a_folder_is_shown(
    mmfw_home: Path,
    user_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    mmfw: MmfwRunner,
    variables: tuple[str, ...],
    data: str,
    cache: str,
    runs: str,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TORCH_HOME", raising=False)
    for name in variables:
        monkeypatch.setenv(name, str(user_dir / name))
    folders = {folder["name"]: folder for folder in mmfw.json("doctor")["folders"]}
    assert [folders[name]["named_by"] for name in ("data", "cache", "runs")] == [data, cache, runs]
    for folder in ("data", "cache", "runs"):  # the path must match the shown origin
        assert folders[folder]["named_by"] in (*Path(folders[folder]["path"]).parts, "default")


def test_missing_mmf_is_an_error_only_for_its_patches(mmfw_home: Path, mmfw: MmfwRunner) -> None:
    survey_data = mmfw.json("doctor")
    assert survey_data["mmf"]["installed"] is None
    assert "run `mmfw setup`" in read_hints(survey_data)
    assert "mmfw setup" in mmfw("doctor", "--compat", code=6)
    mmfw("--version")
    first, second = mmfw.out.splitlines()
    assert first == f"mmfw {__version__}"
    assert sys.version.split()[0] in second and "MMF not installed" in second


def test_damaged_mmf_is_an_error(mmfw_home: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner) -> None:
    with WebServer.serving(mmf_tar_gz=git_archive(TREE)) as server:
        monkeypatch.setattr("mmf_win.upstream.install.SOURCES", (github_archive(server.url),))
        install(github_archive(server.url))
    assert mmfw.json("doctor")["mmf"]["problems"] == []
    (find_mmf().root / "mmf.txt").unlink()
    survey_data = mmfw.json("doctor", code=6)
    assert survey_data["mmf"]["problems"] == ["missing: mmf.txt"]
    assert "run `mmfw setup`" in read_hints(survey_data)
    mmfw("doctor", code=6)
    assert "missing: mmf.txt" in mmfw.out


def test_missing_packages_and_mmfw_are_installed_by_pip(
    mmfw_home: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ['no-such-package>=1; extra == "train"'])
    pip = format_command("pip", "install", "-c", constraints_file(), "mmf-win[train]")
    assert f"run `{pip}`" in read_hints(mmfw.json("doctor"))

    def no_metadata(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", no_metadata)
    pip = format_command("pip", "install", "-c", constraints_file(), ".")
    assert f"run `{pip}` in a clone of mmfw" in read_hints(mmfw.json("doctor"))
    torch = survey.read_installed_version("torch") or "not installed"
    assert f"torch {torch}" in mmfw("--version")


def test_missing_pytorch_is_listed_with_its_build_before_other_packages(
    mmfw_home: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    absent = ["no-such-package", "torch", "torchvision"]
    monkeypatch.setattr(survey, "read_installed_version", lambda name: None if name in absent else "1")
    required = ["click", *(f'{name}; extra == "train"' for name in absent)]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: required)
    first, second, *_ = mmfw.json("doctor")["missing"]
    line = mmfw.json("setup", "--torch")["pip"]
    assert first == {"what": "not installed: torch, torchvision", "hint": f"run `{format_command(*line)}`"}
    assert second["what"] == "not installed: no-such-package" and "mmf-win[train]" in second["hint"]


def test_hint_for_a_missing_dataset_is_convert(mmfw_home: Path, user_dir: Path, mmfw: MmfwRunner) -> None:
    data = user_dir / "data"
    assert any("mmfw convert" in hint for hint in read_hints(mmfw.json("doctor", "--data-dir", data)))
    names = ("annotations/train.jsonl", "annotations/dev.jsonl", "images/img/1.png", "images/img/2.png")
    dataset = write_tree(dict.fromkeys(names, b""), data / "datasets/hateful_memes/defaults")
    (dataset / "features/detectron.lmdb").mkdir(parents=True)
    survey_data = mmfw.json("doctor", "--data-dir", data)
    assert survey_data["dataset"] == {"splits": ["dev", "train"], "images": 2, "features": True}
    assert not any("mmfw convert" in hint for hint in read_hints(survey_data))


def test_low_disk_space_is_reported_with_fake_disk(
    mmfw_home: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    monkeypatch.setattr("mmf_win.doctor.survey.free_space", lambda path: 1 << 20)
    assert read_hints(mmfw.json("doctor")).count("free some space") == 2


def test_text_output_shows_the_same_as_json(mmfw_home: Path, user_dir: Path, mmfw: MmfwRunner) -> None:
    use_checkout(write_checkout(user_dir / "my mmf"))
    assert f"MMF {VERSION} (path): not verified" in mmfw("doctor")
    assert sys.version.split()[0] in mmfw.out
    assert str(mmfw_home) in mmfw.out
    assert "fix:" in mmfw.out


@pytest.mark.torch
def test_patches_are_listed_with_their_state(mmfw: MmfwRunner) -> None:
    patches = {patch["name"]: patch for patch in mmfw.json("doctor", "--compat")}
    assert patches["transformers-names"]["active"]
    assert all(patch["problem"] and patch["library"] for patch in patches.values())
    assert "transformers-names" in mmfw("doctor", "--compat")


def test_cache_folder_that_cannot_be_created_is_listed_as_missing(
    mmfw_home: Path, user_dir: Path, mmfw: MmfwRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = user_dir / "file" / "cache"
    cache.parent.touch()
    monkeypatch.setenv("MMF_CACHE_DIR", str(cache))
    [missing] = [item for item in mmfw.json("doctor")["missing"] if "cannot be created" in item["what"]]
    assert str(cache) in missing["what"] and "MMF_CACHE_DIR" in missing["hint"]

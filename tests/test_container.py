"""Container image, tested without building it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from mmf_win.cli import cli
from mmf_win.inputs import hub
from mmf_win.paths import MmfPaths
from tests.worlds.packages import Packages, build_wheel
from tests.worlds.tools import load_script, split_command

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
PAGE = (ROOT / "docs" / "container.md").read_text(encoding="utf-8")


@pytest.mark.wide
def test_build_context_of_image_builds_the_same_wheel(packages: Packages, tmp_path: Path) -> None:
    _comment, default_pattern, *patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert default_pattern == "*"
    ignore_excluded = shutil.ignore_patterns(*(pattern[3:] for pattern in patterns if pattern.startswith("**/")))
    context = tmp_path / "context"
    context.mkdir()
    for name in (pattern[1:] for pattern in patterns if pattern.startswith("!")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, context / name, ignore=ignore_excluded)
        else:
            shutil.copy(ROOT / name, context)
    build_wheel(context, tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert _list_installed_files(wheel) == _list_installed_files(packages.wheel)


def _list_installed_files(wheel: Path) -> list[str]:
    """Return the files of a wheel except the sources of the C extension, which only the sdist has."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if "/native/" not in name)


def test_folders_of_user_data_are_on_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = re.findall(r"^ENV (.*MMF_.*)$", DOCKERFILE, re.MULTILINE)
    environment = dict(word.split("=", 1) for word in line.split())
    for name in ("TORCH_HOME", "HF_HOME", "TRANSFORMERS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name in environment.keys() - {"PATH"}:
        monkeypatch.setenv(name, environment[name])
    mmf_paths = MmfPaths.resolve()
    folders = [mmf_paths.data_dir, mmf_paths.save_dir, mmf_paths.cache_dir, hub._hub_cache_dir().absolute()]
    (declared,) = re.findall(r"^VOLUME (.*)$", DOCKERFILE, re.MULTILINE)
    volumes = [Path(volume).absolute() for volume in json.loads(declared)]
    assert [path for path in folders if not any(path.is_relative_to(volume) for volume in volumes)] == []
    assert [volume for volume in volumes if not any(path.is_relative_to(volume) for path in folders)] == []


def test_documented_build_arguments_match_the_dockerfile() -> None:
    declared = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    assert dict(re.findall(r"^\| `(\w+)` \| .* \| `(.*)` \|$", PAGE, re.MULTILINE)) == declared
    assert set(re.findall(r"--build-arg (\w+)=", PAGE)) <= set(declared)


def _documented_commands() -> list[str]:
    """Return the arguments of the mmfw commands of the page."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    lines = "".join(block for language, block in blocks if language == "").splitlines()
    return [match[1] for line in lines if (match := re.fullmatch("(?:docker run .* )?mmfw (.+)", line))]


def test_page_has_mmfw_commands() -> None:
    assert len(_documented_commands()) > 3


@pytest.mark.parametrize("line", _documented_commands())
def test_documented_mmfw_command_is_valid(line: str) -> None:
    name, *arguments = split_command(line)
    with cli.make_context("mmfw", [name, *arguments]) as group_context:
        command = cli.get_command(group_context, name)
        assert command is not None
        command.make_context(name, arguments, parent=group_context)


_FAKE_PROGRAM = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in *"$FAILING"*) exit 3;; esac
echo "created-$2"
"""


@pytest.fixture
def calls(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake buildah and debootstrap, which fail at the text ``FAILING``; return the file of their calls."""
    for name in ("buildah", "debootstrap"):
        (user_dir / name).write_text(_FAKE_PROGRAM, encoding="utf-8")
        (user_dir / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{user_dir}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")  # the script sets it
    monkeypatch.setenv("CALLS", str(user_dir / "calls"))
    return user_dir / "calls"


@pytest.mark.skipif(sys.platform == "win32", reason="the fake programs do not run on Windows")
@pytest.mark.parametrize("failing", ["minbase", "commit", "build ", "doctor", "12345", "nothing"])
def test_container_script_cleans_up_after_failure_of_fake_buildah(
    calls: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setenv("FAILING", failing)
    main = load_script("container").main
    if failing == "nothing":
        assert main(["--volume", "a:b"]) == 0
    else:
        with pytest.raises(SystemExit, match="Exit code 3"):
            main(["--volume", "a:b"])
    all_calls = calls.read_text(encoding="utf-8")
    successful_calls = "\n".join(line for line in all_calls.splitlines() if failing not in line)
    created = re.findall(r"^buildah (?:from|commit --quiet \S+|build --tag) (\S+)", successful_calls, re.MULTILINE)
    removed = re.findall(r"^buildah (?:rm|rmi) (?:created-)?(\S+)$", all_calls, re.MULTILINE)
    assert created and removed == created[::-1]
    assert ("mmfw demo --dir" in successful_calls) == (failing == "nothing")

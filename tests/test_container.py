"""The container image, as far as that can be told without building it."""

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
def test_what_the_image_is_built_from_makes_the_same_wheel(packages: Packages, tmp_path: Path) -> None:
    _comment, everything, *patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert everything == "*"
    left_out = shutil.ignore_patterns(*(pattern[3:] for pattern in patterns if pattern.startswith("**/")))
    context = tmp_path / "context"
    context.mkdir()
    for name in (pattern[1:] for pattern in patterns if pattern.startswith("!")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, context / name, ignore=left_out)
        else:
            shutil.copy(ROOT / name, context)
    build_wheel(context, tmp_path)
    (built,) = tmp_path.glob("*.whl")
    assert _installed(built) == _installed(packages.wheel)


def _installed(wheel: Path) -> list[str]:
    """Return the files of a wheel, without the sources of the C extension, which only the sdist has."""
    with zipfile.ZipFile(wheel) as opened:
        return sorted(name for name in opened.namelist() if "/native/" not in name)


def test_what_mmfw_keeps_lies_on_the_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = re.findall(r"^ENV (.*MMF_.*)$", DOCKERFILE, re.MULTILINE)
    environment = dict(word.split("=", 1) for word in line.split())
    for name in ("TORCH_HOME", "HF_HOME", "TRANSFORMERS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name in environment.keys() - {"PATH"}:
        monkeypatch.setenv(name, environment[name])
    places = MmfPaths.resolve()
    kept = [places.data_dir, places.save_dir, places.cache_dir, hub._hub_cache_dir().absolute()]
    (listed,) = re.findall(r"^VOLUME (.*)$", DOCKERFILE, re.MULTILINE)
    volumes = [Path(volume).absolute() for volume in json.loads(listed)]
    assert [path for path in kept if not any(path.is_relative_to(volume) for volume in volumes)] == []
    assert [volume for volume in volumes if not any(path.is_relative_to(volume) for path in kept)] == []


def test_the_arguments_that_the_page_lists_are_those_of_the_dockerfile() -> None:
    declared = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    assert dict(re.findall(r"^\| `(\w+)` \| .* \| `(.*)` \|$", PAGE, re.MULTILINE)) == declared
    assert set(re.findall(r"--build-arg (\w+)=", PAGE)) <= set(declared)


def _commands() -> list[str]:
    """The words after ``mmfw`` on the lines of the page that run it."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    lines = "".join(block for language, block in blocks if language == "").splitlines()
    return [found[1] for line in lines if (found := re.fullmatch("(?:docker run .* )?mmfw (.+)", line))]


def test_the_page_runs_mmfw() -> None:
    assert len(_commands()) > 3


@pytest.mark.parametrize("line", _commands())
def test_a_command_of_the_page_is_one_of_mmfw(line: str) -> None:
    name, *words = split_command(line)
    with cli.make_context("mmfw", [name, *words]) as of_group:
        command = cli.get_command(of_group, name)
        assert command is not None
        command.make_context(name, words, parent=of_group)


_FAKE = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in *"$FAILING"*) exit 3;; esac
echo "made-$2"
"""


@pytest.fixture
def calls(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the calls of buildah and debootstrap; both are fake, and fail at the words ``FAILING``."""
    for name in ("buildah", "debootstrap"):
        (user_dir / name).write_text(_FAKE, encoding="utf-8")
        (user_dir / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{user_dir}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")  # which the script sets
    monkeypatch.setenv("CALLS", str(user_dir / "calls"))
    return user_dir / "calls"


@pytest.mark.skipif(sys.platform == "win32", reason="the programs that stand in are none of Windows")
@pytest.mark.parametrize("failing", ["minbase", "commit", "build ", "doctor", "12345", "nothing"])
def test_a_failure_ends_the_script_and_what_it_made_is_removed_with_a_fake_buildah(
    calls: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setenv("FAILING", failing)
    main = load_script("container").main
    if failing == "nothing":
        assert main(["--volume", "a:b"]) == 0
    else:
        with pytest.raises(SystemExit, match="Exit code 3"):
            main(["--volume", "a:b"])
    called = calls.read_text(encoding="utf-8")
    went_well = "\n".join(line for line in called.splitlines() if failing not in line)
    made = re.findall(r"^buildah (?:from|commit --quiet \S+|build --tag) (\S+)", went_well, re.MULTILINE)
    removed = re.findall(r"^buildah (?:rm|rmi) (?:made-)?(\S+)$", called, re.MULTILINE)
    assert made and removed == made[::-1]
    assert ("mmfw demo --dir" in went_well) == (failing == "nothing")

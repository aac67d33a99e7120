"""``mmfw convert``: output and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives
from tests.worlds.memes import PASSWORD, dataset_files, image, make_encrypted_zip, without_images, write_tree
from tests.worlds.special_names import SPECIAL_NAMES
from tests.worlds.tools import MmfwRunner, requires_tool, run_unprivileged, split_command


@pytest.fixture
def archive(user_dir: Path) -> Path:
    return make_encrypted_zip(user_dir / "hateful memes 恶意.zip", dataset_files())


@pytest.fixture
def data_dir(user_dir: Path) -> Path:
    return user_dir / "data dir"


def run(mmfw: MmfwRunner, archive: Path, data_dir: Path, *options: str, code: int = 0) -> str:
    return mmfw("convert", archive, "--data-dir", data_dir, *options, code=code)


def test_output_is_a_table_with_the_next_step_or_json(archive: Path, data_dir: Path, mmfw: MmfwRunner) -> None:
    run(mmfw, archive, data_dir, "--password", PASSWORD)
    assert "dev_unseen" in mmfw.out
    assert "mmfw train" in mmfw.err
    assert "SHA-256" in mmfw.err  # no published hash matches this archive
    assert PASSWORD not in mmfw.out + mmfw.err
    summary = json.loads(run(mmfw, archive, data_dir, "--json"))
    counts = {"rows": 6, "hateful": 3, "benign": 3, "missing": 0, "missing_ids": [], "own": False}
    assert summary["splits"]["train"] == counts and summary["already_done"]
    assert summary["target"] == str(MmfPaths.resolve(data_dir).dataset.root)


@pytest.mark.parametrize("name", SPECIAL_NAMES, ids=ascii)
def test_folder_may_have_any_name(name: str, tmp_path: Path, mmfw: MmfwRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    write_tree(dataset_files(), Path(name, "source"))
    result = mmfw.json("convert", "--zip", Path(name, "source"), "--data-dir", name)
    assert Path(result["target"]).is_relative_to(tmp_path / name)
    mmfw("verify", "--data-dir", name)


def test_validation_split_is_added_by_following_the_hint(user_dir: Path, data_dir: Path, mmfw: MmfwRunner) -> None:
    user_data, table = user_dir / "own", b"image,text,label\n1.png,a,1\n2.png,b,0\n"
    write_tree({"train.csv": table, "1.png": image(1), "2.png": image(2)}, user_data)
    run(mmfw, user_data, data_dir)
    message = mmfw.err
    assert "no validation split" in message and "mmfw train" not in message
    mmfw("train", "demo", "--data-dir", data_dir, code=3)
    [command] = re.findall("`mmfw (.*?)`", mmfw.err)
    assert f"`mmfw {command}`" in message
    (user_data / "dev.csv").write_bytes(table)
    mmfw(*({"ARCHIVE": user_data}.get(word, word) for word in split_command(command)))
    assert "mmfw train" in mmfw.err


def test_dataset_without_a_split_is_converted_by_following_the_hint(
    user_dir: Path, data_dir: Path, mmfw: MmfwRunner
) -> None:
    files = {name: content for name, content in dataset_files().items() if "dev_seen" not in name}
    copy = hostile_archives.write_zip(user_dir / "copy.zip", files)
    mmfw("convert", "--zip", copy, "--data-dir", data_dir, code=3)
    assert "dev_seen" in mmfw.err and "--allow-missing" in mmfw.err
    run(mmfw, copy, data_dir, "--allow-missing")
    assert "dev_unseen" in mmfw.out and "dev_seen" not in mmfw.out


def test_excluded_rows_are_shown_with_the_full_number(user_dir: Path, data_dir: Path, mmfw: MmfwRunner) -> None:
    copy = hostile_archives.write_zip(user_dir / "copy.zip", without_images(dataset_files(), [14, 15]))
    run(mmfw, copy, data_dir, "--allow-missing")
    lines = {cells[0]: cells[1:] for line in mmfw.out.splitlines() if (cells := line.split())}
    assert lines["test_unseen"] == ["1", "of", "3", "0", "1", "2"]
    assert lines["test_seen"] == ["2", "1", "1", "0"]
    summary = json.loads(run(mmfw, copy, data_dir, "--json"))["splits"]["test_unseen"]
    assert (summary["rows"], summary["missing"], summary["missing_ids"]) == (1, 2, ["14", "15"])


@pytest.mark.parametrize("locked", [True, False])
def test_password_is_asked_for_only_if_needed_with_fake_terminal(
    archive: Path, user_dir: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner, locked: bool
) -> None:
    prompts: list[str] = []

    def prompt(text: str, *, hide_input: bool, err: bool) -> str:
        assert hide_input
        prompts.append(text)
        return PASSWORD

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "prompt", prompt)
    source = archive if locked else hostile_archives.write_zip(user_dir / "open.zip", dataset_files())
    run(mmfw, source, data_dir)
    assert prompts == ["Password"] * locked


def test_exit_code_depends_on_the_problem(archive: Path, user_dir: Path, data_dir: Path, mmfw: MmfwRunner) -> None:
    run(mmfw, user_dir / "nowhere.zip", data_dir, code=3)
    run(mmfw, archive, data_dir, code=4)
    run(mmfw, archive, data_dir, "--password", "wrong", code=4)
    run(mmfw, hostile_archives.truncate_file(archive), data_dir, "--password", PASSWORD, code=3)
    assert "hint:" in mmfw.err and "Traceback" not in mmfw.err
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "missing ARCHIVE"),  # not the current folder
        (["--zip", ""], "missing ARCHIVE"),
        (["x.zip", "--password-file", "empty"], "is empty"),
        (["x.zip", "--password", "b", "--password-file", "secret"], "use one"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(user_dir)
    (user_dir / "empty").touch()
    (user_dir / "secret").write_text("a", encoding="utf-8")
    assert message in mmfw("convert", *arguments, code=2)


@pytest.mark.skipif(sys.platform != "win32", reason="only Windows has drives")
def test_missing_drive_is_reported(archive: Path, mmfw: MmfwRunner) -> None:
    assert "drive Q:" in run(mmfw, archive, Path("Q:\\data"), "--password", PASSWORD, code=2)


@pytest.mark.skipif(sys.platform != "linux", reason="such names exist on Linux only, not on Windows or macOS")
def test_archive_name_that_is_not_utf8_is_accepted(archive: Path, data_dir: Path, mmfw: MmfwRunner) -> None:
    renamed_archive = archive.with_name("caf\udce9.zip")
    archive.rename(renamed_archive)
    for _ in range(2):
        run(mmfw, renamed_archive, data_dir, "--password", PASSWORD)


@requires_tool("setpriv", exists_on_windows=False)
def test_unreadable_folder_is_named_and_its_images_are_not_called_missing(user_dir: Path, data_dir: Path) -> None:
    source = write_tree(dataset_files(top=""), user_dir / "memes")
    images = source / "img"
    images.chmod(0)
    process = run_unprivileged("convert", "--zip", source, "--data-dir", data_dir)
    images.chmod(0o700)
    assert process.returncode == 3, process.stderr
    assert f"error: {images}: Permission denied" in process.stderr and "missing" not in process.stderr


def test_control_characters_in_archive_names_are_escaped(user_dir: Path, data_dir: Path, mmfw: MmfwRunner) -> None:
    names = ["\x1b]0;title\x07.txt", "gnp.\u202eexe", "\x9b2J"]
    path = hostile_archives.write_zip(user_dir / "a.zip", dict.fromkeys(names, b""))
    run(mmfw, path, data_dir, code=3)
    output = mmfw.out + mmfw.err
    assert not set(output) & set("\x1b\x07\u202e\x9b")
    assert "\\u001b]0;title" in output


_LITTLE_MEMORY = """\
import resource, sys
from mmf_win.cli import main

resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Windows cannot limit memory")
def test_too_little_memory_is_not_reported_as_a_bug(user_dir: Path, data_dir: Path) -> None:
    files = dataset_files() | {"hateful_memes/dev_seen.jsonl": b"0\n" * (7 << 20)}
    path = hostile_archives.write_zip(user_dir / "a.zip", files)
    arguments = ["convert", "--zip", str(path), "--data-dir", str(data_dir)]
    command = [sys.executable, "-X", "utf8", "-c", _LITTLE_MEMORY, *arguments]
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}  # without this, each thread counts as 128 MiB
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=environment)
    assert (process.returncode, "not enough memory" in process.stderr) == (5, True), process.stderr
    assert "Traceback" not in process.stderr

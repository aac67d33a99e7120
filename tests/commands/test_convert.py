"""``mmfw convert`` as a user types it: what is printed, and the exit code."""

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
from tests.worlds.odd_names import ODD_NAMES
from tests.worlds.tools import MmfwRunner, requires_tool, run_unprivileged, split_command


@pytest.fixture
def archive(user_dir: Path) -> Path:
    return make_encrypted_zip(user_dir / "hateful memes 恶意.zip", dataset_files())


@pytest.fixture
def data_dir(user_dir: Path) -> Path:
    return user_dir / "data dir"


def run(mmfw: MmfwRunner, archive: Path, data_dir: Path, *options: str, code: int = 0) -> str:
    return mmfw("convert", archive, "--data-dir", data_dir, *options, code=code)


def test_a_table_of_splits_and_what_to_do_next_or_json_for_scripts(
    archive: Path, data_dir: Path, mmfw: MmfwRunner
) -> None:
    run(mmfw, archive, data_dir, "--password", PASSWORD)
    assert "dev_unseen" in mmfw.out
    assert "mmfw train" in mmfw.err
    assert "SHA-256" in mmfw.err  # nobody has published this archive
    assert PASSWORD not in mmfw.out + mmfw.err
    again = json.loads(run(mmfw, archive, data_dir, "--json"))
    counts = {"rows": 6, "hateful": 3, "benign": 3, "missing": 0, "missing_ids": [], "own": False}
    assert again["splits"]["train"] == counts and again["already_done"]
    assert again["target"] == str(MmfPaths.resolve(data_dir).dataset.root)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_folder_may_have_any_name(
    name: str, tmp_path: Path, mmfw: MmfwRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    write_tree(dataset_files(), Path(name, "source"))
    done = mmfw.json("convert", "--zip", Path(name, "source"), "--data-dir", name)
    assert Path(done["target"]).is_relative_to(tmp_path / name)
    mmfw("verify", "--data-dir", name)


def test_own_splits_that_are_too_few_to_train_with_become_enough_as_the_hint_says(
    user_dir: Path, data_dir: Path, mmfw: MmfwRunner
) -> None:
    own, table = user_dir / "own", b"image,text,label\n1.png,a,1\n2.png,b,0\n"
    write_tree({"train.csv": table, "1.png": image(1), "2.png": image(2)}, own)
    run(mmfw, own, data_dir)
    noted = mmfw.err
    assert "no validation split" in noted and "mmfw train" not in noted
    mmfw("train", "demo", "--data-dir", data_dir, code=3)
    [command] = re.findall("`mmfw (.*?)`", mmfw.err)
    assert f"`mmfw {command}`" in noted
    (own / "dev.csv").write_bytes(table)
    mmfw(*({"ARCHIVE": own}.get(word, word) for word in split_command(command)))
    assert "mmfw train" in mmfw.err


def test_a_set_that_lacks_a_split_is_converted_as_the_hint_says(
    user_dir: Path, data_dir: Path, mmfw: MmfwRunner
) -> None:
    files = {name: content for name, content in dataset_files().items() if "dev_seen" not in name}
    copy = hostile_archives.write_zip(user_dir / "copy.zip", files)
    mmfw("convert", "--zip", copy, "--data-dir", data_dir, code=3)
    assert "dev_seen" in mmfw.err and "--allow-missing" in mmfw.err
    run(mmfw, copy, data_dir, "--allow-missing")
    assert "dev_unseen" in mmfw.out and "dev_seen" not in mmfw.out


def test_rows_that_are_left_out_stand_beside_the_full_number(
    user_dir: Path, data_dir: Path, mmfw: MmfwRunner
) -> None:
    copy = hostile_archives.write_zip(user_dir / "copy.zip", without_images(dataset_files(), [14, 15]))
    run(mmfw, copy, data_dir, "--allow-missing")
    lines = {words[0]: words[1:] for line in mmfw.out.splitlines() if (words := line.split())}
    assert lines["test_unseen"] == ["1", "of", "3", "0", "1", "2"]
    assert lines["test_seen"] == ["2", "1", "1", "0"]
    summary = json.loads(run(mmfw, copy, data_dir, "--json"))["splits"]["test_unseen"]
    assert (summary["rows"], summary["missing"], summary["missing_ids"]) == (1, 2, ["14", "15"])


@pytest.mark.parametrize("locked", [True, False])
def test_at_a_fake_terminal_the_password_is_asked_for_where_one_is_needed(
    archive: Path,
    user_dir: Path,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    mmfw: MmfwRunner,
    locked: bool,
) -> None:
    asked: list[str] = []

    def prompt(text: str, *, hide_input: bool, err: bool) -> str:
        assert hide_input
        asked.append(text)
        return PASSWORD

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "prompt", prompt)
    chosen = archive if locked else hostile_archives.write_zip(user_dir / "open.zip", dataset_files())
    run(mmfw, chosen, data_dir)
    assert asked == ["Password"] * locked


def test_exit_codes_tell_what_is_wrong(
    archive: Path, user_dir: Path, data_dir: Path, mmfw: MmfwRunner
) -> None:
    run(mmfw, user_dir / "nowhere.zip", data_dir, code=3)
    run(mmfw, archive, data_dir, code=4)
    run(mmfw, archive, data_dir, "--password", "wrong", code=4)
    run(mmfw, hostile_archives.truncate_file(archive), data_dir, "--password", PASSWORD, code=3)
    assert "hint:" in mmfw.err and "Traceback" not in mmfw.err
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([""], "not named"),  # and not the current folder
        (["--zip", ""], "not named"),
        (["x.zip", "--password-file", "empty"], "is empty"),
        (["x.zip", "--password", "b", "--password-file", "secret"], "give one of them"),
    ],
)
def test_what_makes_no_sense_is_a_mistake(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner, words: list[str], said: str
) -> None:
    monkeypatch.chdir(user_dir)
    (user_dir / "empty").touch()
    (user_dir / "secret").write_text("a", encoding="utf-8")
    assert said in mmfw("convert", *words, code=2)


@pytest.mark.skipif(sys.platform != "win32", reason="drives are a matter of Windows")
def test_a_drive_that_does_not_exist(archive: Path, mmfw: MmfwRunner) -> None:
    assert "no drive Q:" in run(mmfw, archive, Path("Q:\\data"), "--password", PASSWORD, code=2)


@pytest.mark.skipif(sys.platform != "linux", reason="such names exist on Linux only, not on Windows or macOS")
def test_an_archive_whose_name_is_no_utf8(archive: Path, data_dir: Path, mmfw: MmfwRunner) -> None:
    odd = archive.with_name("caf\udce9.zip")
    archive.rename(odd)
    for _ in range(2):
        run(mmfw, odd, data_dir, "--password", PASSWORD)


@requires_tool("setpriv", exists_on_windows=False)
def test_a_folder_that_may_not_be_read_is_named_and_its_images_are_not_called_missing(
    user_dir: Path, data_dir: Path
) -> None:
    source = write_tree(dataset_files(top=""), user_dir / "memes")
    images = source / "img"
    images.chmod(0)
    done = run_unprivileged("convert", "--zip", source, "--data-dir", data_dir)
    images.chmod(0o700)
    assert done.returncode == 3, done.stderr
    assert f"error: {images}: Permission denied" in done.stderr and "missing" not in done.stderr


def test_names_in_an_archive_do_not_steer_the_terminal(
    user_dir: Path, data_dir: Path, mmfw: MmfwRunner
) -> None:
    names = ["\x1b]0;title\x07.txt", "gnp.\u202eexe", "\x9b2J"]
    path = hostile_archives.write_zip(user_dir / "a.zip", dict.fromkeys(names, b""))
    run(mmfw, path, data_dir, code=3)
    said = mmfw.out + mmfw.err
    assert not set(said) & set("\x1b\x07\u202e\x9b")
    assert "\\u001b]0;title" in said


_LITTLE_MEMORY = """\
import resource, sys
from mmf_win.cli import main

resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory, which Windows has not")
def test_too_little_memory_is_no_bug(user_dir: Path, data_dir: Path) -> None:
    files = dataset_files() | {"hateful_memes/dev_seen.jsonl": b"0\n" * (7 << 20)}
    path = hostile_archives.write_zip(user_dir / "a.zip", files)
    words = ["convert", "--zip", str(path), "--data-dir", str(data_dir)]
    command = [sys.executable, "-X", "utf8", "-c", _LITTLE_MEMORY, *words]
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}  # else each thread counts as 128 MiB
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=environment)
    assert (done.returncode, "not enough memory" in done.stderr) == (5, True), done.stderr
    assert "Traceback" not in done.stderr

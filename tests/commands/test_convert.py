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

from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.cli import main
from mmf_win.paths import Places
from tests.worlds import hostile
from tests.worlds.memes import image, lay_out, memes, without_images
from tests.worlds.tools import typed

PASSWORD = "пароль 密码"


@pytest.fixture
def archive(user_dir: Path) -> Path:
    path = user_dir / "hateful memes 恶意.zip"
    write_encrypted_zip(path, memes(), PASSWORD)
    return path


@pytest.fixture
def data_dir(user_dir: Path) -> Path:
    return user_dir / "data dir"


def run(archive: Path, data_dir: Path, *options: str) -> int:
    return main(["convert", "--zip", str(archive), "--data-dir", str(data_dir), *options])


def test_a_table_of_splits_and_what_to_do_next(
    archive: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(archive, data_dir, "--password", PASSWORD) == 0
    said = capsys.readouterr()
    assert "dev_unseen" in said.out
    assert "mmfw train" in said.err
    assert "SHA-256" in said.err  # nobody has published this archive
    assert PASSWORD not in said.out + said.err


def test_own_splits_that_are_too_few_to_train_with_become_enough_as_the_hint_says(
    user_dir: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, table = user_dir / "own", b"image,text,label\n1.png,a,1\n2.png,b,0\n"
    lay_out({"train.csv": table, "1.png": image(1), "2.png": image(2)}, own)
    assert run(own, data_dir) == 0
    noted = capsys.readouterr().err
    assert "no validation split" in noted and "mmfw train" not in noted
    assert main(["train", "demo", "--data-dir", str(data_dir)]) == 3
    [command] = re.findall("`mmfw (.*?)`", capsys.readouterr().err)
    assert f"`mmfw {command}`" in noted
    (own / "dev.csv").write_bytes(table)
    assert main([{"ARCHIVE": str(own)}.get(word, word) for word in typed(command)]) == 0
    assert "mmfw train" in capsys.readouterr().err


def test_json_for_scripts(archive: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(archive, data_dir, "--password", PASSWORD, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    counts = {"rows": 6, "hateful": 3, "benign": 3, "missing": 0, "missing_ids": [], "own": False}
    assert first["splits"]["train"] == counts
    assert run(archive, data_dir, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (first["already_done"], again["already_done"]) == (False, True)
    assert again["target"] == str(Places.resolve(data_dir).dataset.root)


def test_rows_that_are_left_out_stand_beside_the_full_number(
    user_dir: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = hostile.plain_zip(user_dir / "copy.zip", without_images(memes(), [14, 15]))
    assert run(copy, data_dir, "--allow-missing") == 0
    lines = {words[0]: words[1:] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert lines["test_unseen"] == ["1", "of", "3", "0", "1", "2"]
    assert lines["test_seen"] == ["2", "1", "1", "0"]
    assert run(copy, data_dir, "--json") == 0
    summary = json.loads(capsys.readouterr().out)["splits"]["test_unseen"]
    assert (summary["rows"], summary["missing"], summary["missing_ids"]) == (1, 2, ["14", "15"])


def test_an_empty_password_file_is_a_mistake(archive: Path, data_dir: Path, user_dir: Path) -> None:
    (user_dir / "empty").touch()
    assert run(archive, data_dir, "--password-file", str(user_dir / "empty")) == 2


def fake_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> list[str]:
    """Pretend that somebody sits there and types ``answer``; returns what they were asked."""
    asked: list[str] = []

    def prompt(text: str, *, hide_input: bool, err: bool) -> str:
        assert hide_input
        asked.append(text)
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "prompt", prompt)
    return asked


def test_at_a_fake_terminal_the_password_is_asked_for(
    archive: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fake_terminal(monkeypatch, PASSWORD)
    assert run(archive, data_dir) == 0
    assert asked == ["Password"]


def test_at_a_fake_terminal_nothing_is_asked_for_an_open_archive(
    user_dir: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fake_terminal(monkeypatch, "unneeded")
    assert run(hostile.plain_zip(user_dir / "open.zip", memes()), data_dir) == 0
    assert asked == []


def test_exit_codes_tell_what_is_wrong(
    archive: Path, user_dir: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(user_dir / "nowhere.zip", data_dir) == 3
    assert run(archive, data_dir) == 4
    assert run(archive, data_dir, "--password", "wrong") == 4
    assert run(hostile.cut(archive), data_dir, "--password", PASSWORD) == 3
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "hint:" in said
    assert not data_dir.exists()


def test_two_passwords_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a", encoding="utf-8")
    words = ["convert", "--zip", "x.zip", "--password", "b", "--password-file", str(secret)]
    assert main(words) == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("option", [[], ["--zip"]])
def test_the_archive_is_named_as_an_argument_or_an_option(
    archive: Path, data_dir: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", *option, str(archive), "--password", PASSWORD, "--data-dir", str(data_dir)]
    assert main(words) == 0
    assert "dev_unseen" in capsys.readouterr().out


@pytest.mark.parametrize("option", [[], ["--zip"]])
def test_an_empty_name_is_not_the_current_folder(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", *option, ""]) == 2
    assert "not named" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "win32", reason="drives are a matter of Windows")
def test_a_drive_that_does_not_exist(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["convert", "--zip", str(archive), "--password", PASSWORD, "--data-dir", "Q:\\data"]
    assert main(words) == 2
    assert "no drive Q:" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="such names exist on Linux only, not on Windows or macOS")
def test_an_archive_whose_name_is_no_utf8(archive: Path, data_dir: Path) -> None:
    odd = archive.with_name("caf\udce9.zip")
    archive.rename(odd)
    for _ in range(2):
        assert main(["convert", "--zip", str(odd), "--password", PASSWORD, "--data-dir", str(data_dir)]) == 0


def test_names_in_an_archive_do_not_steer_the_terminal(
    user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["\x1b]0;title\x07.txt", "gnp.\u202eexe", "\x9b2J"]
    path = hostile.plain_zip(user_dir / "a.zip", dict.fromkeys(names, b""))
    assert main(["convert", "--zip", str(path), "--data-dir", str(user_dir / "data")]) == 3
    said = "".join(capsys.readouterr())
    assert not set(said) & set("\x1b\x07\u202e\x9b")
    assert "\\x1b]0;title" in said


_LITTLE_MEMORY = """\
import resource, sys
from mmf_win.cli import main

resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory, which Windows has not")
def test_too_little_memory_is_no_bug(user_dir: Path, data_dir: Path) -> None:
    files = memes() | {"hateful_memes/dev_seen.jsonl": b"\n" * (15 << 20)}
    path = hostile.plain_zip(user_dir / "a.zip", files)
    words = ["convert", "--zip", str(path), "--data-dir", str(data_dir)]
    command = [sys.executable, "-X", "utf8", "-c", _LITTLE_MEMORY, *words]
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}  # else each thread counts as 128 MiB
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=environment)
    assert (done.returncode, "not enough memory" in done.stderr) == (5, True), done.stderr
    assert "Traceback" not in done.stderr

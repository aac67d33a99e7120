"""What is taken out of files that go into a bug report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from mmf_win.doctor.scrub import Scrubber

TEXTS = [
    "look how many people love you",
    "two lines\nof people",
    "Это — мем",
    "naïve café people 😂",
    "its their character not their color",
]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("mmfw convert --password hunter2 --zip a.zip", "mmfw convert"),
        ("['convert', '--password', 'hunter2']", "convert"),
        ("MMFW_PASSWORD=hunter2", "MMFW_PASSWORD"),
        ("training.tracker.api_key=hunter2", "training.tracker.api_key"),
        ('{"secret_access_key": "a \\"hunter2"}', "secret_access_key"),
        ("Authorization: Basic hunter2", "Authorization"),
        ("fetching https://me:hunter2@example.org/a.zip", "example.org/a.zip"),
        ("fetching https://example.org/a.zip?signature=hunter2&x=1", "example.org/a.zip"),
        ("curl -H 'Bearer hunter2'", "curl"),
        ("the token hf_hunter2hunter2 is not valid", "is not valid"),
        ("not valid: ghp_hunter2hunter2", "not valid"),
        ("not valid: sk-proj-hunter2-hunter2", "not valid"),
        ("x-api-key: hunter2", "x-api-key"),
        ("secret_key=hunter2", "secret_key"),
        ("access_key_id=hunter2", "access_key_id"),
        ("pwd=hunter2", "pwd"),
        ("mmfw train --wandb-key hunter2", "mmfw train"),
        ("X-Amz-Signature=hunter2", "X-Amz-Signature"),
        ("Set-Cookie: id=hunter2", "Set-Cookie"),
        ("-H Bearer\thunter2", "-H"),
        ("fetching HTTPS://me:hun@hunter2@example.org/a.zip", "example.org/a.zip"),
        ("fetching https://me:hun/hunter2@example.org/a.zip", "example.org/a.zip"),
        ("ssh://hunter2@example.org/a.zip", "example.org/a.zip"),
    ],
)
@pytest.mark.parametrize("name", ["log.txt", "request.json", "events.jsonl"])
def test_secrets_go_and_what_is_around_them_stays(name: str, line: str, kept: str) -> None:
    content = line if name == "log.txt" else json.dumps({"kind": "note", "words": [line]})
    scrubbed = Scrubber([], []).file(name, content).decode()
    assert "hunter2" not in scrubbed
    assert kept in scrubbed


def test_the_values_of_secret_variables_go_wherever_they_are() -> None:
    scrubber = Scrubber([], {"HF_TOKEN": "p@ss word", "MMF_DATA_DIR": "/data"}.items())
    assert scrubber.file("log.txt", "in /data: p@ss word, p%40ss%20word") == b"in /data: <secret>, <secret>"


@pytest.mark.parametrize(
    "line",
    [
        "max_tokens: 512",
        "num tokens = 7, loss=3",
        "disk-usage-of-the-last-run",
        "https://example.org/@scope/package",
        "missing key: classifier.bias",
    ],
)
def test_what_only_resembles_a_secret_stays(line: str) -> None:
    scrubber = Scrubber([], {"PWD": "/work/loss", "DB_PWD": "hunter2"}.items())
    scrubbed = scrubber.file("log.txt", f"hunter2 in /work/loss\n{line}").decode()
    assert scrubbed == f"<secret> in /work/loss\n{line}"


def test_one_value_may_begin_as_another_and_a_short_one_is_no_secret() -> None:
    scrubber = Scrubber([], {"A_TOKEN": "abcdef", "B_TOKEN": "abcdef123", "C_TOKEN": "1"}.items())
    assert scrubber.file("log.txt", "step 11 of 100: abcdef123") == b"step 11 of 100: <secret>"


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'look how many people love you'",
        "LOOK HOW  MANY PEOPLE LOVE YOU!",
        r"'two lines\nof people'",
        "words: ['look', 'how', 'many', 'people', 'love', 'you']",
        json.dumps("Это — мем"),
        ascii("naïve café people 😂"),
        json.dumps("naïve café people 😂"),
        "ЭТО - МЕМ",
    ],
)
def test_the_texts_of_memes_go_however_they_are_written(line: str) -> None:
    scrubbed = Scrubber(TEXTS, []).file("log.txt", f"update 3\n{line}\n").decode()
    assert "<text>" in scrubbed and scrubbed.startswith("update 3\n")
    assert not {"people", "мем", "МЕМ", json.dumps("мем")[1:-1]} & set(scrubbed.replace("'", " ").split())


def test_words_of_memes_that_are_not_together_stay() -> None:
    line = "people who look at logs love to know how many there are, as you do"
    assert Scrubber(TEXTS, []).file("log.txt", line).decode() == line


def test_the_home_folder_goes_also_where_json_doubles_its_backslashes(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(user_dir))
    monkeypatch.setenv("USERPROFILE", str(user_dir))
    content = json.dumps({"where": f"{user_dir / 'x.py'}:3"}, ensure_ascii=False)
    for name in ("exit.json", "log.txt"):
        scrubbed = Scrubber([], []).file(name, content).decode()
        assert scrubbed.startswith("{") and "~" in scrubbed and "x.py:3" in scrubbed
        assert user_dir.name not in scrubbed


@pytest.mark.parametrize("write", [ascii, json.dumps, lambda text: f"file:///{quote(text, safe='/:')}"])
def test_the_home_folder_and_the_user_go_in_every_spelling(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str], str]
) -> None:
    home = user_dir / "naïve Иван 😂"
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    for name in ("LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, home.name)
    text = f"{write((home / 'x.py').as_posix())} {write('/srv/' + home.name + '/y.py')}"
    scrubbed = Scrubber([], []).file("log.txt", text).decode()
    assert "~/x.py" in scrubbed and "/srv/<user>/y.py" in scrubbed


def test_json_stays_json_and_a_torn_line_is_scrubbed_as_text() -> None:
    content = '{"kind": "note", "text": "--password hunter2"}\n{"password": "hunter2", "torn'
    first, torn = Scrubber([], []).file("events.jsonl", content).decode().splitlines()
    assert json.loads(first)["kind"] == "note"
    assert "hunter2" not in first + torn


def test_what_json_holds_under_the_name_of_a_secret_goes_whatever_it_is() -> None:
    value = {
        "argv": ["train", "--hf-token", "hunter2", "--seed", "3"],
        "token": 3,
        "password": ["a"],
        "secret": None,
        "overrides": [],
    }
    assert json.loads(Scrubber([], []).file("request.json", json.dumps(value))) == {
        "argv": ["train", "--hf-token", "<secret>", "--seed", "3"],
        "token": "<secret>",
        "password": "<secret>",
        "secret": None,
        "overrides": [],
    }


def test_only_a_line_feed_ends_a_line_of_json() -> None:
    content = json.dumps({"note": "a\u2028b\x85--password hunter2"}, ensure_ascii=False)
    lines = Scrubber([], []).file("events.jsonl", f"{content}\n{content}\n").decode().strip("\n").split("\n")
    assert [json.loads(line)["note"] for line in lines] == ["a\u2028b\x85--password <secret>"] * 2

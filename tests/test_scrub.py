"""Removal of secrets from the files of a bug report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from mmf_win.scrub import make_scrubber, redact_urls


@pytest.mark.parametrize(
    ("line", "remaining"),
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
        ("postgresql+psycopg2://me:hunter2@host/runs", "host/runs"),
    ],
)
@pytest.mark.parametrize("write", [str, lambda line: json.dumps({"kind": "note", "words": [line]})])
def test_secret_is_removed_and_surrounding_text_stays(write: Callable[[str], str], line: str, remaining: str) -> None:
    scrubbed = make_scrubber([])(write(line))
    assert "hunter2" not in scrubbed
    assert remaining in scrubbed


@pytest.mark.parametrize("secret", ["p@ss word", "naïve \\ \"quotes'", "no UTF-8: \udce9"])
@pytest.mark.parametrize(
    "write", [str, repr, ascii, json.dumps, lambda text: quote(text, "", errors="surrogateescape")]
)
def test_values_of_secret_variables_are_removed_in_every_notation(secret: str, write: Callable[[str], str]) -> None:
    scrub = make_scrubber({"HF_TOKEN": secret, "MMF_DATA_DIR": "/data"}.items())
    for content in (write(secret), json.dumps(write(secret)), json.dumps(write(secret), ensure_ascii=False)):
        assert scrub(content).strip("\"'\\") == "<secret>"
    assert scrub("in /data") == "in /data"


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
def test_text_that_resembles_a_secret_stays(line: str) -> None:
    scrub = make_scrubber({"PWD": "/work/loss", "DB_PWD": "hunter2"}.items())
    assert scrub(f"hunter2 in /work/loss\n{line}") == f"<secret> in /work/loss\n{line}"


def test_secret_may_start_with_another_and_short_values_are_kept() -> None:
    scrub = make_scrubber({"A_TOKEN": "abcdef", "B_TOKEN": "abcdef123", "C_TOKEN": "1"}.items())
    assert scrub("step 11 of 100: abcdef123") == "step 11 of 100: <secret>"


@pytest.mark.parametrize(
    "write",
    [
        *(str, ascii, json.dumps),
        lambda text: json.dumps(repr(text), ensure_ascii=False),
        lambda text: f"file:///{quote(text, safe='/:')}",
    ],
)
def test_home_folder_and_user_name_are_removed_in_every_notation(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str], str]
) -> None:
    home = user_dir / "naïve Иван 😂"
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    for name in ("LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, home.name)
    for path in (str(home / "x.py"), (home / "x.py").as_posix()):
        assert re.search(r"~(?:[/\\]|%5C)+x\.py", make_scrubber([])(write(path)))
    assert "/srv/<user>/y.py" in make_scrubber([])(write(f"/srv/{home.name}/y.py"))


def test_scrubbed_json_is_valid_and_truncated_json_is_scrubbed() -> None:
    value = {"note": "--password hunter2", "token": "hunter2", "overrides": ["x.api_key=hunter2", "a=b"]}
    scrub = make_scrubber([])
    assert json.loads(scrub(json.dumps(value, indent=2))) == {
        "note": "--password <secret>",
        "token": "<secret>",
        "overrides": ["x.api_key=<secret>", "a=b"],
    }
    assert json.loads(scrub('{"note": "a\u2028b\x85--password hunter2"}')) == {
        "note": "a\u2028b\x85--password <secret>"
    }
    assert "hunter2" not in scrub('{"password": "hunter2", "torn')


@pytest.mark.parametrize(
    ("url", "redacted_url"),
    [
        ("https://me:pw@example.org/a.zip?sig=x", "https://<secret>@example.org/a.zip?<secret>"),
        ("ftp:/me:pw@example.org", "ftp:/<secret>@example.org"),
        (r"HTTPS:\me@example.org", r"HTTPS:\<secret>@example.org"),
        (r"C:\me@home\why", r"C:\me@home\why"),
        ("http://127.0.0.1:80/x@y/a.zip", "http://127.0.0.1:80/x@y/a.zip"),
        ("http://me:1/2@example.org", "http://<secret>@example.org"),
        ("http://" * 300_000, "http://" * 300_000),  # takes hours if the time is quadratic
    ],
    ids=["url", "path", "windows-path", "drive", "port", "slash", "long"],
)
def test_url_is_shown_without_its_secrets(url: str, redacted_url: str) -> None:
    assert redact_urls(f"{url} exists") == f"{redacted_url} exists"

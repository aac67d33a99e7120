"""Secrets on the command line are neither printed nor written to files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.cli import main
from mmf_win.paths import MmfPaths
from mmf_win.runs.folder import Run
from tests.worlds import hostile_archives
from tests.worlds.memes import dataset_files

SECRET = "hunter2 пароль"


@pytest.fixture
def leaks(
    empty_paths: MmfPaths, user_dir: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Callable[..., list[str]]:
    """Return a function that runs a command, checks its exit code and returns where the secret is."""
    password_files = {user_dir / "password.txt"}
    next(iter(password_files)).write_text(f"{SECRET}\n", encoding="utf-8")

    def run(code: int, *arguments: str | Path) -> list[str]:
        assert main([str(word) for word in arguments]) == code
        streams = capsys.readouterr()
        texts: dict[str, Any] = {"stdout": streams.out, "stderr": streams.err, "log": caplog.text}
        leaks = [name for name, text in texts.items() if "hunter2" in text]
        files = [path for path in user_dir.rglob("*") if path.is_file() and path not in password_files]
        return leaks + [str(path) for path in files if b"hunter2" in _content(path)]

    return run


def _content(path: Path) -> bytes:
    """Return the bytes of a file, or of the members of a report."""
    if path.name != "bug-report.zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return b"".join(map(archive.read, archive.namelist()))


@pytest.mark.parametrize("source", ["option", "file", "variable"])
def test_password_stays_secret(
    leaks: Callable[..., list[str]], empty_paths: MmfPaths, user_dir: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    options: tuple[str | Path, ...] = {
        "option": ("--password", SECRET),
        "file": ("--password-file", user_dir / "password.txt"),
    }.get(source, ())
    if source == "variable":
        monkeypatch.setenv("MMFW_PASSWORD", SECRET)
    other_archive, archive, features = (user_dir / name for name in ("other.zip", "memes.zip", "features.zip"))
    write_encrypted_zip(other_archive, dataset_files().items(), "another")
    write_encrypted_zip(archive, dataset_files().items(), SECRET)
    write_encrypted_zip(features, [("detectron.lmdb/data.mdb", b"x" * 5000)], SECRET)
    assert leaks(4, "convert", "--zip", other_archive, *options) == []
    assert leaks(0, "convert", "--zip", archive, *options) == []
    assert leaks(0, "features", "extract", features, *options) == []
    hostile_archives.truncate_file(empty_paths.dataset.annotation_file("train"))
    assert leaks(3, "verify", "--data-dir", empty_paths.data_dir) == []
    assert leaks(0, "repair", "dataset", *options) == []
    run = Run.create(empty_paths.save_dir, "mmbt_grid")
    run.log.write_text(f"asked with --password {SECRET}\nTraceback\n", encoding="utf-8")
    assert leaks(0, "doctor", "--report", user_dir / "bug-report.zip", "--log") == [str(run.log)]


def test_crash_shows_no_secret_with_fake_bug(
    leaks: Callable[..., list[str]], user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_bug(*_: object, ask: Callable[[], str], **__: object) -> None:
        address = "https://me:hunter2@example.org/memes.zip"
        raise RuntimeError(f"a bug with {address}, after a password of {len(ask())} letters was asked for")

    monkeypatch.setattr("mmf_win.commands.convert.convert", fake_bug)
    archive = user_dir / "memes.zip"
    archive.touch()
    assert leaks(1, "convert", "--zip", archive, "--password", SECRET) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("repair", "--source", "https://me:hunter2@example.org/mmf"),
        ("repair", "--source", " HTTPS://me:hunter2@example.org/mmf"),
        ("repair", "--source", "ftp://me:hunter2@example.org/mmf"),
        ("repair", "--source", "https://me:hunter2@[example.org"),
        ("repair", "--source", "https://example.org/mmf?sig=hunter2"),
        ("setup", "--mmf", "https://me:hunter2@example.org/mmf"),
        ("predict", "--memes", "https://me:hunter2@example.org/own.csv"),
    ],
)
def test_secret_in_a_url_is_not_shown(
    leaks: Callable[..., list[str]], world: MmfPaths, arguments: tuple[str, ...]
) -> None:
    assert leaks(2, *arguments) == []
    assert leaks(3, "convert", "--zip", arguments[-1]) == []

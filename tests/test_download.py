"""Downloads from a real web server that fails in every way that servers do."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mmf_win.download import download, remote_size
from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.files import free_space
from mmf_win.locking import file_lock
from tests.worlds.web_server import (
    Fault,
    WebServer,
    declare_length,
    drop_connection_after,
    login_page,
    respond_with,
    send_wrong_range,
    stall_after,
)

CONTENT = os.urandom(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def target(user_dir: Path) -> Path:
    return user_dir / "file 文件.bin"


def fetch(server: WebServer, target: Path, sha256: str | None = SHA256) -> str:
    return download(f"{server.url}/file.bin", target, "file", sha256=sha256)


def starts(server: WebServer) -> list[int]:
    """From which byte on each request wanted the file."""
    return [int(asked.headers.get("Range", "bytes=0-")[6:-1]) for asked in server.content_requests]


def visible(target: Path) -> list[str]:
    """Return the files of the folder, without the lock, which stays."""
    return sorted(path.name for path in target.parent.iterdir() if not path.name.endswith(".lock"))


def test_a_file_arrives_whole_and_leaves_nothing_beside_it(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        assert fetch(server, target) == SHA256
    assert target.read_bytes() == CONTENT
    assert visible(target) == [target.name]


def test_many_interruptions_are_gone_over_from_where_each_one_was(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [drop_connection_after(20_000)] * 12
        fetch(server, target)
        assert starts(server) == [20_000 * n for n in range(13)]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("sha256", [SHA256, None], ids=["known hash", "unknown hash"])
def test_the_next_call_resumes_a_failed_one_where_the_hash_is_known(target: Path, sha256: str | None) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [drop_connection_after(100_000), *map(respond_with, (429, 502, 504, 503, 500))]
        with pytest.raises(MmfEnvironmentError, match=r"the server answered 503") as raised:
            fetch(server, target, sha256)
        assert ("the first 97.7 KiB are kept" in str(raised.value)) == (sha256 is not None)
        assert visible(target) == ([f"{target.name}.part"] if sha256 else [])
        assert fetch(server, target, sha256) == SHA256
        assert starts(server)[1:] == ([100_000] * 6 if sha256 else [0] * 6)
    assert target.read_bytes() == CONTENT
    assert visible(target) == [target.name]


def test_a_connection_that_stalls_is_given_up_and_gone_on_with(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmf_win.download.TIMEOUT_SECONDS", 0.2)
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [stall_after(server, byte_count=5000)]
        fetch(server, target)
        assert starts(server) == [0, 5000]
    assert target.read_bytes() == CONTENT


def test_a_server_that_sends_no_parts_sends_it_all_again(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.ranges = False
        server.faults = [drop_connection_after(1000)]
        fetch(server, target)
        assert starts(server) == [0, 1000]
    assert target.read_bytes() == CONTENT


def test_a_part_of_another_file_is_noticed_by_the_hash(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    with WebServer.serving(file_bin=b"old" * 100_000) as server:
        server.faults = [drop_connection_after(1000), *[respond_with(503)] * 5]
        with pytest.raises(MmfEnvironmentError):
            fetch(server, target)
        server.files["file.bin"] = CONTENT
        fetch(server, target)
    assert target.read_bytes() == CONTENT
    assert "the partial download does not match; starting over" in caplog.text


@pytest.mark.parametrize(
    "part", [CONTENT, CONTENT + b"more", b"x" * len(CONTENT)], ids=["whole", "too long", "other bytes"]
)
def test_whatever_part_lies_there_the_file_is_right_in_the_end(target: Path, part: bytes) -> None:
    target.with_name(target.name + ".part").write_bytes(part)
    with WebServer.serving(file_bin=CONTENT) as server:
        fetch(server, target)
    assert target.read_bytes() == CONTENT
    assert visible(target) == [target.name]


@pytest.mark.parametrize(
    ("fault", "asked", "message"),
    [
        (login_page, 1, "a web page, not the file"),
        (respond_with(404), 1, "the server answered 404"),
        (respond_with(200, b"other bytes"), 1, r"SHA-256 is \w{64}, expected \w{64}; the download was removed"),
        (declare_length(len(CONTENT) - 1), 1, "the download was removed"),
        (send_wrong_range, 5, "another byte range than requested"),
    ],
    ids=["login page", "404", "other bytes", "shorter", "another part"],
)
def test_what_is_not_the_file_never_gets_its_name(target: Path, fault: Fault, asked: int, message: str) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [fault] * 5
        with pytest.raises(MmfEnvironmentError, match=message) as raised:
            fetch(server, target)
        assert len(server.content_requests) == asked
    assert raised.value.hint
    assert ("another source" in raised.value.hint) == (message == "the server answered 404")
    assert visible(target) == []


def test_a_length_that_is_announced_too_long_does_no_harm_where_the_hash_is_known(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [declare_length(len(CONTENT) + 1)]
        assert fetch(server, target) == SHA256
        server.faults = [declare_length(len(CONTENT) + 1)] * 5
        with pytest.raises(MmfEnvironmentError, match=r"cannot download .*file\.bin"):
            fetch(server, target.with_name("other"), None)


def test_a_whole_file_is_not_fetched_again(target: Path) -> None:
    target.write_bytes(CONTENT)
    with WebServer.serving() as server:
        fetch(server, target)
        assert server.requests == []


def test_the_size_is_asked_for_without_the_content(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        assert remote_size(f"{server.url}/file.bin") == len(CONTENT)
        assert remote_size(f"{server.url}/missing") is None
        assert server.content_requests == []
    assert remote_size(f"{server.url}/file.bin") is None
    with pytest.raises(MmfEnvironmentError, match="cannot download"):
        fetch(server, target)


def test_only_http_is_spoken(target: Path) -> None:
    with pytest.raises(UsageError, match="not an http or https URL"):
        download("ftp://example.org/file", target, "file")


def test_the_proxy_of_the_environment_is_used(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WebServer.serving() as proxy:
        proxy.files["http://files.example/file.bin"] = CONTENT  # a proxy is asked with the whole URL
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
            monkeypatch.delenv(name, raising=False)
        download("http://files.example/file.bin", target, "file", sha256=SHA256)
    assert target.read_bytes() == CONTENT


def test_a_full_disk_keeps_what_has_arrived(small_disk: Path) -> None:
    content = os.urandom(3 << 20)
    target = small_disk / "file.bin"
    (small_disk / "filler").write_bytes(bytes(free_space(small_disk) - (1 << 20)))
    with WebServer.serving(file_bin=content) as server:
        with pytest.raises(OSError, match="No space left") as raised:
            fetch(server, target, hashlib.sha256(content).hexdigest())
        assert raised.value.errno == errno.ENOSPC
        assert raised.value.filename
    assert not target.exists()
    part = target.with_name("file.bin.part").read_bytes()
    assert part
    assert content.startswith(part)


def test_a_killed_download_is_gone_on_with(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [stall_after(server, byte_count=200_000)]
        child = start(server, target)
        part = target.with_name(target.name + ".part")
        wait_until(lambda: part.exists() and part.stat().st_size == 200_000, child)
        child.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        child.communicate()
        assert not target.exists()
        fetch(server, target)
        assert starts(server) == [0, 200_000]
    assert target.read_bytes() == CONTENT


def test_of_two_at_once_one_fetches_and_the_other_waits_and_says_so(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        with file_lock(target.with_name(f".{target.name}.lock")):
            child = start(server, target)
            assert child.stderr is not None
            assert b"waiting for another mmfw process" in child.stderr.readline()
            assert server.requests == []
            target.write_bytes(CONTENT)
        assert child.communicate() == (b"", b"")
        assert child.returncode == 0
        assert server.requests == []


def start(server: WebServer, target: Path) -> subprocess.Popen[bytes]:
    """Download in a process of its own."""
    code = (
        "import logging, sys; from pathlib import Path; from mmf_win.download import download\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "download(sys.argv[1], Path(sys.argv[2]), 'file', sha256=sys.argv[3])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, f"{server.url}/file.bin", str(target), SHA256],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUTF8": "1"},
    )


def wait_until(happened: object, child: subprocess.Popen[bytes]) -> None:
    """Return when something has happened in a child that lives."""
    assert callable(happened)
    pause = threading.Event()
    while not happened():
        assert child.poll() is None, "the child ended too early"
        pause.wait(0.01)

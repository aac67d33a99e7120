"""Downloads from a real web server with faults."""

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

from mmf_win.download import download, query_remote_size
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


def requested_offsets(server: WebServer) -> list[int]:
    """Return the offset of the first byte that each request for the content names."""
    return [int(request.headers.get("Range", "bytes=0-")[6:-1]) for request in server.content_requests]


def list_files(target: Path) -> list[str]:
    """Return the files of the target's folder, except lock files, which remain."""
    return sorted(path.name for path in target.parent.iterdir() if not path.name.endswith(".lock"))


def test_download_leaves_only_the_complete_file(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        assert fetch(server, target) == SHA256
    assert target.read_bytes() == CONTENT
    assert list_files(target) == [target.name]


def test_download_resumes_after_each_of_many_interruptions(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [drop_connection_after(20_000)] * 12
        fetch(server, target)
        assert requested_offsets(server) == [20_000 * n for n in range(13)]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("sha256", [SHA256, None], ids=["known hash", "unknown hash"])
def test_next_call_resumes_failed_download_if_hash_is_known(target: Path, sha256: str | None) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [drop_connection_after(100_000), *map(respond_with, (429, 502, 504, 503, 500))]
        with pytest.raises(MmfEnvironmentError, match=r"the server answered 503") as raised:
            fetch(server, target, sha256)
        assert ("the first 97.7 KiB are kept" in str(raised.value)) == (sha256 is not None)
        assert list_files(target) == ([f"{target.name}.part"] if sha256 else [])
        assert fetch(server, target, sha256) == SHA256
        assert requested_offsets(server)[1:] == ([100_000] * 6 if sha256 else [0] * 6)
    assert target.read_bytes() == CONTENT
    assert list_files(target) == [target.name]


def test_download_resumes_after_stalled_connection(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmf_win.download.TIMEOUT_SECONDS", 0.2)
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [stall_after(server, byte_count=5000)]
        fetch(server, target)
        assert requested_offsets(server) == [0, 5000]
    assert target.read_bytes() == CONTENT


def test_server_without_range_support_sends_complete_file_again(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.ranges = False
        server.faults = [drop_connection_after(1000)]
        fetch(server, target)
        assert requested_offsets(server) == [0, 1000]
    assert target.read_bytes() == CONTENT


def test_partial_download_of_another_file_is_detected_by_hash(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    with WebServer.serving(file_bin=b"old" * 100_000) as server:
        server.faults = [drop_connection_after(1000), *[respond_with(503)] * 5]
        with pytest.raises(MmfEnvironmentError):
            fetch(server, target)
        server.files["file.bin"] = CONTENT
        fetch(server, target)
    assert target.read_bytes() == CONTENT
    assert "the partial download does not match; starting over" in caplog.text


@pytest.mark.parametrize(
    "part", [CONTENT, CONTENT + b"more", b"x" * len(CONTENT)], ids=["complete", "too long", "other bytes"]
)
def test_download_is_intact_regardless_of_existing_partial_file(target: Path, part: bytes) -> None:
    target.with_name(target.name + ".part").write_bytes(part)
    with WebServer.serving(file_bin=CONTENT) as server:
        fetch(server, target)
    assert target.read_bytes() == CONTENT
    assert list_files(target) == [target.name]


@pytest.mark.parametrize(
    ("fault", "request_count", "message"),
    [
        (login_page, 1, "a web page, not the file"),
        (respond_with(404), 1, "the server answered 404"),
        (respond_with(200, b"other bytes"), 1, r"SHA-256 is \w{64}, expected \w{64}; the download was removed"),
        (declare_length(len(CONTENT) - 1), 1, "the download was removed"),
        (send_wrong_range, 5, "another byte range than requested"),
    ],
    ids=["login page", "404", "other bytes", "shorter", "wrong range"],
)
def test_invalid_response_is_never_saved_as_the_file(
    target: Path, fault: Fault, request_count: int, message: str
) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [fault] * 5
        with pytest.raises(MmfEnvironmentError, match=message) as raised:
            fetch(server, target)
        assert len(server.content_requests) == request_count
    assert raised.value.hint
    assert ("another source" in raised.value.hint) == (message == "the server answered 404")
    assert list_files(target) == []


def test_too_large_content_length_is_ignored_if_hash_is_known(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [declare_length(len(CONTENT) + 1)]
        assert fetch(server, target) == SHA256
        server.faults = [declare_length(len(CONTENT) + 1)] * 5
        with pytest.raises(MmfEnvironmentError, match=r"cannot download .*file\.bin"):
            fetch(server, target.with_name("other"), None)


def test_intact_file_is_not_downloaded_again(target: Path) -> None:
    target.write_bytes(CONTENT)
    with WebServer.serving() as server:
        fetch(server, target)
        assert server.requests == []


def test_remote_size_is_read_without_the_content(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        assert query_remote_size(f"{server.url}/file.bin") == len(CONTENT)
        assert query_remote_size(f"{server.url}/missing") is None
        assert server.content_requests == []
    assert query_remote_size(f"{server.url}/file.bin") is None
    with pytest.raises(MmfEnvironmentError, match="cannot download"):
        fetch(server, target)


def test_only_http_and_https_urls_are_accepted(target: Path) -> None:
    with pytest.raises(UsageError, match="not an http or https URL"):
        download("ftp://example.org/file", target, "file")


def test_proxy_of_the_environment_is_used(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WebServer.serving() as proxy:
        proxy.files["http://files.example/file.bin"] = CONTENT  # a proxy gets the complete URL
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
            monkeypatch.delenv(name, raising=False)
        download("http://files.example/file.bin", target, "file", sha256=SHA256)
    assert target.read_bytes() == CONTENT


def test_full_disk_keeps_partial_download(small_disk: Path) -> None:
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


def test_killed_download_is_resumed(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        server.faults = [stall_after(server, byte_count=200_000)]
        child = start_download(server, target)
        part = target.with_name(target.name + ".part")
        wait_until(lambda: part.exists() and part.stat().st_size == 200_000, child)
        child.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        child.communicate()
        assert not target.exists()
        fetch(server, target)
        assert requested_offsets(server) == [0, 200_000]
    assert target.read_bytes() == CONTENT


def test_concurrent_download_waits_for_the_other_and_reports_it(target: Path) -> None:
    with WebServer.serving(file_bin=CONTENT) as server:
        with file_lock(target.with_name(f".{target.name}.lock")):
            child = start_download(server, target)
            assert child.stderr is not None
            assert b"waiting for another mmfw process" in child.stderr.readline()
            assert server.requests == []
            target.write_bytes(CONTENT)
        assert child.communicate() == (b"", b"")
        assert child.returncode == 0
        assert server.requests == []


def start_download(server: WebServer, target: Path) -> subprocess.Popen[bytes]:
    """Start a download in another process."""
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


def wait_until(condition: object, child: subprocess.Popen[bytes]) -> None:
    """Wait until the condition holds; fail if the child ends before."""
    assert callable(condition)
    pause = threading.Event()
    while not condition():
        assert child.poll() is None, "the child must not end before"
        pause.wait(0.01)

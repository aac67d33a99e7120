"""Download of a file over HTTP, resumed after interruptions.

::

    features.tar.gz.part     the bytes received so far
    .features.tar.gz.lock    locked while a process downloads the file
    features.tar.gz          the complete file; it gets this name after its hash was verified
"""

from __future__ import annotations

import http
import http.client
import logging
import math
import re
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmf_win.console import Progress, format_size
from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.files import add_path_to_errors, fsync_file, remove, rename
from mmf_win.integrity.digest import file_digest
from mmf_win.locking import file_lock
from mmf_win.version import __version__

_log = logging.getLogger(__name__)

#: Seconds before the second attempt; doubled after each further attempt that received nothing.
RETRY_PAUSE_SECONDS = 2.0

#: Seconds without data after which a connection counts as broken.
TIMEOUT_SECONDS = 30.0

_HEAD_TIMEOUT_SECONDS = 5.0
_MAX_RETRY_PAUSE_SECONDS = 60.0
_MAX_ATTEMPTS = 5  # consecutive attempts without a new byte
_CHUNK_BYTES = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


def download(url: str, target: Path, title: str, *, sha256: str | None = None) -> str:
    """Download ``url`` to ``target``, which appears only when it is complete.

    Transient failures (a broken connection, a busy server) are retried. If ``sha256`` is given, a partial
    download is kept and resumed, also by a later call. Proxies come from the environment and the system.

    Args:
        url: An http or https URL.
        target: The file to write.
        title: Text next to the progress.
        sha256: The expected SHA-256 in hex, or its beginning.

    Returns:
        The SHA-256 of the file.

    Raises:
        MmfEnvironmentError: The server refuses, sends another file, or the last attempt failed.
        UsageError: The URL has another scheme.
        OSError: The file cannot be written.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url}: not an http or https URL")
    lock = target.with_name(f".{target.name}.lock")
    part = target.with_name(target.name + ".part")
    waiting = f"waiting for another mmfw process that is downloading {target.name}"
    with file_lock(lock, math.inf, lambda: _log.info(waiting)):
        if sha256 is not None and target.is_file():
            existing = file_digest(target).hex()
            if existing.startswith(sha256):
                return existing  # another process has just downloaded it
        if sha256 is None:
            remove(part)  # without a hash, a partial download cannot be trusted
        is_resumed = _received_bytes(part) > 0
        actual = _fetch_with_retries(url, part, title, keep_partial=sha256 is not None)
        if not actual.startswith(sha256 or "") and is_resumed:
            _log.info("%s: the partial download does not match; starting over", title)
            remove(part)
            actual = _fetch_with_retries(url, part, title, keep_partial=True)
        if not actual.startswith(sha256 or ""):
            remove(part)
            message = f"{url}: SHA-256 is {actual}, expected {sha256}; the download was removed"
            raise MmfEnvironmentError(message, hint="try another network; a proxy may change downloads")
        fsync_file(part)
        rename(part, target)
        return actual


def query_remote_size(url: str) -> int | None:
    """Return the size in bytes that a server reports for a file, or None without a quick answer."""
    ignore_errors = suppress(OSError, http.client.HTTPException, ValueError)
    with ignore_errors, _open_url(url, "HEAD", _HEAD_TIMEOUT_SECONDS) as response:
        return _content_length(response)
    return None


_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


def _fetch_with_retries(url: str, part: Path, title: str, *, keep_partial: bool) -> str:
    """Download the file to ``part`` and return its SHA-256; after a failure, keep or remove ``part``."""
    most, tries = 0, 0
    while True:
        try:
            _fetch_remaining(url, part, title)
            with Progress(f"Verifying {title}", _received_bytes(part), leave=False) as bar:
                return file_digest(part, bar.advance).hex()
        except _NETWORK_ERRORS as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # the error is also the response, and keeps the connection open
            received = _received_bytes(part)
            most, tries = max(most, received), 1 if received > most else tries + 1
            if not keep_partial:
                remove(part)
            if tries >= _MAX_ATTEMPTS or not _is_transient(error):
                note = f"; the first {format_size(received)} are kept" if received and keep_partial else ""
                message = f"cannot download {url}: {_failure_reason(error)}{note}"
                raise MmfEnvironmentError(message, hint=_download_hint(error)) from error
        time.sleep(min(RETRY_PAUSE_SECONDS * 2 ** (tries - 1), _MAX_RETRY_PAUSE_SECONDS))


def _fetch_remaining(url: str, part: Path, title: str) -> None:
    """Request the missing bytes and append them to ``part``."""
    offset = _received_bytes(part)
    try:
        with _open_url(url, "GET", TIMEOUT_SECONDS, **({"Range": f"bytes={offset}-"} if offset else {})) as response:
            if response.headers.get_content_type() == "text/html":
                hint = "open the URL in a browser; it may lead to a login page or the page of a proxy"
                raise MmfEnvironmentError(f"{url}: the server sent a web page, not the file", hint=hint)
            total = _content_length(response)
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                content_range = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
                total = int(content_range[2]) if content_range and content_range[2] != "*" else None
                if content_range is None or int(content_range[1]) != offset:
                    remove(part)
                    raise ConnectionError("the server sent another byte range than requested")
            elif offset:
                remove(part)  # the server does not support ranges and sends all of the file
                offset = 0
            _append_response(response, part, Progress(title, total, initial=offset), total)
    except urllib.error.HTTPError as error:
        # Nothing is left to send: the caller checks by the hash whether the file is complete.
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not offset:
            raise


def _append_response(response: Any, part: Path, progress: Progress, total: int | None) -> None:
    """Append the body of a response to ``part``."""
    with progress, add_path_to_errors(part), part.open("ab") as file:
        while chunk := _read_chunk(response):
            file.write(chunk)
            file.flush()  # so that the bytes survive if this process is killed
            progress.advance(len(chunk))
    # http.client reports a truncated body only to a read() without a size.
    if total is not None and progress.done != total:
        raise ConnectionError(f"the connection ended after {progress.done} of {total} bytes")


def _received_bytes(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _open_url(url: str, method: str, timeout: float, **headers: str) -> Any:
    headers["User-Agent"] = f"mmfw/{__version__}"
    request = urllib.request.Request(url, headers=headers, method=method)
    # urlopen would cache the proxies of its first call.
    return urllib.request.build_opener().open(request, timeout=timeout)


def _content_length(response: Any) -> int | None:
    length = response.headers.get("Content-Length") or ""
    return int(length) if length.isdecimal() else None


def _read_chunk(response: Any) -> bytes:
    try:
        return bytes(response.read1(_CHUNK_BYTES))  # returns early, so no received byte is lost
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(_failure_reason(error)) from error


def _is_transient(error: Exception) -> bool:
    return not isinstance(error, urllib.error.HTTPError) or error.code == 429 or error.code >= 500


def _download_hint(error: Exception) -> str:
    if getattr(error, "code", None) == http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED or _is_transient(error):
        return "check the network connection (HTTPS_PROXY sets a proxy) and run the same command again"
    return "download the file from another source"


def _failure_reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__

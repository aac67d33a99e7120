"""Fetching one file over HTTP, over as many interruptions as it takes.

::

    features.tar.gz.part     what has arrived so far
    .features.tar.gz.lock    held while somebody fetches it
    features.tar.gz          the complete file; it gets this name only after its hash matches
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

#: Seconds before the second attempt; twice as long before each further one that brought nothing.
RETRY_PAUSE_SECONDS = 2.0

#: Seconds without a byte after which a connection counts as broken.
TIMEOUT_SECONDS = 30.0

_HEAD_TIMEOUT_SECONDS = 5.0
_MAX_RETRY_PAUSE_SECONDS = 60.0
_MAX_ATTEMPTS = 5  # without a single new byte
_CHUNK_BYTES = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


def download(url: str, target: Path, title: str, *, sha256: str | None = None) -> str:
    """Fetch ``url`` into ``target``, which is not there before all of it is, and return its SHA-256.

    What may pass (a broken connection, a busy server) is tried again. Where ``sha256`` or its beginning is
    known, what has arrived before is resumed, also by a later call. Proxies are those of the environment and
    of the system. The ``title`` stands beside the progress.

    Raises:
        MmfError: the server refused, what it sends is not the file, or the last attempt failed.
        UsageError: the URL is not one of HTTP.
        OSError: the file cannot be written.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url}: not a URL of http or https")
    lock = target.with_name(f".{target.name}.lock")
    part = target.with_name(target.name + ".part")
    waiting = f"another mmfw is downloading {target.name}; waiting for it"
    with file_lock(lock, math.inf, lambda: _log.info(waiting)):
        if sha256 is not None and target.is_file():
            there = file_digest(target).hex()
            if there.startswith(sha256):
                return there  # another process has just fetched it
        if sha256 is None:
            remove(part)  # nothing would tell what it is of
        is_continued = _received_bytes(part) > 0
        found = _fetch_with_retries(url, part, title, keep_partial=sha256 is not None)
        if not found.startswith(sha256 or "") and is_continued:
            _log.info("%s: what had arrived before does not fit; starting over", title)
            remove(part)
            found = _fetch_with_retries(url, part, title, keep_partial=True)
        if not found.startswith(sha256 or ""):
            remove(part)
            differs = f"its SHA-256 is {found}, not {sha256}"
            message = f"{url} is not the file that was expected: {differs}; it was removed"
            raise MmfEnvironmentError(
                message, hint="something on the way may change downloads; try another network"
            )
        fsync_file(part)
        rename(part, target)
        return found


def remote_size(url: str) -> int | None:
    """How many bytes a server says that a file has; None when it cannot be told soon."""
    silent = suppress(OSError, http.client.HTTPException, ValueError)
    with silent, _open_url(url, "HEAD", _HEAD_TIMEOUT_SECONDS) as answer:
        return _content_length(answer)
    return None


_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


def _fetch_with_retries(url: str, part: Path, title: str, *, keep_partial: bool) -> str:
    """Bring the whole file in and return its hash; ``keep`` what has arrived where it fails."""
    best, tries = 0, 0
    while True:
        try:
            _fetch_remaining(url, part, title)
            with Progress(f"Verifying {title}", _received_bytes(part), leave=False) as bar:
                return file_digest(part, bar.advance).hex()
        except _NETWORK_ERRORS as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the answer, too, and holds the connection
            arrived = _received_bytes(part)
            best, tries = max(best, arrived), 1 if arrived > best else tries + 1
            if not keep_partial:
                remove(part)
            if tries >= _MAX_ATTEMPTS or not _is_transient(error):
                kept = f"; {format_size(arrived)} have arrived and stay" if arrived and keep_partial else ""
                message = f"cannot download {url}: {_failure_reason(error)}{kept}"
                raise MmfEnvironmentError(message, hint=_download_hint(error)) from error
        time.sleep(min(RETRY_PAUSE_SECONDS * 2 ** (tries - 1), _MAX_RETRY_PAUSE_SECONDS))


def _fetch_remaining(url: str, part: Path, title: str) -> None:
    """Ask for what has not arrived yet, and add it to what has."""
    done = _received_bytes(part)
    try:
        with _open_url(
            url, "GET", TIMEOUT_SECONDS, **({"Range": f"bytes={done}-"} if done else {})
        ) as answer:
            if answer.headers.get_content_type() == "text/html":
                hint = "a proxy or a login page may be in the way; open the address in a browser to see"
                raise MmfEnvironmentError(f"{url}: the server sent a web page, not the file", hint=hint)
            total = _content_length(answer)
            if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
                place = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range") or "")
                total = int(place[2]) if place and place[2] != "*" else None
                if place is None or int(place[1]) != done:
                    remove(part)
                    raise ConnectionError("the server sent another part than it was asked for")
            elif done:
                remove(part)  # the server cannot send parts
                done = 0
            _append_response(answer, part, Progress(title, total, initial=done), total)
    except urllib.error.HTTPError as error:
        # Where there is no more, the hash tells whether this is all of the file.
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not done:
            raise


def _append_response(response: Any, part: Path, progress: Progress, total: int | None) -> None:
    """Add to ``part`` what a server sends."""
    with progress, add_path_to_errors(part), part.open("ab") as file:
        while piece := _read_chunk(response):
            file.write(piece)
            file.flush()  # what has arrived outlives this process
            progress.advance(len(piece))
    # http.client reports a short body only when it was asked for the whole at once.
    if total is not None and progress.done != total:
        raise ConnectionError(f"the connection ended after {progress.done} of {total} bytes")


def _received_bytes(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _open_url(url: str, method: str, timeout: float, **headers: str) -> Any:
    headers["User-Agent"] = f"mmfw/{__version__}"
    request = urllib.request.Request(url, headers=headers, method=method)
    # urlopen would keep the proxies of its first call.
    return urllib.request.build_opener().open(request, timeout=timeout)


def _content_length(response: Any) -> int | None:
    length = response.headers.get("Content-Length") or ""
    return int(length) if length.isdecimal() else None


def _read_chunk(response: Any) -> bytes:
    try:
        return bytes(response.read1(_CHUNK_BYTES))  # what is there already: no byte that has arrived is lost
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(_failure_reason(error)) from error


def _is_transient(error: Exception) -> bool:
    return not isinstance(error, urllib.error.HTTPError) or error.code == 429 or error.code >= 500


def _download_hint(error: Exception) -> str:
    if getattr(error, "code", None) == http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED or _is_transient(error):
        return "check the connection (HTTPS_PROXY names a proxy) and run the same command again"
    return "the server does not give it out; look for it elsewhere"


def _failure_reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__

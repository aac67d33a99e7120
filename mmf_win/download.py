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

from mmf_win.console import Progress, size
from mmf_win.errors import MmfError, UsageError
from mmf_win.files import flush, naming, remove, rename
from mmf_win.integrity.digest import file_digest
from mmf_win.locking import locked
from mmf_win.version import __version__

_log = logging.getLogger(__name__)

#: Seconds before the second attempt; twice as long before each further one that brought nothing.
PAUSE = 2.0

#: Seconds without a byte after which a connection counts as broken.
TIMEOUT = 30.0

_TIMEOUT_OF_QUESTIONS = 5.0
_LONGEST_PAUSE = 60.0
_ATTEMPTS = 5  # without a single new byte
_PIECE = 1 << 18
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


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
    with locked(lock, math.inf, lambda: _log.info(waiting)):
        if sha256 is not None and target.is_file():
            there = file_digest(target).hex()
            if there.startswith(sha256):
                return there  # another process has just fetched it
        if sha256 is None:
            remove(part)  # nothing would tell what it is of
        is_continued = _arrived(part) > 0
        found = _fetch(url, part, title, keep=sha256 is not None)
        if not found.startswith(sha256 or "") and is_continued:
            _log.info("%s: what had arrived before does not fit; starting over", title)
            remove(part)
            found = _fetch(url, part, title, keep=True)
        if not found.startswith(sha256 or ""):
            remove(part)
            differs = f"its SHA-256 is {found}, not {sha256}"
            message = f"{url} is not the file that was expected: {differs}; it was removed"
            raise MmfError(message, hint="something on the way may change downloads; try another network")
        flush(part)
        rename(part, target)
        return found


def remote_size(url: str) -> int | None:
    """How many bytes a server says that a file has; None when it cannot be told soon."""
    silent = suppress(OSError, http.client.HTTPException, ValueError)
    with silent, _opened(url, "HEAD", _TIMEOUT_OF_QUESTIONS) as answer:
        return _length(answer)
    return None


_NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


def _fetch(url: str, part: Path, title: str, *, keep: bool) -> str:
    """Bring the whole file in and return its hash; ``keep`` what has arrived where it fails."""
    best, tries = 0, 0
    while True:
        try:
            _fetch_the_rest(url, part, title)
            with Progress(f"Verifying {title}", _arrived(part), leave=False) as bar:
                return file_digest(part, bar.advance).hex()
        except _NETWORK as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the answer, too, and holds the connection
            arrived = _arrived(part)
            best, tries = max(best, arrived), 1 if arrived > best else tries + 1
            if not keep:
                remove(part)
            if tries >= _ATTEMPTS or not _may_pass(error):
                kept = f"; {size(arrived)} have arrived and stay" if arrived and keep else ""
                message = f"cannot download {url}: {_reason(error)}{kept}"
                raise MmfError(message, hint=_hint(error)) from error
        time.sleep(min(PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE))


def _fetch_the_rest(url: str, part: Path, title: str) -> None:
    """Ask for what has not arrived yet, and add it to what has."""
    done = _arrived(part)
    try:
        with _opened(url, "GET", TIMEOUT, **({"Range": f"bytes={done}-"} if done else {})) as answer:
            if answer.headers.get_content_type() == "text/html":
                hint = "a proxy or a login page may be in the way; open the address in a browser to see"
                raise MmfError(f"{url}: the server sent a web page, not the file", hint=hint)
            total = _length(answer)
            if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
                place = _RANGE.fullmatch(answer.headers.get("Content-Range") or "")
                total = int(place[2]) if place and place[2] != "*" else None
                if place is None or int(place[1]) != done:
                    remove(part)
                    raise ConnectionError("the server sent another part than it was asked for")
            elif done:
                remove(part)  # the server cannot send parts
                done = 0
            _receive(answer, part, Progress(title, total, initial=done), total)
    except urllib.error.HTTPError as error:
        # Where there is no more, the hash tells whether this is all of the file.
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not done:
            raise


def _receive(answer: Any, part: Path, progress: Progress, total: int | None) -> None:
    """Add to ``part`` what a server sends."""
    with progress, naming(part), part.open("ab") as file:
        while piece := _read(answer):
            file.write(piece)
            file.flush()  # what has arrived outlives this process
            progress.advance(len(piece))
    # http.client reports a short body only when it was asked for the whole at once.
    if total is not None and progress.done != total:
        raise ConnectionError(f"the connection ended after {progress.done} of {total} bytes")


def _arrived(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _opened(url: str, method: str, timeout: float, **headers: str) -> Any:
    headers["User-Agent"] = f"mmfw/{__version__}"
    request = urllib.request.Request(url, headers=headers, method=method)
    # urlopen would keep the proxies of its first call.
    return urllib.request.build_opener().open(request, timeout=timeout)


def _length(answer: Any) -> int | None:
    length = answer.headers.get("Content-Length") or ""
    return int(length) if length.isdecimal() else None


def _read(answer: Any) -> bytes:
    try:
        return bytes(answer.read1(_PIECE))  # what is there already: no byte that has arrived is lost
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(_reason(error)) from error


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, urllib.error.HTTPError) or error.code == 429 or error.code >= 500


def _hint(error: Exception) -> str:
    if getattr(error, "code", None) == http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED or _may_pass(error):
        return "check the connection (HTTPS_PROXY names a proxy) and run the same command again"
    return "the server does not give it out; look for it elsewhere"


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__

"""Fetching one file over HTTP."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path

from mmf_win import __version__
from mmf_win.console import Progress
from mmf_win.errors import MmfError

PAUSE = 2.0
"""Seconds before the second attempt; twice as long before each further one."""

_PIECE = 1 << 16
_TIMEOUT = 30.0


def download(url: str, target: Path, title: str, *, attempts: int = 3) -> None:
    """Fetch ``url`` into ``target``, which may hold a part of it when this raises.

    The proxies of the environment and of the system's settings are used. What may pass (a broken
    connection, a busy server) is tried again.

    Args:
        url: where from.
        target: the file to write; its folder exists.
        title: what to show beside the progress.
        attempts: how often to try.

    Raises:
        MmfError: the server refused, or the last attempt failed.
        OSError: the file cannot be written.
    """
    for attempt in range(1, attempts + 1):
        try:
            return _fetch(url, target, title)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the answer, too, and holds the connection
            if attempt == attempts or not _may_pass(error):
                raise MmfError(
                    f"cannot download {url}: {_reason(error)}",
                    hint="check the connection (HTTPS_PROXY names a proxy) and run the same command again",
                ) from error
        time.sleep(PAUSE * 2 ** (attempt - 1))


def _fetch(url: str, target: Path, title: str) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": f"mmfw/{__version__}"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response, target.open("wb") as file:
        length = response.headers["Content-Length"]
        total = int(length) if length else None
        with Progress(title, total) as progress:
            while piece := response.read(_PIECE):
                file.write(piece)
                progress.advance(len(piece))
        # http.client reports a short body only when it was asked for the whole at once.
        if total is not None and progress.done != total:
            raise ConnectionError(f"the connection ended after {progress.done} of {total} bytes")


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, urllib.error.HTTPError) or error.code == 429 or error.code >= 500


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__

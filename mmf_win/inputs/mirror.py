"""Where inputs are taken from, beside their own sources, and how."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mmf_win.archives import Ask
from mmf_win.download import download, remote_size
from mmf_win.errors import MmfError, UsageError
from mmf_win.paths import expanded

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mirror:
    """Another place to get files from than their own sources; without one, there is none.

    Attributes:
        url: that of a folder or a file.
        path: a folder or file on this machine.
        keep_archives: leave a downloaded archive where MMF would, to repair from it without a download.
        offline: take files from this machine only.
        ask: answers with the password; called only when files are repaired from an encrypted archive.
        other_way: how to name such a place, for the hint of a failed download; ``{names}`` are the files.
    """

    url: str | None = None
    path: Path | None = None
    keep_archives: bool = True
    offline: bool = False
    ask: Ask | None = None
    other_way: str = "name a file, folder or mirror with --source that has {names}"

    @classmethod
    def of(cls, where: str | None, **how: Any) -> Mirror:
        """The place that a user names; ``how`` are the other attributes.

        Raises UsageError where there is no such folder or file, or it is no URL of HTTP, or has a password.
        """
        if where is None:
            return cls(**how)
        if re.match(r"\s*[\w+.-]{2,}://", where):  # C://memes is a folder
            try:
                parts = urlsplit(where.strip())
            except ValueError as error:
                raise UsageError(f"{where}: {error}") from error
            if parts.scheme not in ("http", "https"):
                raise UsageError(f"{where}: not a URL of http or https", hint="name a file or a folder")
            if "@" in parts.netloc or parts.query:  # what is secret in it must not be repeated
                host = parts.netloc.rpartition("@")[2]
                message = f"{host}: a URL with a password or a query cannot be a mirror"
                raise UsageError(message, hint="download the file yourself, and name its folder")
            return cls(url=parts.geturl(), **how)
        path = expanded(where)
        if not path.exists():
            raise UsageError(f"{where}: no such file or folder", hint="name a file, a folder or a URL")
        return cls(path=path, **how)

    def files(self, names: Sequence[str]) -> list[Path]:
        """The files of these names that are on this machine."""
        if self.path is None:
            return []
        found = [self.path] if self.path.name in names else [self.path / name for name in names]
        return [path for path in found if path.is_file()]

    def size(self, names: Sequence[str], own: str | None) -> int | None:
        """How many bytes a download of one of these files would be; None where no server tells."""
        return next((n for n in map(remote_size, self._urls(names, own)) if n is not None), None)

    def download(
        self, names: Sequence[str], own: str | None, target: Path, title: str, sha256: str | None
    ) -> None:
        """Download a file, by any of these names from here, or else from its own address.

        Arguments are as for :func:`~mmf_win.download.download`. Raises MmfError where that fails.
        """
        urls = self._urls(names, own)
        if not urls:
            raise self.absent(title, names)
        for url in urls:
            try:
                download(url, target, title, sha256=sha256)
                return
            except MmfError as error:
                if url == urls[-1]:
                    raise self.failed(str(error), names, error.hint) from error
                _log.warning("%s", error)

    def absent(self, title: str, names: Sequence[str]) -> MmfError:
        """The error that files are missing and nothing may be downloaded."""
        return self.failed(f"{title} is missing here, and nothing may be downloaded", names)

    def failed(self, message: str, names: Sequence[str], hint: str | None = None) -> MmfError:
        """The error that files of these names cannot be downloaded."""
        other_way = self.other_way.replace("{names}", " or ".join(names))
        return MmfError(message, hint=f"{hint}, or {other_way}" if hint else other_way)

    def _urls(self, names: Sequence[str], own: str | None) -> list[str]:
        there = [f"{self.url.rstrip('/')}/{name}" for name in names] if self.url else []
        if self.url and self.url.rpartition("/")[2] in names:
            there = [self.url]
        return [] if self.offline else [*there, *([own] if own else [])]

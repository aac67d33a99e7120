"""By what an archive is recognised the next time it is given."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from mmf_win.console import Progress
from mmf_win.integrity.digest import file_digest


@dataclass(frozen=True)
class Source:
    """What files were made of: an archive or a folder.

    Attributes:
        name: without its folder.
        size: bytes, of all files in the case of a folder.
        mtime_ns: last change in nanoseconds, the newest in the case of a folder.
        sha256: of an archive; None for a folder.
        path: where it lay, absolute; None where nobody has noted that.
    """

    name: str
    size: int
    mtime_ns: int
    sha256: str | None = None
    path: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, path: Path, sha256: str | None = None) -> Source:
        """The archive or folder at ``path``, without reading its content.

        Raises:
            OSError: there is none.
        """
        if path.is_dir():
            files = [Path(here, name).stat() for here, _, names in os.walk(path) for name in names]
        else:
            files = [path.stat()]
        newest = max((file.st_mtime_ns for file in files), default=0)
        return cls(path.name, sum(file.st_size for file in files), newest, sha256)

    def is_same(self, path: Path) -> bool:
        """Whether ``path`` is this; a file that may only have been touched or copied is hashed to know."""
        if not path.exists() or (now := Source.of(path)).size != self.size:
            return False
        if now.mtime_ns == self.mtime_ns:
            return True
        if self.sha256 is None or path.is_dir():
            return False
        with Progress("Comparing", now.size) as bar:
            return file_digest(path, progress=bar.advance).hex() == self.sha256

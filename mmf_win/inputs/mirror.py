"""Another place to get archives from than MMF's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmf_win.errors import UsageError


@dataclass(frozen=True)
class Mirror:
    """Another place to get archives from than those that MMF's zoo names.

    Attributes:
        where: the URL of a folder or a file, or a folder or file on this machine.
    """

    where: str

    @classmethod
    def of(cls, where: str | None) -> Mirror | None:
        """The place that a user names.

        Raises:
            UsageError: there is no such folder or file.
        """
        if where is None:
            return None
        mirror = cls(where)
        if not mirror.is_remote and not Path(where).expanduser().exists():
            raise UsageError(f"{where}: no such file or folder", hint="--source takes one of them, or a URL")
        return mirror

    @property
    def is_remote(self) -> bool:
        """Whether it is a URL."""
        return self.where.startswith(("http://", "https://"))

    def files(self, names: Sequence[str]) -> Iterator[Path]:
        """The files of these names that are on this machine."""
        if self.is_remote:
            return
        place = Path(self.where).expanduser()
        found = [place] if place.name in names else [place / name for name in names]
        yield from (path for path in found if path.is_file())

    def urls(self, names: Sequence[str]) -> list[str]:
        """Where files of these names may be on the web."""
        if not self.is_remote:
            return []
        if self.where.rpartition("/")[2] in names:
            return [self.where]
        return [f"{self.where.rstrip('/')}/{name}" for name in names]

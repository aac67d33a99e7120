"""A folder that is read as if it were an archive."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

from mmf_win.archives.base import BLOCK, Archive, Extracted, Member, with_problems
from mmf_win.threads import Advance


class FolderArchive(Archive):
    """The files under a folder. Links are followed: whoever has the folder has made them himself."""

    format = "folder"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.members = with_problems(
            Member(file.relative_to(path).as_posix(), file.stat().st_size) for file in _files(path)
        )

    def _extract(
        self, wanted: Mapping[str, tuple[Member, Path]], progress: Advance
    ) -> Generator[Extracted, None, None]:
        for name, (member, target) in wanted.items():
            yield self._write(member, target, _blocks(self.path / name), progress)


def _files(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        real = os.path.realpath(here)
        if real in seen:  # a link to a folder above would never end
            folders.clear()
            continue
        seen.add(real)
        yield from (file for name in sorted(files) if (file := Path(here, name)).is_file())


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while block := opened.read(BLOCK):
            yield block

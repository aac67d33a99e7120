"""The chosen members of an archive, written to a staging folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias

from mmf_win.archives import Archive, Ask, Digest, Member, open_archive
from mmf_win.archives.names import folded
from mmf_win.console import Progress
from mmf_win.errors import ArchiveError
from mmf_win.integrity.manifest import Entry
from mmf_win.unpacking.staging import Staging, require_space

Choose: TypeAlias = Callable[[str], str | None]
"""Name of a member → path of its file below the folder, with ``/``; None leaves the member out."""

_LARGE = 1 << 20
_JUST_BEFORE_NS = 3_000_000_000


def everything(member: str) -> str:
    """Choose each member, under its own name."""
    return member


def open_with_progress(path: Path, ask: Ask | None = None) -> Archive:
    """Open an archive, with a bar if it has to be read to be listed, as a compressed tar has.

    Raises:
        ArchiveError: see :func:`mmf_win.archives.open_archive`.
        PasswordError: likewise.
    """
    with ExitStack() as stack:
        bars: list[Progress] = []

        def advance(amount: int) -> None:
            if not bars:
                bars.append(stack.enter_context(Progress("Listing", path.stat().st_size)))
            bars[0].advance(amount)

        return open_archive(path, ask, progress=advance)


def unpack_chosen(
    archive: Archive,
    choose: Choose,
    here: Staging,
    title: str,
    digest: Digest | None = None,
    *,
    enough: int | None = None,
) -> dict[str, Entry]:
    """Write the chosen members below ``here.new``.

    Args:
        archive: opened; a tar need not be listed.
        choose: which members, and where to.
        here: the staging folder.
        title: of the progress bar.
        digest: is fed with the archive itself; complete when this has ended.
        enough: stop after so many; the digest is incomplete then.

    Returns:
        path below ``here.new``, with ``/`` → what is there now.

    Raises:
        ArchiveError: the archive is damaged or hostile, or two members are for one file.
        ResourceError: the members do not fit on the disk.
    """
    require_space(here.new, sum(member.size for member in archive.members if choose(member.name) is not None))
    taken: dict[str, str] = {}

    def target(member: Member) -> Path | None:
        if (name := choose(member.name)) is None:
            return None
        if other := taken.get(folded(name)):
            message = f"members {other} and {member.name} are both for the file {name}"
            raise ArchiveError(f"{archive.path}: {message}")
        taken[folded(name)] = member.name
        if member.size > _LARGE:
            require_space(here.new, member.size)
        return here.new / name

    files: dict[str, Entry] = {}
    # A file that looks as if it changed about when it was hashed would be hashed again at the next check.
    mtime_ns = archive.path.stat().st_mtime_ns - _JUST_BEFORE_NS
    work = archive.work(lambda member: choose(member.name))
    with Progress(title, work) as bar, closing(archive.extract(target, bar.advance, digest)) as written:
        for done in written:
            os.utime(done.target, ns=(mtime_ns, mtime_ns))
            files[done.target.relative_to(here.new).as_posix()] = Entry(done.sha256, done.size)
            if len(files) == enough:
                break
    return files

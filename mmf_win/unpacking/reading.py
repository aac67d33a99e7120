"""The chosen members of an archive, written to a staging folder or only hashed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias

from mmf_win.archives import Archive, Ask, Digest, Extracted, Member, open_archive
from mmf_win.archives.base import write_member
from mmf_win.archives.names import folded
from mmf_win.archives.tar import TarArchive
from mmf_win.console import Progress
from mmf_win.errors import ArchiveError
from mmf_win.integrity.manifest import Entry
from mmf_win.threads import ignore
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
        archive: opened; a tar that is not listed is read only once.
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
    choose = _once(choose, archive.path)

    def target(member: Member) -> Path | None:
        if (name := choose(member.name)) is None:
            return None
        if member.size > _LARGE:
            require_space(here.new, member.size)
        return here.new / name

    files: dict[str, Entry] = {}
    # A file that looks as if it changed about when it was hashed would be hashed again at the next check.
    mtime_ns = archive.path.stat().st_mtime_ns - _JUST_BEFORE_NS
    with closing(_written(archive, target, digest, title)) as written:
        for done in written:
            os.utime(done.target, ns=(mtime_ns, mtime_ns))
            files[done.target.relative_to(here.new).as_posix()] = Entry(done.sha256, done.size)
            if len(files) == enough:
                break
    return files


def hash_chosen(archive: Archive, choose: Choose, title: str) -> tuple[dict[str, Entry], str]:
    """What the chosen members of a tar are, and the SHA-256 of the tar.

    Raises:
        ArchiveError: the archive is damaged, hostile or no tar, or two members are for one file.
    """
    if not isinstance(archive, TarArchive):
        raise ArchiveError(f"{archive.path}: not a tar, so files cannot be compared with it")
    digest, choose, files = hashlib.sha256(), _once(choose, archive.path), {}
    with (
        Progress(title, archive.path.stat().st_size) as bar,
        closing(archive.in_order(lambda m: choose(m.name), bar.advance, digest)) as members,
    ):
        for member, name, content in members:
            hasher = hashlib.sha256()
            for block in content:
                hasher.update(block)
            files[name] = Entry(hasher.hexdigest(), member.size)
    return files, digest.hexdigest()


def _written(
    archive: Archive, target: Callable[[Member], Path | None], digest: Digest | None, title: str
) -> Generator[Extracted, None, None]:
    """Each member that has a target, once it is there."""
    if isinstance(archive, TarArchive):
        with (
            Progress(title, archive.path.stat().st_size) as bar,
            closing(archive.in_order(target, bar.advance, digest)) as members,
        ):
            for member, file, content in members:
                yield write_member(archive.path, member, file, content, ignore)
        return
    wanted = {member: path for member in archive.members if (path := target(member)) is not None}
    with Progress(title, sum(member.size for member in wanted)) as bar:
        targets = {member.name: path for member, path in wanted.items()}
        yield from archive.extract(targets, bar.advance, digest)


def _once(choose: Choose, archive: Path) -> Choose:
    """``choose``, but it refuses a second member for the same file by an :class:`ArchiveError`."""
    taken: dict[str, str] = {}

    def choose_once(member: str) -> str | None:
        name = choose(member)
        if name is not None:
            if (other := taken.get(folded(name))) is not None:
                raise ArchiveError(f"{archive}: members {other} and {member} are both for the file {name}")
            taken[folded(name)] = member
        return name

    return choose_once

"""tar, plain or compressed by gzip."""

from __future__ import annotations

import tarfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from errno import EINVAL
from pathlib import Path
from typing import NoReturn

from mmf_win.archives.base import BLOCK, INFLATE_ERROR, Archive, Choose, Extracted, Member, write
from mmf_win.archives.names import naming_problem
from mmf_win.archives.readahead import ReadAhead
from mmf_win.console import Progress
from mmf_win.threads import Advance, ignore

# Long names and the like stand before a member, and tarfile reads them into memory whatever their size.
_READ_AT_ONCE = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_MOST_HEADER = 1 << 16
_MOST_HEADERS = 1 << 24  # altogether; words take much longer to read than files
_MOST_WORDS = 1000

_DAMAGE: tuple[type[Exception], ...] = (
    tarfile.TarError,
    EOFError,
    INFLATE_ERROR,
    OSError,  # of gzip; unlike those of the system it has no number
    ValueError,  # a number of tarfile's that is none, or too large
    RecursionError,  # headers that each stand before another header
)


class TarArchive(Archive):
    """A tar. A compressed one is read through once to list it, with a bar; this also verifies its checksum.

    Extracting needs no list: members are chosen as they come, in one pass. Unless it is ``listed``,
    ``members`` stays empty.
    """

    def __init__(self, path: Path, is_packed: bool, *, listed: bool = True) -> None:
        super().__init__(path)
        self.read_size = path.stat().st_size  # what is in it may not be known before it is extracted
        self._is_packed = is_packed
        if listed:
            with self._damage_named():
                self.members = self._with_problems(self._listed())

    def _listed(self) -> Iterator[Member]:
        if self._is_packed:
            with Progress("Listing", self.read_size) as bar, self._streamed(bar.advance) as (_, tar):
                yield from map(self._member, self._infos(tar))
        else:
            with self.path.open("rb") as file, _Tar.open(fileobj=file, mode="r:", tarinfo=_Info) as tar:
                yield from map(self._member, self._infos(tar))

    def _infos(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        """The headers of all members but folders."""
        count = 0
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep all of them, with their texts
            count += 1
            self._require_few(count)
            if not info.isdir():
                yield info

    def _extract(self, choose: Choose, progress: Advance) -> Generator[Extracted, None, None]:
        refused = {member.name: member.problem for member in self.members}
        with self._damage_named(), self._streamed(progress) as (content, tar):
            for info in self._infos(tar):
                member = self._member(info)
                if (target := choose(member)) is None:
                    continue
                if problem := member.problem or refused.get(member.name) or naming_problem(member.name):
                    raise self._error(problem, member.name)
                yield write(self.path, member, target, self._blocks(content, info), ignore)

    def _member(self, info: tarfile.TarInfo) -> Member:
        problem = None if info.isreg() else "it is a device, not a file"
        if info.issym() or info.islnk():
            problem = "it is a link"
        return Member(self._safe_name(info.name), info.size, problem=problem)

    def _blocks(self, content: ReadAhead, info: tarfile.TarInfo) -> Iterator[memoryview]:
        """The content of a member that is a file."""
        content.seek(info.offset_data)
        left = info.size
        while left:
            if not (block := content.take(min(left, BLOCK))):
                raise tarfile.ReadError("unexpected end of data")
            left -= len(block)
            yield block

    @contextmanager
    def _streamed(self, progress: Advance) -> Iterator[tuple[ReadAhead, tarfile.TarFile]]:
        """The content for one pass from its beginning to its end, where gzip's checksum is, and the tar."""
        with (
            closing(ReadAhead(self.path, self._is_packed, progress)) as content,
            _Tar.open(fileobj=content, mode="r:", tarinfo=_Info) as tar,  # type: ignore[call-overload]
        ):
            yield content, tar
            while content.take(BLOCK):
                pass

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Turn the errors of a damaged archive into one that names it."""
        try:
            yield
        except _DAMAGE as error:
            if getattr(error, "errno", None) not in (None, EINVAL):  # EINVAL: too far away to be sought
                raise
            self._require_unchanged()
            kind = "tar.gz" if self._is_packed else "tar"
            raise self._error(f"not a valid {kind}: {error}") from error


class _Tar(tarfile.TarFile):
    """Counts the bytes of the headers that stand before members."""

    headers = 0


class _Info(tarfile.TarInfo):
    """A member, before which no more is read into memory than a real one needs."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _Info:
        """The next member; tarfile would take a tar that was cut off or damaged at a header for complete."""
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"its end is missing ({error})") from error

    def _block(self, count: int) -> int:
        """Where tarfile rounds sizes up; Pythons with CVE-2025-8194 go back in the file by negative ones."""
        if count < 0:
            raise tarfile.ReadError(f"a member of {count} bytes")
        return super()._block(count)  # type: ignore[misc, no-any-return]

    def _proc_member(self, tar: _Tar) -> tarfile.TarInfo | None:
        """Where tarfile wants subclasses to say how a type of member is read."""
        if self.type in _READ_AT_ONCE:
            if self.size > _MOST_HEADER:
                raise tarfile.ReadError(f"a header of {self.size} bytes, which no member needs")
            tar.headers += self.size
            if tar.headers > _MOST_HEADERS:
                raise tarfile.ReadError(f"headers of {tar.headers} bytes, which no archive needs")
        if len(tar.pax_headers) > _MOST_WORDS:  # each member gets a copy
            raise tarfile.ReadError(f"headers with {len(tar.pax_headers)} words, which no archive needs")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]

    def _refuse_sparse(self, *_: object) -> NoReturn:
        """A few bytes may claim to be terabytes of zeros, or a map of millions of parts."""
        raise tarfile.ReadError("it holds a sparse file; pack it again without --sparse")

    # What tarfile calls for each of the four ways to say that a member is sparse.
    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse

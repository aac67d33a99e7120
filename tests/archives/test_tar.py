"""tar, compressed or not: what is read and refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from mmf_win.archives import open_archive
from mmf_win.archives.base import BLOCK
from mmf_win.console import Progress
from mmf_win.errors import ArchiveError
from tests.worlds import hostile
from tests.worlds.memes import lay_out, memes, tar_gz
from tests.worlds.packing import FILES, into, only, unpack, write_tar
from tests.worlds.tools import call, requires_tool


@pytest.mark.parametrize("compression", ["", "gz"])
def test_tar(compression: str, user_dir: Path) -> None:
    assert unpack(write_tar(user_dir / "мемы.bin", FILES, compression), user_dir / "out") == FILES


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress])
def test_other_compression_is_refused_with_a_way_out(
    compress: Callable[[bytes], bytes], user_dir: Path
) -> None:
    (user_dir / "a.tar.gz").write_bytes(compress(gzip.decompress(tar_gz(FILES))))
    with pytest.raises(ArchiveError, match=r"a\.tar\.gz: .*tar\.gz are read") as caught:
        open_archive(user_dir / "a.tar.gz")
    assert caught.value.hint is not None and "unpack it" in caught.value.hint


@requires_tool("tar")
def test_tar_of_the_real_program_with_dots_and_long_names(user_dir: Path) -> None:
    files = {"deep/" + "folder with a long name/" * 6 + "мем.png": b"x" * 5000}
    lay_out(files, user_dir / "in")
    call("tar", "-czf", "a.tar.gz", "-C", "in", ".", cwd=user_dir)
    assert unpack(user_dir / "a.tar.gz", user_dir / "out") == files


@pytest.mark.parametrize("place", [-600, 0, 100], ids=["in a member", "before a header", "in a header"])
def test_a_tar_that_was_cut_off_is_not_taken_for_whole(place: int, user_dir: Path) -> None:
    path = write_tar(user_dir / "cut.tar", FILES)
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1].offset
    path.write_bytes(path.read_bytes()[: last + place])
    with pytest.raises(ArchiveError, match=r"cut\.tar: not a valid tar: "):
        open_archive(path)


def test_a_damaged_tar_gz_is_noticed_when_it_is_opened(user_dir: Path) -> None:
    path = write_tar(user_dir / "a.tar.gz", {"x": memes()["hateful_memes/img/00001.png"] * 50}, "gz")
    hostile.flip_byte(path, path.stat().st_size - 6)  # gzip's own checksum
    with pytest.raises(ArchiveError, match=r"not a valid tar\.gz"):
        open_archive(path)


@pytest.mark.parametrize("listed", [True, False])
def test_a_wrong_checksum_far_behind_the_last_member_is_noticed(listed: bool, user_dir: Path) -> None:
    padded = gzip.decompress(tar_gz(FILES)) + bytes(2 * BLOCK)  # as tar pads to the size of its blocks
    path = user_dir / "a.tar.gz"
    path.write_bytes(gzip.compress(padded))
    assert unpack(path, user_dir / "intact") == FILES
    hostile.flip_byte(path, path.stat().st_size - 6)
    with pytest.raises(ArchiveError, match=r"not a valid tar\.gz"):
        list(open_archive(path, listed=listed).extract(into(user_dir / "out")))


def test_listing_a_compressed_tar_tells_how_far_it_is_fake_interval(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Progress, "_PLAIN_INTERVAL", 0.0)
    open_archive(write_tar(user_dir / "a.tar.gz", FILES, "gz"))
    assert "Listing: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.FIFOTYPE, "device"),
        (tarfile.CHRTYPE, "device"),
    ],
)
def test_links_and_devices_in_a_tar_are_refused_when_wanted(
    kind: bytes, problem: str, user_dir: Path
) -> None:
    path = hostile.tar_with(user_dir / "a.tar", hostile.tar_member("x", kind, link="/etc/passwd"))
    archive = open_archive(path)
    with pytest.raises(ArchiveError, match=problem):
        list(archive.extract(only({"x": user_dir / "x"})))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME], ids=repr)
def test_a_tar_whose_headers_would_fill_the_memory_is_refused(kind: bytes, user_dir: Path) -> None:
    header = hostile.tar_member("header", kind)  # what stands before a member, its long name for instance
    header.size = 50 << 20
    path = hostile.tar_with(user_dir / "a.tar.gz", header, hostile.tar_member("x"), mode="w:gz")
    tracemalloc.start()
    with pytest.raises(ArchiveError, match=r"a\.tar\.gz: .* header"):
        open_archive(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 << 20


@pytest.mark.parametrize(
    "infos",
    [
        [hostile.tar_member("x", told={"size": str(1 << 60)})],
        [hostile.tar_member("x", told={"size": str(1 << 90)})],
        [hostile.tar_member("x", told={"size": "-512"})],
        [hostile.tar_member("x", tarfile.GNUTYPE_LONGNAME)] * 5000,
    ],
    ids=[
        "a size beyond all disks",
        "a size beyond all files",
        "a negative size",
        "a header before a header, and so on",
    ],
)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_whose_headers_make_no_sense_is_refused(
    infos: list[tarfile.TarInfo], mode: Literal["w", "w:gz"], user_dir: Path
) -> None:
    path = hostile.tar_with(user_dir / "a.tar", *infos, mode=mode)
    with pytest.raises(ArchiveError, match=r"a\.tar: not a valid tar"):
        open_archive(path)


@pytest.mark.parametrize(
    "member",
    [
        hostile.tar_member("x", tarfile.GNUTYPE_SPARSE),
        hostile.tar_member("x", told={"GNU.sparse.size": str(8 << 30)}),
        hostile.tar_member("x", told={"GNU.sparse.map": "0,0", "GNU.sparse.size": str(8 << 30)}),
        hostile.tar_member("x", told={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    ],
    ids=["GNU", "0.0", "0.1", "1.0"],
)
def test_a_sparse_file_in_a_tar_is_refused(member: tarfile.TarInfo, user_dir: Path) -> None:
    path = hostile.tar_with(user_dir / "a.tar", member)
    with pytest.raises(ArchiveError, match=r"a\.tar: .* sparse .* pack it again"):
        open_archive(path)
    archive = open_archive(path, listed=False)
    with pytest.raises(ArchiveError, match="sparse"):
        list(archive.extract(into(user_dir / "out")))


def test_a_tar_whose_headers_would_take_long_to_read_is_refused(user_dir: Path) -> None:
    told = {f"k{number}": "v" for number in range(5000)}
    path = hostile.tar_with(user_dir / "a.tar", *[hostile.tar_member("x", told=told)] * 400)
    with pytest.raises(ArchiveError, match=r"a\.tar: .* headers of \d+ bytes"):
        open_archive(path)


def test_a_tar_with_a_damaged_header_is_not_taken_for_one_that_ends_there(user_dir: Path) -> None:
    path = hostile.tar_with(user_dir / "a.tar", *(hostile.tar_member(name) for name in "abc"))
    hostile.flip_byte(path, 512)
    with pytest.raises(ArchiveError, match="its end is missing"):
        open_archive(path)


def test_a_member_of_a_tar_whose_time_is_no_number_comes_out(user_dir: Path) -> None:
    path = hostile.tar_with(user_dir / "a.tar", hostile.tar_member("x", told={"mtime": "nan"}))
    assert unpack(path, user_dir / "out") == {"x": b""}

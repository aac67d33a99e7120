"""tar, plain or compressed: extraction and rejected archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from mmf_win.archives import open_archive
from mmf_win.archives.base import BLOCK_BYTES
from mmf_win.console import Progress
from mmf_win.errors import ArchiveError
from mmf_win.sniffing import UNPACK_TWICE_HINT
from tests.worlds import hostile_archives
from tests.worlds.archive_writers import DATASET_FILES, choose_all, choose_members, unpack_all, write_tar
from tests.worlds.memes import dataset_files, tar_gz, write_tree
from tests.worlds.tools import requires_tool, run_program


@pytest.mark.parametrize("compression", ["", "gz"])
def test_tar_is_extracted(compression: str, user_dir: Path) -> None:
    assert unpack_all(write_tar(user_dir / "мемы.bin", DATASET_FILES, compression), user_dir / "out") == DATASET_FILES


@requires_tool("7z")
@pytest.mark.parametrize(
    ("compress", "reason"),
    [
        (bz2.compress, "a bzip2 file, not a zip, 7z or tar"),
        (lzma.compress, "an xz file, not a zip, 7z or tar"),
        (lambda data: lzma.compress(data, lzma.FORMAT_ALONE), "an LZMA file, not a zip, 7z or tar"),
    ],
    ids=["bzip2", "xz", "LZMA"],
)
def test_other_compression_is_named_and_its_hint_works(
    compress: Callable[[bytes], bytes], reason: str, user_dir: Path
) -> None:
    path = user_dir / "a.tar.gz"
    path.write_bytes(compress(gzip.decompress(tar_gz(DATASET_FILES))))
    with pytest.raises(ArchiveError, match=f"a.tar.gz: {reason}") as caught:
        open_archive(path)
    assert caught.value.hint == UNPACK_TWICE_HINT
    run_program("7z", "x", "-oFOLDER", path, cwd=user_dir)
    [tar] = (user_dir / "FOLDER").iterdir()
    assert unpack_all(tar, user_dir / "out") == DATASET_FILES


@requires_tool("7z")
def test_zip_in_gzip_is_not_reported_as_damage(user_dir: Path) -> None:
    path = user_dir / "a.zip.gz"
    path.write_bytes(gzip.compress(hostile_archives.write_zip(user_dir / "a.zip", DATASET_FILES).read_bytes()))
    with pytest.raises(ArchiveError, match=r"a\.zip\.gz: not a valid tar\.gz: no tar header") as caught:
        open_archive(path)
    assert caught.value.hint == UNPACK_TWICE_HINT
    run_program("7z", "x", "-oFOLDER", path, cwd=user_dir)
    [inner] = (user_dir / "FOLDER").iterdir()
    assert unpack_all(inner, user_dir / "out") == DATASET_FILES


LINKS = {"a": "a", "b/1": "first", "b/2": "first", "b/3": "first", "empty": "", "none": "", "z": "z"}


def write_tar_with_links(path: Path, compression: str) -> Path:
    """Write a tar in which b/2, b/3 and none are hard links, stored like tar programs do."""
    kinds = {"b/2": "b/1", "b/3": "./b/1", "none": "empty"}
    mode: Literal["w", "w:gz"] = "w:gz" if compression else "w"
    with tarfile.open(path, mode) as tar:
        for name, text in LINKS.items():
            info = hostile_archives.tar_member(name, tarfile.LNKTYPE if name in kinds else tarfile.REGTYPE)
            info.linkname = kinds.get(name, "")
            info.size = 0 if name in kinds else len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("names", [set(LINKS), {"b/2"}, {"b/2", "b/3"}, {"none", "b/3", "z"}], ids=sorted)
@pytest.mark.parametrize("list_members", [True, False])
@pytest.mark.parametrize("compression", ["", "gz"])
def test_hard_links_are_extracted_with_or_without_their_targets(
    compression: str, list_members: bool, names: set[str], user_dir: Path
) -> None:
    archive = open_archive(write_tar_with_links(user_dir / "a.tar", compression), list_members=list_members)
    assert not list_members or {member.name: member.size for member in archive.members}["b/3"] == len("first")
    extracted = []
    for member_file in archive.extract(choose_members({name: user_dir / "out" / name for name in names})):
        extracted.append(member_file.name)
        member_file.target.rename(user_dir / f"moved-{member_file.name.replace('/', '-')}")
    moved = {name: (user_dir / f"moved-{name.replace('/', '-')}").read_text() for name in extracted}
    assert moved == {name: LINKS[name] for name in names}
    assert len(extracted) == len(names)


@requires_tool("tar")
@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
@pytest.mark.parametrize("tool", ["tar", "bsdtar"])
def test_hard_links_of_tar_programs_are_extracted(tool: str, user_dir: Path) -> None:
    if not shutil.which(tool):
        pytest.skip("needs bsdtar")
    write_tree(DATASET_FILES, user_dir)
    first = user_dir / "hateful_memes" / "img" / "00001.png"
    (user_dir / "hateful_memes" / "img" / "00099.png").hardlink_to(first)
    run_program(tool, "-czf", "a.tar.gz", "hateful_memes", cwd=user_dir)
    expected = {**DATASET_FILES, "hateful_memes/img/00099.png": first.read_bytes()}
    assert unpack_all(user_dir / "a.tar.gz", user_dir / "out") == expected


@requires_tool("tar")
def test_tar_with_dot_prefix_and_long_names_is_extracted(user_dir: Path) -> None:
    files = {"deep/" + "folder with a long name/" * 6 + "мем.png": b"x" * 5000}
    write_tree(files, user_dir / "in")
    run_program("tar", "-czf", "a.tar.gz", "-C", "in", ".", cwd=user_dir)
    assert unpack_all(user_dir / "a.tar.gz", user_dir / "out") == files


@pytest.mark.parametrize("offset", [-600, 0, 100], ids=["in a member", "before a header", "in a header"])
def test_truncated_tar_is_rejected(offset: int, user_dir: Path) -> None:
    path = write_tar(user_dir / "cut.tar", DATASET_FILES)
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1].offset
    path.write_bytes(path.read_bytes()[: last + offset])
    with pytest.raises(ArchiveError, match=r"cut\.tar: not a valid tar: "):
        open_archive(path)


def test_damaged_tar_gz_is_detected_when_opened(user_dir: Path) -> None:
    path = write_tar(user_dir / "a.tar.gz", {"x": dataset_files()["hateful_memes/img/00001.png"] * 50}, "gz")
    hostile_archives.flip_byte(path, path.stat().st_size - 6)  # the checksum of gzip
    with pytest.raises(ArchiveError, match=r"not a valid tar\.gz"):
        open_archive(path)


@pytest.mark.parametrize("listed", [True, False])
def test_wrong_checksum_far_after_the_last_member_is_detected(listed: bool, user_dir: Path) -> None:
    padded = gzip.decompress(tar_gz(DATASET_FILES)) + bytes(2 * BLOCK_BYTES)  # tar pads archives to its block size
    path = user_dir / "a.tar.gz"
    path.write_bytes(gzip.compress(padded))
    assert unpack_all(path, user_dir / "intact") == DATASET_FILES
    hostile_archives.flip_byte(path, path.stat().st_size - 6)
    with pytest.raises(ArchiveError, match=r"not a valid tar\.gz"):
        list(open_archive(path, list_members=listed).extract(choose_all(user_dir / "out")))


def test_listing_a_compressed_tar_shows_progress_with_fake_interval(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Progress, "_PLAIN_INTERVAL_SECONDS", 0.0)
    open_archive(write_tar(user_dir / "a.tar.gz", DATASET_FILES, "gz"))
    assert "Listing: 100%" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["404.png", "401/a", "not found.txt", "<error>", "BZh"])
def test_name_of_the_first_member_does_not_hide_a_tar(name: str, user_dir: Path) -> None:
    path = hostile_archives.write_zeros_tar(user_dir / "a.tar", hostile_archives.tar_member(name))
    assert [member.name for member in open_archive(path).members] == [name]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (tarfile.SYMTYPE, "symbolic links are not supported"),
        (tarfile.LNKTYPE, "hard link to /etc/passwd, which is not an earlier member"),
        (tarfile.FIFOTYPE, "device"),
        (tarfile.CHRTYPE, "device"),
    ],
)
def test_chosen_links_and_devices_in_tar_are_rejected(kind: bytes, problem: str, user_dir: Path) -> None:
    path = hostile_archives.write_zeros_tar(
        user_dir / "a.tar", hostile_archives.tar_member("x", kind, link="/etc/passwd")
    )
    archive = open_archive(path)
    with pytest.raises(ArchiveError, match=problem):
        list(archive.extract(choose_members({"x": user_dir / "x"})))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME], ids=repr)
def test_tar_with_too_large_headers_is_rejected(kind: bytes, user_dir: Path) -> None:
    header = hostile_archives.tar_member("header", kind)  # precedes a member, for example with its long name
    header.size = 50 << 20
    path = hostile_archives.write_zeros_tar(
        user_dir / "a.tar.gz", header, hostile_archives.tar_member("x"), mode="w:gz"
    )
    tracemalloc.start()
    with pytest.raises(ArchiveError, match=r"a\.tar\.gz: .* header"):
        open_archive(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 << 20


@pytest.mark.parametrize(
    "infos",
    [
        [hostile_archives.tar_member("x", pax_headers={"size": str(1 << 60)})],
        [hostile_archives.tar_member("x", pax_headers={"size": str(1 << 90)})],
        [hostile_archives.tar_member("x", pax_headers={"size": "-512"})],
        [hostile_archives.tar_member("x", tarfile.GNUTYPE_LONGNAME)] * 5000,
    ],
    ids=["a size larger than any disk", "a size larger than any file", "a negative size", "a long chain of headers"],
)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_with_invalid_headers_is_rejected(
    infos: list[tarfile.TarInfo], mode: Literal["w", "w:gz"], user_dir: Path
) -> None:
    path = hostile_archives.write_zeros_tar(user_dir / "a.tar", *infos, mode=mode)
    with pytest.raises(ArchiveError, match=r"a\.tar: not a valid tar"):
        open_archive(path)


@pytest.mark.parametrize(
    "member",
    [
        hostile_archives.tar_member("x", tarfile.GNUTYPE_SPARSE),
        hostile_archives.tar_member("x", pax_headers={"GNU.sparse.size": str(8 << 30)}),
        hostile_archives.tar_member("x", pax_headers={"GNU.sparse.map": "0,0", "GNU.sparse.size": str(8 << 30)}),
        hostile_archives.tar_member("x", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    ],
    ids=["GNU", "0.0", "0.1", "1.0"],
)
@pytest.mark.parametrize("listed", [True, False])
def test_sparse_file_in_tar_is_rejected(member: tarfile.TarInfo, listed: bool, user_dir: Path) -> None:
    path = hostile_archives.write_zeros_tar(user_dir / "a.tar", member, hostile_archives.tar_member("y"))
    archive = open_archive(path, list_members=listed)
    with pytest.raises(ArchiveError, match=r"a\.tar: member x: sparse files are not supported"):
        list(archive.extract(choose_all(user_dir / "out")))
    list(archive.extract(choose_members({"y": user_dir / "y"})))
    assert (user_dir / "y").read_bytes() == b""


def test_tar_with_too_many_headers_is_rejected(user_dir: Path) -> None:
    keywords = {f"k{number}": "v" for number in range(5000)}
    path = hostile_archives.write_zeros_tar(
        user_dir / "a.tar", *[hostile_archives.tar_member("x", pax_headers=keywords)] * 400
    )
    with pytest.raises(ArchiveError, match=r"a\.tar: .* headers too large \(\d+ bytes in total\)"):
        open_archive(path)


def test_tar_with_a_damaged_header_is_rejected(user_dir: Path) -> None:
    path = hostile_archives.write_zeros_tar(user_dir / "a.tar", *(hostile_archives.tar_member(name) for name in "abc"))
    hostile_archives.flip_byte(path, 512)
    with pytest.raises(ArchiveError, match="end of the archive is missing"):
        open_archive(path)


def test_tar_member_with_an_invalid_time_is_extracted(user_dir: Path) -> None:
    path = hostile_archives.write_zeros_tar(
        user_dir / "a.tar", hostile_archives.tar_member("x", pax_headers={"mtime": "nan"})
    )
    assert unpack_all(path, user_dir / "out") == {"x": b""}

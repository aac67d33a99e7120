"""Intact but unsupported archives: errors name the method and the member, and hints work."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from mmf_win.archives import open_archive
from mmf_win.errors import ArchiveError, PasswordError
from tests.worlds import hostile_archives
from tests.worlds.archive_writers import DATASET_FILES, choose_all, choose_members, unpack_all
from tests.worlds.memes import read_tree, write_tree
from tests.worlds.tools import requires_tool, run_program

UNPACK = "unpack it with 7-Zip, then run `mmfw convert FOLDER`"
METHODS = {
    1: "Shrink",
    2: "Reduce",
    6: "Implode",
    9: "Deflate64",
    10: "DCL Implode",
    16: "CMPSC",
    18: "TERSE",
    19: "LZ77",
    20: "Zstandard",
    93: "Zstandard",
    94: "MP3",
    95: "xz",
    96: "JPEG",
    97: "WavPack",
    98: "PPMd",
    47: "method 47",
}


def extraction_error(path: Path, member: str, out: Path, password: str | None = None) -> ArchiveError:
    """Return the error of extracting this member."""
    archive = open_archive(path, password and (lambda: password))
    archive.check_password()
    with pytest.raises(ArchiveError) as caught:
        list(archive.extract(choose_members({member: out / member})))
    assert not out.exists() or not read_tree(out)
    return caught.value


@pytest.mark.parametrize("method", METHODS)
def test_unsupported_method_of_zip_is_named(method: int, user_dir: Path) -> None:
    path = hostile_archives.declare_method(hostile_archives.write_zip(user_dir / "a.zip", {"x": b"x"}), method)
    error = extraction_error(path, "x", user_dir / "out")
    assert str(error) == f"{path}: member x: unsupported compression: {METHODS[method]}"
    assert error.hint == UNPACK


@requires_tool("7z")
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("-tzip -mm=Deflate64", "Deflate64"),
        ("-tzip -mm=PPMd", "PPMd"),
        ("-tzip -mm=xz", "xz"),
        ("-tzip -mm=PPMd -psecret", "PPMd"),
        ("-tzip -mm=PPMd -psecret -mem=AES256", "PPMd"),
        ("-t7z -m0=PPMd", "PPMd"),
        ("-t7z -m0=PPMd -psecret -mhe=on", "PPMd"),
        ("-t7z -m0=BCJ2 -m1=LZMA", "BCJ2"),
        ("-t7z -m0=BCJ2 -m1=LZMA -psecret", "BCJ2"),
        ("-t7z -m0=Swap2 -m1=LZMA2 -psecret", "Swap2"),
        ("-t7z -m0=IA64 -m1=LZMA", "IA64"),
        ("-t7z -m0=Delta:4 -m1=BZip2 -psecret", "Delta without LZMA"),
    ],
)
def test_unsupported_methods_of_7_zip_are_named_and_the_hint_works(options: str, name: str, user_dir: Path) -> None:
    write_tree(DATASET_FILES, user_dir / "in")
    run_program("7z", "a", *options.split(), "../a.bin", ".", cwd=user_dir / "in")
    member = "hateful_memes/train.jsonl"
    error = extraction_error(user_dir / "a.bin", member, user_dir / "out", "secret")
    assert f"member {member}: unsupported compression: {name}" in str(error)
    assert error.hint == UNPACK
    run_program("7z", "x", "-psecret", "-oFOLDER", "a.bin", cwd=user_dir)
    assert unpack_all(user_dir / "FOLDER", user_dir / "out") == DATASET_FILES


@pytest.mark.parametrize(
    ("method", "name"), [(0x0A, "ARM64"), (0x0B, "RISC-V"), (0x7F, "method 7f")], ids=["ARM64", "RISC-V", "unknown"]
)
@pytest.mark.parametrize("password", [None, "secret"])
def test_unsupported_method_of_7z_is_named(method: int, name: str, password: str | None, user_dir: Path) -> None:
    path = hostile_archives.seven_zip_with_method(user_dir / "a.7z", {"x": b"x" * 99}, method, password)
    error = extraction_error(path, "x", user_dir / "out", password)
    assert f"member x: unsupported compression: {name}" in str(error)
    assert error.hint == UNPACK


@requires_tool("7z")
@pytest.mark.parametrize("options", [[], ["-psecret"], ["-psecret", "-mhe=on"]], ids=" ".join)
def test_unsupported_members_do_not_prevent_extracting_others_of_7z(options: list[str], user_dir: Path) -> None:
    write_tree(DATASET_FILES, user_dir)
    shutil.copy(Path(sys.executable).resolve(), user_dir / "setup.exe")
    with wave.open(str(user_dir / "sound.wav"), "wb") as sound:
        sound.setparams((2, 2, 44100, 0, "NONE", ""))
        sound.writeframes(b"".join(struct.pack("<hh", n % 3000, n % 2000) for n in range(20_000)))
    run_program("7z", "a", "-mx=9", *options, "a.7z", "hateful_memes", "setup.exe", "sound.wav", cwd=user_dir)
    chosen = re.findall(r"^Method = (.*)", _listing(user_dir / "a.7z"), re.MULTILINE)
    archive = open_archive(user_dir / "a.7z", lambda: "secret")
    archive.check_password()
    memes = {name: user_dir / "out" / name for name in [*DATASET_FILES, "sound.wav"]}
    list(archive.extract(choose_members(memes)))
    assert read_tree(user_dir / "out") == {**DATASET_FILES, "sound.wav": (user_dir / "sound.wav").read_bytes()}
    if {"BCJ2", "ARM64"}.intersection(" ".join(chosen).split()):
        assert "BCJ2" in str(extraction_error(user_dir / "a.7z", "setup.exe", user_dir / "no", "secret"))
    if options:
        with pytest.raises(PasswordError, match="wrong"):
            open_archive(user_dir / "a.7z", lambda: "other").check_password()


def _listing(path: Path) -> str:
    return subprocess.run(["7z", "l", "-slt", "-psecret", path], stdout=subprocess.PIPE, text=True).stdout


@requires_tool("7z")
@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
@pytest.mark.parametrize(
    "command", ["tar -cf a.bin data", "zip -ryq a.bin data", "7z a -tzip -snl a.bin data", "7z a -snl a.bin data"]
)
def test_symbolic_link_is_not_reported_as_damage(command: str, user_dir: Path) -> None:
    if not shutil.which(command.split()[0]):
        pytest.skip("needs a tool")
    write_tree({"data/x": b"content"}, user_dir)
    (user_dir / "data" / "link").symlink_to("x")
    run_program(*command.replace("a.bin", "a.zip" if "zip" in command else "a.bin").split(), cwd=user_dir)
    [path] = user_dir.glob("a.*")
    error = extraction_error(path, "data/link", user_dir / "out")
    assert "member data/link: " in str(error) and "links are not supported" in str(error)
    assert error.hint == UNPACK
    run_program("7z", "x", "-oFOLDER", path, cwd=user_dir)
    assert unpack_all(user_dir / "FOLDER", user_dir / "out") == {"data/x": b"content", "data/link": b"content"}


@requires_tool("tar")
@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
@pytest.mark.parametrize("options", ["--format=gnu", "--format=posix", "--format=posix -z", "bsdtar"])
def test_chosen_sparse_file_is_rejected_and_the_hint_works(options: str, user_dir: Path) -> None:
    (user_dir / "in").mkdir()
    for name in ("a", "z"):
        (user_dir / "in" / name).write_bytes(name.encode() * 99)
    with (user_dir / "in" / "holes").open("wb") as file:  # more parts than the first header of GNU tar has
        for number in range(40):
            file.seek(number << 20)
            file.write(b"x" * 4096)
    tar = ["bsdtar"] if options == "bsdtar" else ["tar", "--sparse", *options.split()]
    if not shutil.which(tar[0]):
        pytest.skip("needs bsdtar")
    run_program(*tar, "-cf", "../a.tar", "a", "holes", "z", cwd=user_dir / "in")
    error = extraction_error(user_dir / "a.tar", "holes", user_dir / "out")
    assert "a.tar: member holes: sparse files are not supported" in str(error)
    assert error.hint is not None and "--no-read-sparse" in error.hint and "7-Zip" not in error.hint
    for listed in (True, False):
        archive = open_archive(user_dir / "a.tar", list_members=listed)
        list(archive.extract(choose_members({name: user_dir / "out" / name for name in ("a", "z")})))
        assert read_tree(user_dir / "out") == {"a": b"a" * 99, "z": b"z" * 99}
    (user_dir / "FOLDER").mkdir()
    [command] = re.findall("`(tar .*?)`", error.hint)
    run_program(*command.split(), "../a.tar", cwd=user_dir / "FOLDER")
    assert unpack_all(user_dir / "FOLDER", user_dir / "all") == read_tree(user_dir / "in")


def test_name_that_is_not_portable_is_not_reported_as_damage(user_dir: Path) -> None:
    path = hostile_archives.zip_with_duplicates(user_dir / "a.zip", "x", "X", "aux.png")
    for name in ("x", "aux.png"):
        error = extraction_error(path, name, user_dir / "out")
        assert error.hint == "unpack it, rename or remove this file, then run `mmfw convert FOLDER`"


def test_wrong_checksum_is_reported_as_damage(user_dir: Path) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", {"x": b"content" * 99})
    hostile_archives.flip_byte(path, path.read_bytes().index(b"PK\1\2") + 16)  # the checksum in the directory
    error = extraction_error(path, "x", user_dir / "out")
    assert "checksum" in str(error) and error.hint is not None and "download the archive again" in error.hint


@pytest.mark.parametrize("size", [-1, 900])
def test_truncated_zip_is_reported_as_damage(size: int, user_dir: Path) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", DATASET_FILES)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArchiveError, match="not a valid zip") as caught:
        list(open_archive(path).extract(choose_all(user_dir / "out")))
    assert caught.value.hint is not None and "download the archive again" in caught.value.hint


def test_zip_of_a_later_version_is_not_reported_as_damage(user_dir: Path) -> None:
    path = hostile_archives.declare_version(hostile_archives.write_zip(user_dir / "a.zip", {"x": b"x"}), 99)
    with pytest.raises(ArchiveError, match=r"unsupported kind of zip: zip file version 9\.9") as caught:
        open_archive(path)
    assert caught.value.hint == UNPACK

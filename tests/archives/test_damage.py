"""Whatever happens to an archive's bytes, what is on disk afterwards is right, or there is an error."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import py7zr
import pytest

from mmf_win.archives import open_archive
from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.errors import ArchiveError, PasswordError
from tests.worlds.aes_zip import write_aes_zip
from tests.worlds.memes import Files, tar_gz, tree

PASSWORD = "secret"
FILES: Files = {f"data/{n}.txt": Random(n).randbytes(40) + b"words " * 20 * n for n in range(4)}


def encrypted(path: Path) -> bytes:
    write_encrypted_zip(path, FILES, PASSWORD)
    return path.read_bytes()


def plain(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return path.read_bytes()


def with_descriptors(path: Path) -> bytes:
    """As when a zip is written to a pipe: sizes and checksums come after the data."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: object) -> int:
            raise OSError("a pipe")

        def tell(self) -> int:
            raise OSError("a pipe")

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    path.write_bytes(pipe.getvalue())
    return pipe.getvalue()


def zip64(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(content)
    return path.read_bytes()


def ae_1(path: Path) -> bytes:
    return write_aes_zip(path, FILES, PASSWORD, version=1).read_bytes()


def ae_2(path: Path) -> bytes:
    return write_aes_zip(path, FILES, PASSWORD, version=2, strength=1).read_bytes()


def seven_zip(path: Path) -> bytes:
    with py7zr.SevenZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(content, name)
    return path.read_bytes()


def encrypted_7z(path: Path) -> bytes:
    with py7zr.SevenZipFile(path, "w", password=PASSWORD, header_encryption=True) as archive:
        for name, content in FILES.items():
            archive.writestr(content, name)
    return path.read_bytes()


def compressed_tar(path: Path) -> bytes:
    path.write_bytes(tar_gz(FILES))
    return path.read_bytes()


Make = Callable[[Path], bytes]
KINDS: list[Make] = [
    *(encrypted, plain, with_descriptors, zip64, ae_1, ae_2),
    *(seven_zip, encrypted_7z, compressed_tar),
]
SLOW: list[Make] = [ae_1, ae_2, encrypted_7z]
"""Those for which keys are derived each time they are opened."""


def extract(path: Path, out: Path) -> bool:
    """Extract what can be extracted; whether there was no error."""
    try:
        with open_archive(path, lambda: PASSWORD) as archive:
            list(archive.extract({member.name: out / member.name for member in archive.members}))
    except (ArchiveError, PasswordError) as error:
        assert str(path) in str(error)
        return False
    return True


def all_is_right_or_refused(path: Path, out: Path) -> None:
    whole = extract(path, out)
    found = tree(out) if out.exists() else {}
    for content in found.values():  # a damaged name is a name like any other
        assert content in FILES.values()
    assert not whole or len(found) <= len(FILES)
    for file in out.rglob("*"):
        if file.is_file():
            file.unlink()


@pytest.mark.parametrize("make", KINDS)
def test_undamaged(make: Make, user_dir: Path) -> None:
    make(user_dir / "a.bin")
    assert extract(user_dir / "a.bin", user_dir / "out")
    assert tree(user_dir / "out") == FILES


@pytest.mark.parametrize("make", KINDS)
def test_cut_anywhere(make: Make, user_dir: Path) -> None:
    path = user_dir / "a.bin"
    data: bytes = make(path)
    for size in range(0, len(data), 3):
        path.write_bytes(data[:size])
        assert not extract(path, user_dir / "out")
        assert not (user_dir / "out").exists()


@pytest.mark.parametrize("make", KINDS)
def test_one_bit_flipped_anywhere(make: Make, user_dir: Path) -> None:
    path = user_dir / "a.bin"
    data: bytes = make(path)
    for number, at in enumerate(range(0, len(data), 3 if make in SLOW else 1)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << number % 8
        path.write_bytes(damaged)
        all_is_right_or_refused(path, user_dir / "out")


@pytest.mark.parametrize("make", KINDS)
def test_random_damage(make: Make, user_dir: Path) -> None:
    path = user_dir / "a.bin"
    data: bytes = make(path)
    random = Random(1)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(random.randrange(1, 8)):
            at = random.randrange(len(damaged))
            match random.randrange(3):
                case 0:
                    damaged[at : at + 4] = random.choice([b"\0" * 4, b"\xff" * 4, random.randbytes(4)])
                case 1:
                    del damaged[at : at + random.randrange(1, 50)]
                case 2:
                    start = random.randrange(len(damaged))
                    damaged[at:at] = damaged[start : start + random.randrange(1, 50)]
        path.write_bytes(damaged)
        all_is_right_or_refused(path, user_dir / "out")


@pytest.mark.parametrize("make", [encrypted, with_descriptors, zip64])
def test_a_bit_that_flipped_in_the_directory_hides_no_member(make: Make, user_dir: Path) -> None:
    path = user_dir / "a.zip"
    data: bytes = make(path)
    for bit in range(8 * data.index(b"PK\1\2"), 8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            members = open_archive(path).members
        except ArchiveError as error:
            assert str(path) in str(error)
        else:
            assert {member.name for member in members} == FILES.keys()

"""Damaged archives: every file on disk afterwards is correct, or there is an error."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from mmf_win.archives import open_archive
from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.errors import ArchiveError, PasswordError
from tests.worlds import hostile_archives
from tests.worlds.archive_writers import choose_all, write_7z, write_aes_zip, write_tar
from tests.worlds.memes import Files, read_tree

PASSWORD = "secret"
FILES: Files = {f"data/{n}.txt": Random(n).randbytes(40) + b"words " * 20 * n for n in range(4)}


def write_zip_with_descriptors(path: Path) -> None:
    """Write a zip to a pipe, so that sizes and checksums follow the data."""

    class Pipe(io.BytesIO):
        def tell(self) -> int:
            raise OSError("a pipe")

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    path.write_bytes(pipe.getvalue())


def write_zip64(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(content)


def write_zip_by_method(path: Path, method: int) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)


KINDS: dict[str, Callable[[Path], object]] = {
    "encrypted": lambda path: write_encrypted_zip(path, FILES.items(), PASSWORD),
    "plain": lambda path: hostile_archives.write_zip(path, FILES),
    "with descriptors": write_zip_with_descriptors,
    "zip64": write_zip64,
    "bzip2": lambda path: write_zip_by_method(path, zipfile.ZIP_BZIP2),
    "LZMA": lambda path: write_zip_by_method(path, zipfile.ZIP_LZMA),
    "AE-1": lambda path: write_aes_zip(path, FILES, PASSWORD, version=1),
    "AE-2": lambda path: write_aes_zip(path, FILES, PASSWORD, version=2, strength=1),
    "7z": lambda path: write_7z(path, FILES),
    "encrypted 7z": lambda path: write_7z(path, FILES, PASSWORD, hide_names=True),
    "tar.gz": lambda path: write_tar(path, FILES, "gz"),
}
SLOW = ("AE-1", "AE-2", "encrypted 7z")
"""Kinds for which opening an archive derives a key."""


@pytest.fixture
def data(kind: str, user_dir: Path) -> bytes:
    """Return the content of the archive ``a.bin``."""
    KINDS[kind](user_dir / "a.bin")
    return (user_dir / "a.bin").read_bytes()


def extract(data: bytes, user_dir: Path) -> bool:
    """Extract as many members as possible; return whether there was no error."""
    path, out = user_dir / "a.bin", user_dir / "out"
    path.write_bytes(data)
    try:
        archive = open_archive(path, lambda: PASSWORD)
        list(archive.extract(choose_all(out)))
    except (ArchiveError, PasswordError) as error:
        assert str(path) in str(error)
        return False
    return True


def require_intact_or_rejected(data: bytes, user_dir: Path) -> None:
    is_intact = extract(data, user_dir)
    files = read_tree(user_dir / "out") if (user_dir / "out").exists() else {}
    for name, content in files.items():
        assert content in FILES.values()  # a damaged name may still be a valid name
        (user_dir / "out" / name).unlink()
    assert not is_intact or len(files) <= len(FILES)


@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_archive_is_extracted(data: bytes, user_dir: Path) -> None:
    assert extract(data, user_dir)
    assert read_tree(user_dir / "out") == FILES


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_at_any_byte_is_detected(data: bytes, user_dir: Path) -> None:
    for size in range(0, len(data), 3):
        assert not extract(data[:size], user_dir)
        assert not (user_dir / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bit_at_any_byte_is_detected(kind: str, data: bytes, user_dir: Path) -> None:
    for number, at in enumerate(range(0, len(data), 3 if kind in SLOW else 1)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << number % 8
        require_intact_or_rejected(damaged, user_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_random_damage_is_detected(data: bytes, user_dir: Path) -> None:
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
        require_intact_or_rejected(damaged, user_dir)


@pytest.mark.parametrize("kind", ["encrypted", "with descriptors", "zip64"])
def test_flipped_bit_in_the_directory_hides_no_member(data: bytes, user_dir: Path) -> None:
    path = user_dir / "a.bin"
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

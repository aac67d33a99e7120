"""Fuzzed zip files: the extracted content is correct, or an error of mmfw is raised."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path, PurePosixPath
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from mmf_win.archives import Archive, open_archive
from mmf_win.archives.zipcrypto import Cipher
from mmf_win.errors import ArchiveError, PasswordError
from tests.worlds.archive_writers import choose_members, encrypt_aes_member
from tests.worlds.memes import read_tree

PASSWORD = "secret"
_NAMES = st.one_of(
    st.integers(0, 99).map("data/img/{}.png".format),
    st.integers(0, 99).map("мем {}".format),
    st.sampled_from(["a", "A", "folder/", "../x", "/x", "C:x", "con.txt", "a\\b"]) | st.text(max_size=8),
)
_EXTRAS = st.one_of(
    st.just(b""),
    st.binary(max_size=20),
    st.builds(
        lambda numbers: struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers),  # Zip64
        st.lists(st.integers(0, 2**64 - 1), max_size=3),
    ),
)
Declare = Callable[..., int]


@st.composite
def zips(draw: st.DrawFn) -> bytes:
    """Draw a zip in which any number may be wrong, and most are not."""

    def declare(actual: int, bits: int, one_in: int = 80) -> int:
        is_wrong = draw(st.integers(0, one_in - 1)) == one_in // 2
        return draw(st.integers(0, 200) | st.integers(0, 2**bits - 1)) % 2**bits if is_wrong else actual

    body, directory = draw(st.sampled_from([b"", b"", b"MZ a program"])), b""
    count = draw(st.integers(1, 4))
    for _ in range(count):
        name = draw(_NAMES).encode(errors="surrogatepass")
        header, extra, data = _member(draw, declare)
        lengths = struct.pack("<2H", declare(len(name), 16), declare(len(extra), 16))
        rest = struct.pack("<3H2I", 0, 0, 0, declare(0o100644, 16) << 16, declare(len(body), 32))
        directory += b"PK\1\2" + struct.pack("<H", 3 << 8 | 20) + header + lengths + rest + name + extra
        lengths = struct.pack("<2H", declare(len(name), 16), declare(len(extra), 16))
        body += b"PK\3\4" + header + lengths + name + extra + data
    counts = (0, 0, declare(count, 16), declare(count, 16))
    size_and_offset = (declare(len(directory), 32), declare(len(body), 32))
    return body + directory + struct.pack("<4s4H2IH", b"PK\5\6", *counts, *size_and_offset, declare(0, 16))


def _member(draw: st.DrawFn, declare: Declare) -> tuple[bytes, bytes, bytes]:
    """Draw the part that both headers of a member share, its extra field and its data."""
    content = draw(st.binary(max_size=60)) * draw(st.sampled_from([1, 1, 100]))
    crc, time = zlib.crc32(content), draw(st.integers(0, 2**16 - 1))
    flags, method, extra = draw(st.sampled_from([0, 1, 8, 9, 1 << 11])), draw(st.sampled_from([0, 8])), b""
    deflate = zlib.compressobj(wbits=-15)
    data = deflate.compress(content) + deflate.flush() if method == 8 else content
    if flags & 1 and draw(st.booleans()):
        strength, version = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        data = encrypt_aes_member(content, PASSWORD.encode(), strength, Random(1))
        fields = (declare(version, 16), b"AE", declare(strength, 8), declare(8, 16))
        extra, method = struct.pack("<HHH2sBH", declare(0x9901, 16), 7, *fields), 99
    elif flags & 1:
        check = time >> 8 if flags & 8 else crc >> 24
        data = Cipher(PASSWORD.encode()).encrypt_bytes(bytes(11) + bytes([check]) + data)
    extra += draw(_EXTRAS) if declare(0, 1) else b""
    numbers = (20, declare(flags, 16), declare(method, 16), time, 0)
    sizes = (declare(crc, 32, 10), declare(len(data), 32, 20), declare(len(content), 32, 10))
    return struct.pack("<5H3I", *numbers, *sizes), extra, data


@settings(max_examples=300)
@given(zips())
def test_fuzzed_zip_is_extracted_correctly_or_raises(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path, out = Path(folder, "a.zip"), Path(folder, "out")
        path.write_bytes(b"PK\3\4" + data[4:] if data.startswith(b"PK\5\6") else data)
        try:
            archive = open_archive(path, lambda: PASSWORD)
            check_members(archive, out)
        except (ArchiveError, PasswordError) as error:
            assert str(path) in str(error)
        assert {entry.name for entry in Path(folder).iterdir()} <= {"a.zip", "out"}


def check_members(archive: Archive, out: Path) -> None:
    """Extract each member separately and compare the file with its declared size and checksum."""
    valid = [member for member in archive.members if member.problem is None]
    assert sum(member.size for member in valid) <= 1032 * archive.path.stat().st_size
    expected = {}
    for number, member in enumerate(archive.members):
        name = PurePosixPath(member.name)
        assert not name.is_absolute() and ".." not in name.parts
        try:
            (extracted,) = archive.extract(choose_members({member.name: out / str(number)}))
        except (ArchiveError, PasswordError) as error:
            assert str(archive.path) in str(error)
            continue
        assert member in valid
        content = extracted.target.read_bytes()
        assert (len(content), sha256(content).hexdigest()) == (extracted.size, extracted.sha256)
        assert member.size == extracted.size and member.crc32 in (None, zlib.crc32(content))
        expected[str(number)] = content
    assert (read_tree(out) if out.exists() else {}) == expected

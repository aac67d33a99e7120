"""The C kernels of WinZip's AES against other libraries, and at the edge where Python hands them memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import pytest
from Cryptodome.Cipher import AES
from Cryptodome.Util import Counter
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archives.sanitizers import run_under_sanitizers
from tests.worlds.fuzzing import FIXED_BUDGET

native = pytest.importorskip("mmf_win.archives._winzip_aes", reason="built without the C extension")

KERNELS = native.kernels()
LANES = 8
"""Of the widest kernel."""

requires_aes = pytest.mark.skipif(not native.has_aes(), reason="this processor has no instructions for AES")


def test_every_machine_has_the_portable_kernel() -> None:
    assert KERNELS[-1] == "scalar"


@pytest.mark.parametrize("kernel", KERNELS)
def test_all_fillings_of_the_lanes(kernel: str) -> None:
    random = Random(1)
    for count in range(2 * LANES + 3):
        salts = [random.randbytes(16) for _ in range(count)]
        expected = [hashlib.pbkdf2_hmac("sha1", b"secret", salt, 5, 20) for salt in salts]
        assert native.derive(b"secret", salts, 20, 5, kernel) == expected


@pytest.mark.parametrize("kernel", KERNELS)
def test_all_sizes_of_password_salt_and_key(kernel: str) -> None:
    random = Random(2)
    for size in range(65):
        password, salt = random.randbytes(size), random.randbytes(size % 52)
        expected = hashlib.pbkdf2_hmac("sha1", password, salt, 3, size + 1)
        assert native.derive(password, [salt], size + 1, 3, kernel) == [expected]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_rounds_of_winzip(kernel: str) -> None:
    salts = [bytes([number] * 16) for number in range(3)]
    expected = [hashlib.pbkdf2_hmac("sha1", b"secret", salt, 1000, 66) for salt in salts]
    assert native.derive(b"secret", salts, 66, 1000, kernel) == expected


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("password", "salt", "rounds", "size", "expected"),
    [
        (b"password", b"salt", 1, 20, "0c60c80f961f0e71f3a9b524af6012062fe037a6"),
        (b"password", b"salt", 4096, 20, "4b007901b765489abead49d926f721d065a429c1"),
        (b"pass\0word", b"sa\0lt", 4096, 16, "56fa6aa75548099dcc37d7f03425e0c3"),
    ],
)
def test_the_vectors_of_rfc_6070(
    kernel: str, password: bytes, salt: bytes, rounds: int, size: int, expected: str
) -> None:
    (key,) = native.derive(password, [salt], size, rounds, kernel)
    assert key.hex() == expected


@pytest.mark.parametrize(
    ("password", "salts", "size", "rounds", "kernel", "error"),
    [
        (bytes(65), [], 20, 1, "scalar", ValueError),
        (b"", [bytes(52)], 20, 1, "scalar", ValueError),
        (b"", [b""], 0, 1, "scalar", ValueError),
        (b"", [b""], 2**40, 1, "scalar", ValueError),
        (b"", [b""], 20, 0, "scalar", ValueError),
        (b"", [], 20, 1, "warp", ValueError),
        (b"", [""], 20, 1, "scalar", TypeError),
        (b"", (b"",), 20, 1, "scalar", TypeError),
        ("", [b""], 20, 1, "scalar", TypeError),
    ],
    ids=str,
)
def test_keys_that_make_no_sense_are_refused(
    password: object, salts: object, size: int, rounds: int, kernel: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        native.derive(password, salts, size, rounds, kernel)


def reference(key: bytes, counter: int, data: bytes) -> bytes:
    """What pycryptodomex decrypts."""
    plain: bytes = AES.new(
        key, AES.MODE_CTR, counter=Counter.new(128, initial_value=counter, little_endian=True)
    ).decrypt(data)
    return plain


@requires_aes
@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_all_lengths_and_alignments(key_size: int) -> None:
    random = Random(3)
    for size in range(301):
        key, start = random.randbytes(key_size), size % 17
        data = bytearray(random.randbytes(start + size + 5))
        expected = data[:start] + reference(key, 1, bytes(data[start : start + size])) + data[start + size :]
        native.decrypt(data, start, size, key, 1)
        assert data == expected


@requires_aes
@pytest.mark.parametrize("counter", [2, 255, 2**32 - 3, 2**63])
def test_a_member_in_pieces(counter: int) -> None:
    random = Random(4)
    key, data = random.randbytes(32), random.randbytes(1000)
    pieces = bytearray(data)
    for start in range(0, 1000, 176):
        native.decrypt(pieces, start, min(176, 1000 - start), key, counter + start // 16)
    assert pieces == reference(key, counter, data)


@requires_aes
@pytest.mark.parametrize(
    ("start", "size", "key", "error"),
    [
        (-1, 1, bytes(16), ValueError),
        (0, -1, bytes(16), ValueError),
        (0, 11, bytes(16), ValueError),
        (10, 1, bytes(16), ValueError),
        (2**63 - 1, 2, bytes(16), ValueError),
        (2**64, 1, bytes(16), OverflowError),
        (0, 1, bytes(15), ValueError),
        (0, 1, bytes(33), ValueError),
        (0, 1, "key", TypeError),
    ],
    ids=str,
)
def test_bytes_outside_and_other_keys_are_refused(
    start: int, size: int, key: object, error: type[Exception]
) -> None:
    data = bytearray(10)
    with pytest.raises(error):
        native.decrypt(data, start, size, key, 1)
    assert not any(data)


LARGE = st.sampled_from([-(2**63), -(2**31), 2**31, 2**63 - 1, 2**63, 2**64])


@settings(FIXED_BUDGET, max_examples=200)
@given(
    st.binary(max_size=70),
    st.lists(st.binary(max_size=54), max_size=20),
    st.one_of(st.integers(-2, 130), LARGE),
    st.one_of(st.integers(-2, 5), LARGE),
    st.sampled_from(KERNELS),
)
def test_any_call_derives_these_keys_or_is_refused(
    password: bytes, salts: list[bytes], size: int, rounds: int, kernel: str
) -> None:
    bounded = len(password) <= 64 and all(len(salt) <= 51 for salt in salts)
    if bounded and 1 <= size <= 130 and 1 <= rounds <= 5:
        expected = [hashlib.pbkdf2_hmac("sha1", password, salt, rounds, size) for salt in salts]
        assert native.derive(password, salts, size, rounds, kernel) == expected
    else:
        with pytest.raises((ValueError, OverflowError)):
            native.derive(password, salts, size, rounds, kernel)


@requires_aes
@settings(FIXED_BUDGET, max_examples=300)
@given(
    st.binary(max_size=200),
    st.one_of(st.integers(-2, 210), LARGE),
    st.one_of(st.integers(-2, 210), LARGE),
    st.binary(max_size=40) | st.sampled_from([bytes(16), bytes(24), bytes(32)]),
    st.integers(0, 2**64 - 20),
)
def test_any_call_decrypts_these_bytes_or_is_refused(
    content: bytes, start: int, size: int, key: bytes, counter: int
) -> None:
    data, end = bytearray(content), start + size
    if len(key) in (16, 24, 32) and 0 <= start <= end <= len(content):
        native.decrypt(data, start, size, key, counter)
        assert data == content[:start] + reference(key, counter, content[start:end]) + content[end:]
    else:
        with pytest.raises((ValueError, OverflowError)):
            native.decrypt(data, start, size, key, counter)
        assert data == content


def test_kernels_under_sanitizers(tmp_path: Path) -> None:
    assert run_under_sanitizers("winzip_aes", tmp_path).split() == KERNELS

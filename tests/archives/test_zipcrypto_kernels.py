"""C kernels compared with the pure Python cipher, and their argument validation."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmf_win.archives.zipcrypto import Cipher, Keys

native = pytest.importorskip("mmf_win.archives._zipcrypto", reason="built without the C extension")

KERNELS = native.kernels()


def reference(keys: Keys, data: bytes) -> tuple[bytes, Keys]:
    """Decrypt ``data`` with the pure Python cipher; return the result and the final keys."""
    cipher, plain = Cipher(), bytearray()
    for byte in data:
        cipher.keys = keys
        plain.append(byte ^ cipher.encrypt_bytes(b"\0")[0])  # the key stream depends only on the keys
        cipher.keys = keys
        cipher.encrypt_bytes(plain[-1:])
        keys = cipher.keys
    return bytes(plain), keys


def check(kernel: str, sizes: list[int], random: Random) -> None:
    """Decrypt streams of these sizes; the gaps between them must stay unchanged."""
    gaps = [random.randrange(5) for _ in sizes]
    stops = accumulate(map(sum, zip(sizes, gaps, strict=True)))
    data = bytearray(random.randbytes(sum(sizes) + sum(gaps) + 3))
    spans = [
        (stop - size, size, (random.getrandbits(32), random.getrandbits(32), random.getrandbits(32)))
        for stop, size in zip(stops, sizes, strict=True)
    ]
    expected, ends = bytearray(data), []
    for start, size, keys in spans:
        expected[start : start + size], end = reference(keys, bytes(data[start : start + size]))
        ends.append(end)
    assert native.decrypt(data, spans, kernel) == ends
    assert data == expected


def test_portable_kernels_are_always_available() -> None:
    assert KERNELS[-2:] == ["interleaved", "scalar"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_streams_of_all_lengths_and_lane_counts_are_decrypted(kernel: str) -> None:
    random = Random(1)
    for size in range(301):
        check(kernel, [size, size], random)
    for count in range(67):  # the widest kernel has 32 lanes
        check(kernel, [random.randrange(80) for _ in range(count)], random)
    for _ in range(20):  # very different lengths
        check(kernel, [int(2 ** random.uniform(0, 11)) for _ in range(random.randrange(50))], random)


@pytest.mark.parametrize("kernel", KERNELS)
def test_stream_is_decrypted_in_pieces(kernel: str) -> None:
    random = Random(4)
    data = random.randbytes(1000)
    keys: Keys = (1, 2, 3)
    plain, _ = reference(keys, data)
    pieces = []
    for start in range(0, 1000, 77):
        piece = bytearray(data[start : start + 77])
        (keys,) = native.decrypt(piece, [(0, len(piece), keys)], kernel)
        pieces.append(bytes(piece))
    assert b"".join(pieces) == plain


KEYS = (1, 2, 3)


@pytest.mark.parametrize(
    "span", [(-1, 1, KEYS), (0, -1, KEYS), (0, 11, KEYS), (11, 0, KEYS), (10, 1, KEYS), (2**63 - 1, 2, KEYS)], ids=str
)
def test_span_outside_of_the_data_is_rejected(span: tuple[int, int, Keys]) -> None:
    with pytest.raises(ValueError, match="outside"):
        native.decrypt(bytearray(10), [span], KERNELS[0])


@pytest.mark.parametrize(
    ("data", "spans", "kernel", "error"),
    [
        (b"bytes", [], "scalar", TypeError),
        (bytearray(1), ((0, 1, KEYS),), "scalar", TypeError),
        (bytearray(1), [[0, 1, KEYS]], "scalar", TypeError),
        (bytearray(1), [(0, 1)], "scalar", TypeError),
        (bytearray(1), [(0, 1, (1, 2))], "scalar", TypeError),
        (bytearray(1), [(2**64, 1, KEYS)], "scalar", OverflowError),
        (bytearray(1), [], "warp", ValueError),
    ],
    ids=str,
)
def test_invalid_arguments_are_rejected(data: object, spans: object, kernel: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        native.decrypt(data, spans, kernel)


def test_span_that_clears_the_arguments_is_harmless() -> None:
    data = bytearray(10)
    spans: list[object] = []

    class Hostile:
        def __index__(self) -> int:
            spans.clear()
            with pytest.raises(BufferError):
                data.clear()
            return 0

    spans += [(Hostile(), 10, KEYS), (0, 10, KEYS)]
    with pytest.raises(IndexError):
        native.decrypt(data, spans, KERNELS[0])


NUMBERS = st.one_of(
    st.integers(-3, 110), st.sampled_from([-(2**63), 2**31, 2**32 - 1, 2**63 - 16, 2**63 - 1, 2**63, 2**64])
)
SPANS = st.tuples(NUMBERS, NUMBERS, st.tuples(*[st.integers(0, 2**32 - 1)] * 3))


@settings(max_examples=300)
@given(st.binary(max_size=100), st.lists(SPANS, max_size=4), st.sampled_from(KERNELS))
def test_any_call_decrypts_its_spans_or_is_rejected(
    content: bytes, spans: list[tuple[int, int, Keys]], kernel: str
) -> None:
    data, ranges = bytearray(content), [range(start, start + size) for start, size, _ in spans]
    try:
        ends = native.decrypt(data, spans, kernel)
    except (ValueError, OverflowError):
        assert data == content
        assert any(min(start, size) < 0 or start + size > len(content) for start, size, _ in spans)
        return
    touched = [at for covered in ranges for at in covered]
    assert all(data[at] == content[at] for at in range(len(content)) if at not in touched)
    if len(set(touched)) == len(touched):  # overlapping spans are accepted, with an unspecified result
        for (start, size, keys), end in zip(spans, ends, strict=True):
            assert (bytes(data[start : start + size]), end) == reference(keys, content[start : start + size])


def test_kernels_pass_sanitizers(tmp_path: Path) -> None:
    compiler = next((name for name in ("gcc", "clang") if shutil.which(name)), None)
    if compiler is None or os.name == "nt":
        pytest.skip("not installed" + (" on Windows" if os.name == "nt" else "") + ": gcc or clang")
    folder = Path(__file__).parents[2] / "mmf_win" / "archives" / "native"
    sources = [str(path) for path in folder.glob("*.c") if path.name != "module.c"]
    build = [compiler, "-std=c99", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    build += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = str(tmp_path / "check")
    subprocess.run([*build, *sources, "-o", program], check=True)
    result = subprocess.run([program], check=True, stdout=subprocess.PIPE, encoding="utf-8")
    assert result.stdout.split() == KERNELS

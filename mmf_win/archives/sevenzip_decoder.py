"""Process that lists and decodes 7z with py7zr for :mod:`mmf_win.archives.sevenzip`.

A damaged archive may crash it. Each line of standard input is a request in JSON: the ``path`` in hex, the
``password``, and the ``numbers`` of the requested members, or null for the list of all. The answer on
standard output has several parts. The last one is the result in JSON: class, text and errno of an error, or
nulls.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import py7zr
from py7zr import archiveinfo, compressor

from mmf_win.archives.base import BLOCK_BYTES, MAX_DICTIONARY_BYTES, MAX_MEMBERS
from mmf_win.archives.sevenzip import PART_HEADER

# Method IDs from DOC/Methods.txt of the 7-Zip source: 7zAES, PPMD, LZMA, LZMA2, Delta, IA64
_AES, _PPMD = b"\x06\xf1\x07\x01", b"\x03\x04\x01"
_LZMA, _LZMA2 = b"\x03\x01\x01", b"\x21"
_DELTA, _IA64 = b"\x03", b"\x03\x03\x04\x01"
_METHOD_NAMES = {"030401": "PPMd", "0303011b": "BCJ2", "0a": "ARM64", "0b": "RISC-V", "020302": "Swap2"}
_METHOD_NAMES |= {"020304": "Swap4", "04f71104": "LZ4", "04f71105": "LZ5", "04f71106": "Lizard"}
_METHOD_NAMES |= {"03": "Delta without LZMA", "03030401": "IA64"}

# py7zr's own limits allow lists that need gigabytes of memory.
archiveinfo.MAX_NUMFILES = archiveinfo.MAX_SUBSTREAMS = archiveinfo.MAX_NUMFOLDERS = MAX_MEMBERS
archiveinfo.MAX_HEADER_SIZE = 1 << 25

# py7zr 1.0 and 1.1 derive the key again (half a million rounds of SHA-256) for each solid block and pass.
compressor.calculate_key = lru_cache(maxsize=4)(compressor.calculate_key)


class _CheckedDecompressor(compressor.SevenZipDecompressor):  # type: ignore[misc]  # py7zr has no types for us
    """Decompressor that rejects unsupported methods; py7zr creates one for members and for their list."""

    def __init__(self, coders: Sequence[Mapping[str, Any]], *rest: Any) -> None:
        if problem := _find_coder_problem(coders):
            raise NotImplementedError(problem)
        # py7zr reads one block per call even if the last one is not used up. Its default of several megabytes
        # would fill the memory.
        super().__init__(coders, *rest, blocksize=1 << 16)


archiveinfo.SevenZipDecompressor = _CheckedDecompressor


def main() -> None:
    """Answer requests until standard input ends."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler does not run during native code
    for line in sys.stdin.buffer:
        status: Sequence[Any] = (None, None, None)
        try:
            for content in answer_request(**json.loads(line)):
                _send_part(content, is_last=False)
        except Exception as error:  # py7zr raises exceptions of any class for invalid data
            text = getattr(error, "strerror", None) or str(error)
            status = type(error).__name__, text, getattr(error, "errno", None)
        _send_part(json.dumps(status).encode(), is_last=True)


def _send_part(content: bytes | memoryview, *, is_last: bool) -> None:
    sys.stdout.buffer.write(PART_HEADER.pack(is_last, len(content)) + content)
    sys.stdout.buffer.flush()


def answer_request(path: str, password: str | None, numbers: Sequence[int] | None) -> Iterator[bytes | memoryview]:
    """Yield the requested members, or the list of all members as JSON if ``numbers`` is None."""
    with Path(os.fsdecode(bytes.fromhex(path))).open("rb") as file:
        archive = py7zr.SevenZipFile(file, password=password)
        if numbers is None:
            yield json.dumps(list(_list_members(archive))).encode()
        elif archive.header.main_streams:
            yield from _read_contents(archive, set(numbers))


def _list_members(archive: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of :class:`~mmf_win.archives.sevenzip.SevenZipMember` for each file."""
    for file in archive.files:
        if not file.is_directory:
            coders = file.folder.coders if file.folder else []
            yield {
                "name": file.filename,
                "size": file.uncompressed,
                "encrypted": any(coder["method"] == _AES for coder in coders),
                "crc32": file.crc32,
                "problem": "links are not supported"
                if file.is_symlink or file.is_junction
                else _find_coder_problem(coders),
                "number": file.id,
                "stream": id(file.folder) if file.folder else None,
            }


def _read_contents(archive: Any, numbers: Collection[int]) -> Iterator[bytes | memoryview]:
    """Yield the blocks of the requested members in archive order, and an empty block for any other block."""
    streams = archive.header.main_streams
    locations = zip(streams.packinfo.packpositions, streams.packinfo.packsizes, strict=False)
    location_by_folder = dict(zip(streams.unpackinfo.folders, locations, strict=False))
    for folder, group in groupby((file for file in archive.files if file.folder), lambda file: file.folder):
        files = list(group)
        # Files up to the last requested one. A stream without any is skipped: it may not be decodable.
        needed_count = max((count for count, file in enumerate(files, 1) if file.id in numbers), default=0)
        if not needed_count:
            continue
        start, packed = location_by_folder[folder]
        archive.fp.seek(archive.afterheader + start)
        decoder, block = folder.get_decompressor(packed), memoryview(b"")
        undecoded = max(0, sum(file.uncompressed for file in files[:needed_count]))
        for file in files[:needed_count]:
            remaining = file.uncompressed
            while remaining > 0:
                if not block:
                    consumed = decoder.consumed
                    block = memoryview(bytes(decoder.decompress(archive.fp, min(undecoded, BLOCK_BYTES))))
                    undecoded -= len(block)
                    if not block and decoder.consumed == consumed:
                        raise py7zr.Bad7zFile("compressed data ends too early")
                    is_complete = not undecoded and needed_count == len(files)
                    if is_complete and folder.digestdefined and not decoder.check_crc():
                        raise py7zr.Bad7zFile("checksum mismatch of the compressed data")
                part, block = block[:remaining], block[remaining:]
                remaining -= len(part)
                yield part if file.id in numbers else b""


def _find_coder_problem(coders: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why data encoded by these coders cannot be decoded, or None if it can."""
    methods = [coder["method"] for coder in coders]
    supported = {method["id"] for method in compressor.SupportedMethods.methods}
    # pyppmd 1.3 crashes or corrupts memory on damaged data; py7zr 1.1 loses the last bytes of IA64.
    supported -= {_PPMD, _IA64} if {_LZMA, _LZMA2}.intersection(methods) else {_PPMD, _IA64, _DELTA}
    refused = [method for method in methods if method not in supported]
    if refused:
        name = _METHOD_NAMES.get(refused[0].hex(), f"method {refused[0].hex()}")
        return f"unsupported compression: {name}"
    if any(_dictionary_size(coder) > MAX_DICTIONARY_BYTES for coder in coders):
        return f"needs more than {MAX_DICTIONARY_BYTES >> 20} MiB of memory to unpack"
    return None


def _dictionary_size(coder: Mapping[str, Any]) -> int:
    """Return the dictionary size of LZMA or LZMA2 in bytes; 0 for any other method."""
    properties: bytes = coder.get("properties") or b""
    if coder["method"] == _LZMA:
        return int.from_bytes(properties[1:5], "little")
    if coder["method"] == _LZMA2 and properties:
        return (2 | properties[0] & 1) << (properties[0] // 2 + 11)
    return 0


if __name__ == "__main__":
    main()

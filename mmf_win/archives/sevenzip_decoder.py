"""A process that lists and decodes 7z by py7zr, for :mod:`mmf_win.archives.sevenzip`; damage may end it.

Each line of standard input is a request, as JSON: the ``path`` in hex, the ``password``, and the ``numbers``
of the members that are wanted, or null for the list of all. Of the answer's parts, on standard output, the
last tells as JSON how it ended: the class, text and number of an error, or nulls.
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

# DOC/Methods.txt of the 7-Zip source: 7zAES, PPMD, LZMA, LZMA2, Delta, IA64
_AES, _PPMD = b"\x06\xf1\x07\x01", b"\x03\x04\x01"
_LZMA, _LZMA2 = b"\x03\x01\x01", b"\x21"
_DELTA, _IA64 = b"\x03", b"\x03\x03\x04\x01"
_METHOD_NAMES = {"030401": "PPMd", "0303011b": "BCJ2", "0a": "ARM64", "0b": "RISC-V", "020302": "Swap2"}
_METHOD_NAMES |= {"020304": "Swap4", "04f71104": "LZ4", "04f71105": "LZ5", "04f71106": "Lizard"}
_METHOD_NAMES |= {"03": "Delta without LZMA", "03030401": "IA64"}

# py7zr's own limits allow lists that take gigabytes.
archiveinfo.MAX_NUMFILES = archiveinfo.MAX_SUBSTREAMS = archiveinfo.MAX_NUMFOLDERS = MAX_MEMBERS
archiveinfo.MAX_HEADER_SIZE = 1 << 25

# py7zr 1.0 and 1.1 make a key, by half a million steps of SHA-256, again for each solid block and each pass.
compressor.calculate_key = lru_cache(maxsize=4)(compressor.calculate_key)


class _CheckedDecompressor(compressor.SevenZipDecompressor):  # type: ignore[misc]  # py7zr has no types for us
    """What py7zr makes before it decodes anything, the list of members included."""

    def __init__(self, coders: Sequence[Mapping[str, Any]], *rest: Any) -> None:
        if problem := _find_coder_problem(coders):
            raise NotImplementedError(problem)
        # It reads one each time, whatever is left of the last: with py7zr's megabytes, that fills the memory.
        super().__init__(coders, *rest, blocksize=1 << 16)


archiveinfo.SevenZipDecompressor = _CheckedDecompressor


def main() -> None:
    """Answer until nobody asks any more."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # native code does not wait for Python's own handler
    for line in sys.stdin.buffer:
        ended: Sequence[Any] = (None, None, None)
        try:
            for content in answer_request(**json.loads(line)):
                _send_part(False, content)
        except Exception as error:  # on nonsense, py7zr fails with whatever it stumbles over
            text = getattr(error, "strerror", None) or str(error)
            ended = type(error).__name__, text, getattr(error, "errno", None)
        _send_part(True, json.dumps(ended).encode())


def _send_part(is_last: bool, content: bytes | memoryview) -> None:
    sys.stdout.buffer.write(PART_HEADER.pack(is_last, len(content)) + content)
    sys.stdout.buffer.flush()


def answer_request(
    path: str, password: str | None, numbers: Sequence[int] | None
) -> Iterator[bytes | memoryview]:
    """What is asked for."""
    with Path(os.fsdecode(bytes.fromhex(path))).open("rb") as file:
        archive = py7zr.SevenZipFile(file, password=password)
        if numbers is None:
            yield json.dumps(list(_list_members(archive))).encode()
        elif archive.header.main_streams:
            yield from _read_contents(archive, set(numbers))


def _list_members(archive: Any) -> Iterator[dict[str, Any]]:
    """All files, as :class:`~mmf_win.archives.sevenzip.SevenZipMember` has them."""
    for file in archive.files:
        if not file.is_directory:
            coders = file.folder.coders if file.folder else []
            yield {
                "name": file.filename,
                "size": file.uncompressed,
                "encrypted": any(coder["method"] == _AES for coder in coders),
                "crc32": file.crc32,
                "problem": "it is a link"
                if file.is_symlink or file.is_junction
                else _find_coder_problem(coders),
                "number": file.id,
                "stream": id(file.folder) if file.folder else None,
            }


def _read_contents(archive: Any, numbers: Collection[int]) -> Iterator[bytes | memoryview]:
    """The blocks of the wanted members in the order of the archive, and an empty one for any other block."""
    streams = archive.header.main_streams
    places = zip(streams.packinfo.packpositions, streams.packinfo.packsizes, strict=False)
    place_of = dict(zip(streams.unpackinfo.folders, places, strict=False))
    for folder, group in groupby((file for file in archive.files if file.folder), lambda file: file.folder):
        files = list(group)
        last = max((at for at, file in enumerate(files, 1) if file.id in numbers), default=0)
        if not last:  # nobody may know how to decode it
            continue
        start, packed = place_of[folder]
        archive.fp.seek(archive.afterheader + start)
        decoder, block = folder.get_decompressor(packed), memoryview(b"")
        rest = max(0, sum(file.uncompressed for file in files[:last]))
        for file in files[:last]:
            left = file.uncompressed
            while left > 0:
                if not block:
                    consumed = decoder.consumed
                    block = memoryview(bytes(decoder.decompress(archive.fp, min(rest, BLOCK_BYTES))))
                    rest -= len(block)
                    if not block and decoder.consumed == consumed:
                        raise py7zr.Bad7zFile("its compressed data ends too early")
                    if not rest and last == len(files) and folder.digestdefined and not decoder.check_crc():
                        raise py7zr.Bad7zFile("the checksum of its compressed data is wrong")
                part, block = block[:left], block[left:]
                left -= len(part)
                yield part if file.id in numbers else b""


def _find_coder_problem(coders: Sequence[Mapping[str, Any]]) -> str | None:
    """Why nothing is decoded that went through these."""
    methods = [coder["method"] for coder in coders]
    supported = {method["id"] for method in compressor.SupportedMethods.methods}
    # pyppmd 1.3 ends the process, or worse, on damage; py7zr 1.1 loses the last bytes of IA64.
    supported -= {_PPMD, _IA64} if {_LZMA, _LZMA2}.intersection(methods) else {_PPMD, _IA64, _DELTA}
    refused = [method for method in methods if method not in supported]
    if refused:
        name = _METHOD_NAMES.get(refused[0].hex(), f"method {refused[0].hex()}")
        return f"it is compressed by {name}, which mmfw does not read"
    if any(_dictionary_size(coder) > MAX_DICTIONARY_BYTES for coder in coders):
        return f"it takes more than {MAX_DICTIONARY_BYTES >> 20} MiB of memory to unpack"
    return None


def _dictionary_size(coder: Mapping[str, Any]) -> int:
    """Bytes of the dictionary of LZMA or LZMA2; 0 for anything else."""
    properties: bytes = coder.get("properties") or b""
    if coder["method"] == _LZMA:
        return int.from_bytes(properties[1:5], "little")
    if coder["method"] == _LZMA2 and properties:
        return (2 | properties[0] & 1) << (properties[0] // 2 + 11)
    return 0


if __name__ == "__main__":
    main()

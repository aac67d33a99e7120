"""Recognition of what often lies where an archive or a picture should: pointers, web pages, empty files."""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD = 512
"""Bytes from a file's start that :func:`recognize_substitute` needs."""

CONVERT = "run `mmfw convert FOLDER`"
UNPACK = f"unpack it with 7-Zip, then {CONVERT}"
UNPACK_TWICE = "unpack it with 7-Zip, then run `mmfw convert FILE` with what comes out"

_HTML = (b"<!doctype html", b"<html", b"<head", b"<script", b"<!--")
_ANSWER = re.compile(
    rb'<\?xml|<error|\{\s*"(code|detail|errors?|message)"|(http/\S+ )?40[134]\b|(entry )?not found'
)
_COMPRESSED = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "Zstandard", b"\x5d\0\0": "LZMA"}


class Substitute(NamedTuple):
    """What a file is instead of the expected data.

    Attributes:
        kind: the phrase for messages: "a web page".
        hint: the next step.
    """

    kind: str
    hint: str


def recognize_substitute(head: bytes) -> Substitute | None:
    """Return what a file is that cannot be the expected data, None if its start does not tell.

    Args:
        head: its first :data:`HEAD` bytes, fewer only where the file ends. The pointers of git-lfs begin with
            their version (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if not head:
        return Substitute("an empty file", "its download or copy did not succeed; get it again")
    if text.startswith(b"version https://git-lfs.github.com/"):
        return Substitute("a git-lfs pointer", "run `git lfs pull` in the repository that it comes from")
    if text.startswith(_HTML):
        hint = "the link has probably expired or asks for a login; download the file again in a browser"
        return Substitute("a web page", hint)
    if _ANSWER.match(text):
        return Substitute(
            "a server's answer", "the link has probably expired; get a new one, and download again"
        )
    if head.startswith(b"Rar!\x1a\x07"):
        return Substitute("a RAR archive", UNPACK)
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            return Substitute(f"a file compressed by {name}", UNPACK_TWICE)
    return None

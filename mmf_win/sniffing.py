"""Recognition of what often lies where an archive or a picture should: pointers, web pages, empty files."""

from __future__ import annotations

from typing import NamedTuple

HEAD = 512
"""Bytes from a file's start that :func:`recognize_substitute` needs."""

_HTML = (b"<!doctype html", b"<html", b"<head", b"<script")


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
    if text.startswith((b"<?xml", b"<error", b'{"error', b'{"message')):
        return Substitute(
            "a server's answer", "the link has probably expired; get a new one, and download again"
        )
    if head.startswith(b"Rar!\x1a\x07"):
        return Substitute("a RAR archive", "unpack it with 7-Zip, then run `mmfw convert FOLDER`")
    return None

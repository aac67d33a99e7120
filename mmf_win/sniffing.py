"""Recognition of what often lies where an archive or a picture should: pointers, web pages, empty files."""

from __future__ import annotations

import re

#: Bytes from a file's start that :func:`recognize_substitute` needs.
HEAD = 512


class NextCommand(str):
    """A hint that ends with a command of mmfw, which gets what the user has unpacked.

    Args:
        first: the steps before it.
        rest: what follows the command's name.
        command: what stands before ``rest``.
    """

    def __new__(cls, first: str, rest: str = "FOLDER`", command: str = "mmfw convert") -> NextCommand:
        hint = super().__new__(cls, f"{first}, then run `{command} {rest}")
        hint._parts = first, rest, command
        return hint

    _parts: tuple[str, str, str]

    def __reduce__(self) -> tuple[type[NextCommand], tuple[str, str, str]]:
        """Return what copies, also those in another process, are made by."""
        return NextCommand, self._parts

    def by(self, command: str) -> NextCommand:
        """Return the hint with another command."""
        return NextCommand(*self._parts[:2], command)


UNPACK = NextCommand("unpack it with 7-Zip")
UNPACK_TWICE = NextCommand("unpack it with 7-Zip", "FILE` with what comes out")

GET_AGAIN = "its download or copy did not succeed; get it again"

# The pointers of git-lfs begin with their version: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_POINTER = rb"version https://git-lfs\.github\.com/"
_ANSWER = rb"<(!doctype html|html|head|script|!--|\?xml|error)|(http/\S+ )?40[134]\b|(entry )?not found"
_ANSWER = rb'(?![^\0]*\0)(%b|\{\s*"(code|detail|errors?|message)")' % _ANSWER  # a tar may hold 404.png
_EXPIRED = "the link has probably expired or asks for a login; download the file again in a browser"
_SUBSTITUTES = {
    rb"\Z": ("an empty file", GET_AGAIN),
    _POINTER: ("a git-lfs pointer", "run `git lfs pull` in the repository that it comes from"),
    _ANSWER: ("a web page or a server's answer", _EXPIRED),
    rb"Rar!\x1a\x07": ("a RAR archive", UNPACK),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": ("a file compressed by bzip2", UNPACK_TWICE),
    rb"\xfd7zXZ\0": ("a file compressed by xz", UNPACK_TWICE),
    rb"\x28\xb5\x2f\xfd": ("a file compressed by Zstandard", UNPACK_TWICE),
    rb"\x5d\0\0": ("a file compressed by LZMA", UNPACK_TWICE),
}


def recognize_substitute(head: bytes) -> tuple[str, str] | None:
    """Return what a file is that cannot be the expected data, and the next step; None if nothing shows that.

    Args:
        head: its first :data:`HEAD` bytes, fewer only where the file ends.
    """
    for pattern, (kind, hint) in _SUBSTITUTES.items():
        if re.match(rb"(?i)(\xef\xbb\xbf)?\s*(%b)" % pattern, head):
            return kind, hint
    return None

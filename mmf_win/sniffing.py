"""Recognition of what often lies where an archive or a picture should: pointers, web pages, empty files."""

from __future__ import annotations

import re

#: Bytes from a file's start that :func:`recognize_substitute` needs.
HEAD_BYTES = 512


class CommandHint(str):
    """A hint that ends with a command of mmfw, which gets what the user has unpacked.

    Args:
        first: the steps before it.
        rest: what follows the command's name.
        command: what stands before ``rest``.
    """

    def __new__(cls, steps: str, arguments: str = "FOLDER`", command: str = "mmfw convert") -> CommandHint:
        hint = super().__new__(cls, f"{steps}, then run `{command} {arguments}")
        hint._parts = steps, arguments, command
        return hint

    _parts: tuple[str, str, str]

    def __reduce__(self) -> tuple[type[CommandHint], tuple[str, str, str]]:
        """Return what copies, also those in another process, are made by."""
        return CommandHint, self._parts

    def with_command(self, command: str) -> CommandHint:
        """Return the hint with another command."""
        return CommandHint(*self._parts[:2], command)


UNPACK_HINT = CommandHint("unpack it with 7-Zip")
UNPACK_TWICE_HINT = CommandHint("unpack it with 7-Zip", "FILE` with what comes out")

DOWNLOAD_AGAIN_HINT = "its download or copy did not succeed; get it again"

# The pointers of git-lfs begin with their version: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS_POINTER = rb"version https://git-lfs\.github\.com/"
_SERVER_REPLY = rb"<(!doctype html|html|head|script|!--|\?xml|error)|(http/\S+ )?40[134]\b|(entry )?not found"
_SERVER_REPLY = (
    rb'(?![^\0]*\0)(%b|\{\s*"(code|detail|errors?|message)")' % _SERVER_REPLY
)  # a tar may hold 404.png
_EXPIRED_LINK_HINT = "the link has probably expired or asks for a login; download the file again in a browser"
_SUBSTITUTES = {
    rb"\Z": ("an empty file", DOWNLOAD_AGAIN_HINT),
    _LFS_POINTER: ("a git-lfs pointer", "run `git lfs pull` in the repository that it comes from"),
    _SERVER_REPLY: ("a web page or a server's answer", _EXPIRED_LINK_HINT),
    rb"Rar!\x1a\x07": ("a RAR archive", UNPACK_HINT),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": ("a file compressed by bzip2", UNPACK_TWICE_HINT),
    rb"\xfd7zXZ\0": ("a file compressed by xz", UNPACK_TWICE_HINT),
    rb"\x28\xb5\x2f\xfd": ("a file compressed by Zstandard", UNPACK_TWICE_HINT),
    rb"\x5d\0\0": ("a file compressed by LZMA", UNPACK_TWICE_HINT),
}


def recognize_substitute(head: bytes) -> tuple[str, str] | None:
    """Return what a file is that cannot be the expected data, and the next step; None if nothing shows that.

    Args:
        head: its first :data:`HEAD_BYTES` bytes, fewer only where the file ends.
    """
    for pattern, (kind, hint) in _SUBSTITUTES.items():
        if re.match(rb"(?i)(\xef\xbb\xbf)?\s*(%b)" % pattern, head):
            return kind, hint
    return None

"""Recognition of files that often replace an archive or image: pointers, web pages, empty files."""

from __future__ import annotations

import re

#: Number of bytes that :func:`recognize_substitute` needs from the start of a file.
HEAD_BYTES = 512


class CommandHint(str):
    """Hint that ends with an mmfw command for the unpacked files.

    Args:
        steps: The steps before the command.
        arguments: The end of the hint, after the command's name.
        command: The command before ``arguments``.
    """

    def __new__(cls, steps: str, arguments: str = "FOLDER`", command: str = "mmfw convert") -> CommandHint:
        hint = super().__new__(cls, f"{steps}, then run `{command} {arguments}")
        hint._parts = steps, arguments, command
        return hint

    _parts: tuple[str, str, str]

    def __reduce__(self) -> tuple[type[CommandHint], tuple[str, str, str]]:
        """Support copies, also in another process."""
        return CommandHint, self._parts

    def with_command(self, command: str) -> CommandHint:
        """Return the hint with another command."""
        return CommandHint(*self._parts[:2], command)


UNPACK_HINT = CommandHint("unpack it with 7-Zip")
UNPACK_TWICE_HINT = CommandHint("unpack it with 7-Zip", "FILE` with the unpacked file")

DOWNLOAD_AGAIN_HINT = "download or copy it again; the last download or copy failed"

# A git-lfs pointer begins with its version: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS_POINTER = rb"version https://git-lfs\.github\.com/"
_REPLY_START = rb"<(!doctype html|html|head|script|!--|\?xml|error)|(http/\S+ )?40[134]\b|(entry )?not found"
# Without a NUL byte, since a tar may begin with a file name such as 404.png.
_SERVER_REPLY = rb'(?![^\0]*\0)(%b|\{\s*"(code|detail|errors?|message)")' % _REPLY_START
_EXPIRED_LINK_HINT = "download the file again in a browser; the link has expired or requires a login"
_SUBSTITUTES = {
    rb"\Z": ("an empty file", DOWNLOAD_AGAIN_HINT),
    _LFS_POINTER: ("a git-lfs pointer", "run `git lfs pull` in the repository that it comes from"),
    _SERVER_REPLY: ("a web page or an error message of a server", _EXPIRED_LINK_HINT),
    rb"Rar!\x1a\x07": ("a RAR archive", UNPACK_HINT),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": ("a bzip2 file", UNPACK_TWICE_HINT),
    rb"\xfd7zXZ\0": ("an xz file", UNPACK_TWICE_HINT),
    rb"\x28\xb5\x2f\xfd": ("a Zstandard file", UNPACK_TWICE_HINT),
    rb"\x5d\0\0": ("an LZMA file", UNPACK_TWICE_HINT),
}


def recognize_substitute(head: bytes) -> tuple[str, str] | None:
    """Return the kind of a file that cannot be the expected data, and a hint; None if it is not recognized.

    Args:
        head: The first :data:`HEAD_BYTES` bytes of the file, or all bytes of a shorter file.
    """
    for pattern, (kind, hint) in _SUBSTITUTES.items():
        if re.match(rb"(?i)(\xef\xbb\xbf)?\s*(%b)" % pattern, head):
            return kind, hint
    return None

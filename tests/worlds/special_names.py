"""Folder names that users have and that programs may misinterpret."""

from __future__ import annotations

import string
import sys

from mmf_win.paths import is_portable

_PRINTABLE = "${x} a=b 100% #1 Doe, Jane Мой 数据 😀" + string.punctuation.replace("/", "")
_CONTROLS = "".join(map(chr, range(1, 32))) + "\x7f\x85\u2028"
_NOT_ON_WINDOWS = '<>:"\\|?*'

ALL_CHARACTERS = (
    "".join(letter for letter in _PRINTABLE if letter not in _NOT_ON_WINDOWS)
    if sys.platform == "win32"
    else f"{_PRINTABLE}{_CONTROLS} "
)
"""Folder name with all characters that this system allows, except most letters and digits."""

SPECIAL_NAMES = [
    name
    for name in (
        *("OneDrive - Doe, Jane", "a=b 100% #1", "${x}", "\\${x}", "-rf", "it's", 'a "b"', "blanks  "),
        *(f"a{letter}b" for letter in string.punctuation.replace("/", "") + _CONTROLS),
        *("[a]", "{a: b}", "%USERPROFILE%", "!x", "a: b", "a #b", "1e5", "null", "😀", "x" * 200),
    )
    # By default, Windows limits paths to 260 characters.
    if sys.platform != "win32" or (is_portable(name) and len(name) < 100)
]
"""Separate names for each of these characters and for other special cases."""

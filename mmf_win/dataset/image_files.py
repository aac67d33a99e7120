"""Files that lie where a picture should: is it one, and does it reach its end?

Only the first and last bytes of most files are read. A file with an unusual start or end is read, and of rare
kinds loaded by Pillow. Damage inside a picture is not noticed here.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mmf_win.console import first_few
from mmf_win.images import open_image
from mmf_win.integrity.manifest import Manifest
from mmf_win.sniffing import HEAD, recognize_substitute

_IEND = b"\0\0\0\0IEND\xae\x42\x60\x82"
_JPEG, _EOI = b"\xff\xd8\xff", b"\xff\xd9"
_GET_AGAIN = "its download or copy did not succeed; get it again"
_CUT_OFF = "a picture that is cut off or damaged"
_NO_END = "a picture without its end mark, or with other data after it"
_SAVE_AS = "save it as PNG or JPEG under the same name"


class Flaw(NamedTuple):
    """What is wrong with a picture's file.

    Attributes:
        what: the phrase for messages: "a git-lfs pointer".
        hint: the next step.
        is_usable: whether it can be decoded all the same.
    """

    what: str
    hint: str
    is_usable: bool = False


def find_flaw(path: Path) -> Flaw | None:
    """Return what is wrong with a picture's file; None for nothing that its start and end show.

    Raises OSError where it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        head, size = os.read(descriptor, HEAD), os.lseek(descriptor, 0, os.SEEK_END)
        os.lseek(descriptor, max(0, size - len(_IEND)), os.SEEK_SET)
        tail = os.read(descriptor, len(_IEND))
    finally:
        os.close(descriptor)
    if (
        (head.startswith(b"\x89PNG\r\n\x1a\n") and tail == _IEND and size > 66)  # one pixel
        or (head.startswith(_JPEG) and tail.endswith(_EOI))
        or (head.startswith(b"GIF8") and tail.endswith(b";"))
        or (head[8:12] == b"WEBP" and size == int.from_bytes(head[4:8], "little") + 8)
        or (head.startswith(b"BM") and size == int.from_bytes(head[2:6], "little"))
    ):
        return None
    if head.startswith(_JPEG):
        is_usable = _has_end_mark(path.read_bytes())
        return Flaw(_NO_END if is_usable else _CUT_OFF, _GET_AGAIN, is_usable)
    return _explain_other(path, head)


def find_unusable(paths: Mapping[str, Path], judged: Collection[Path] = ()) -> dict[str, Flaw]:
    """Return name → flaw of those files at ``paths`` that cannot be used, ``judged`` ones passed over."""
    found: dict[str, Flaw] = {}
    for name, path in paths.items():
        with suppress(OSError):  # whoever reads the content names the file
            if path not in judged and (flaw := find_flaw(path)) and not flaw.is_usable:
                found[name] = flaw
    return found


def judged_files(manifest: Manifest | None) -> set[Path]:
    """Return the files that were found to be pictures when they were converted."""
    if manifest is None or manifest.was_changed or not manifest.result.get("judged_images"):
        return set()
    return {manifest.folder / name for name in manifest.files}


def describe(flaws: Mapping[str, Flaw]) -> str:
    """Return the names of files with their flaws, a few of them."""
    return first_few([f"{name}: {flaw.what}" for name, flaw in flaws.items()])


def advise(flaws: Mapping[str, Flaw]) -> str:
    """Return the next step that helps most of the files."""
    return Counter(flaw.hint for flaw in flaws.values()).most_common(1)[0][0]


def _explain_other(path: Path, head: bytes) -> Flaw | None:
    """Return what is wrong with a file of another kind, or with an odd end; None if Pillow loads it."""
    if b"<svg" in head:
        return Flaw("an SVG drawing", _SAVE_AS)
    if substitute := recognize_substitute(head):
        return Flaw(*substitute)
    is_known = head.startswith((b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*", b"II+", b"MM\0"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            open_image(path)
        may_be_longer = head.startswith((b"\x89PNG", b"GIF8", b"RIFF"))
        return Flaw(_NO_END, _GET_AGAIN, is_usable=True) if may_be_longer else None
    except ImportError:
        if is_known:
            return Flaw("a picture that only Pillow can judge", "run `pip install pillow`")
    except Exception:  # Pillow raises whatever a file leads it to
        if is_known:
            return Flaw(_CUT_OFF, _GET_AGAIN)
    if head[4:8] == b"ftyp":
        return Flaw("a picture or video of a kind that is not read (HEIC or the like)", _SAVE_AS)
    is_text = not set(head) & {*range(9), *range(14, 27), *range(28, 32)}
    return Flaw("a text file" if is_text else "not a picture", "put the picture itself in its place")


def _has_end_mark(content: bytes) -> bool:
    """Return whether the end mark of a JPEG is there; that of a thumbnail in the headers does not count."""
    at = 2  # see ITU-T T.81, B.1
    while content[at : at + 1] == b"\xff" and content[at + 1 : at + 2] != b"\xda":
        is_fill = content[at + 1 : at + 2] == b"\xff"
        at += 1 if is_fill else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return content.find(_EOI, at) >= 0

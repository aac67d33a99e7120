"""Checks of the files where pictures should be: whether they are pictures, and reach their end.

Only the first and last bytes of most files are read; Pillow loads those with an unusual start or end. Damage
inside a picture is not noticed here.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mmf_win.console import summarize_list
from mmf_win.images import open_image
from mmf_win.integrity.manifest import Manifest
from mmf_win.sniffing import DOWNLOAD_AGAIN_HINT, HEAD_BYTES, CommandHint, recognize_substitute

_PNG, _IEND = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xae\x42\x60\x82"
_JPEG, _EOI = b"\xff\xd8\xff", b"\xff\xd9"
_REPLACE_HINT = "put the picture itself in its place"
_SIGNATURES_WITH_END_MARK = (b"\x89PNG", _JPEG, b"GIF8", b"RIFF")
_IMAGE_SIGNATURES = (*_SIGNATURES_WITH_END_MARK, b"BM", b"II*", b"II+", b"MM\0")


class Flaw(NamedTuple):
    """A fault of a picture's file.

    Attributes:
        what: the phrase for messages: "a git-lfs pointer".
        hint: the next step.
        is_usable: whether it can be decoded all the same.
    """

    description: str
    hint: str
    is_usable: bool = False


def find_flaw(path: Path) -> Flaw | None:
    """Return what is wrong with a picture's file; None for nothing that its start and end show.

    Raises OSError where it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        head, size = file.read(HEAD_BYTES), file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_IEND)))
        tail = file.read(len(_IEND))
    if (
        (head.startswith(_PNG) and tail == _IEND and size > 66)  # one pixel
        or (head.startswith(_JPEG) and tail.endswith(_EOI))
        or (head.startswith(b"GIF8") and tail.endswith(b";"))
        or (head[8:12] == b"WEBP" and size == int.from_bytes(head[4:8], "little") + 8)
        or (head.startswith(b"BM") and size == int.from_bytes(head[2:6], "little"))
    ):
        return None
    is_drawing = b"<svg" in head
    if not is_drawing and (substitute := recognize_substitute(head)):
        kind, hint = substitute
        return Flaw(kind, _REPLACE_HINT if isinstance(hint, CommandHint) else hint)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            open_image(path)
        if head.startswith(_JPEG) and _EOI not in path.read_bytes():
            raise EOFError  # Pillow has made the rest of the picture grey
    except ImportError:
        if head.startswith(_IMAGE_SIGNATURES):
            return Flaw("a picture that cannot be checked without Pillow", "run `pip install pillow`")
    except Exception:  # Pillow raises whatever a file leads it to
        if head.startswith(_IMAGE_SIGNATURES):
            return Flaw("a picture that is cut off or damaged", DOWNLOAD_AGAIN_HINT)
    else:
        what = "a picture without its end mark, or with other data after it"
        return (
            Flaw(what, DOWNLOAD_AGAIN_HINT, is_usable=True)
            if head.startswith(_SIGNATURES_WITH_END_MARK)
            else None
        )
    if is_drawing or head[4:8] == b"ftyp":  # such as HEIC
        return Flaw(
            "a picture or video of a kind that is not read", "save it as PNG or JPEG under the same name"
        )
    return Flaw("not a picture", _REPLACE_HINT)


def find_unusable_images(paths: Mapping[str, Path], checked_paths: Collection[Path] = ()) -> dict[str, Flaw]:
    """Return name → flaw of those files at ``paths`` that cannot be used, ``judged`` ones passed over."""
    found: dict[str, Flaw] = {}
    for name, path in paths.items():
        with suppress(OSError):  # whoever reads the content names the file
            if path not in checked_paths and (flaw := find_flaw(path)) and not flaw.is_usable:
                found[name] = flaw
    return found


def list_checked_images(manifest: Manifest | None) -> set[Path]:
    """Return the files that were found to be pictures when they were converted."""
    if manifest is None or manifest.was_changed or not manifest.result.get("judged_images"):
        return set()
    return {manifest.folder / name for name in manifest.files}


def describe_flaws(flaws: Mapping[str, Flaw]) -> str:
    """Return the names of files with their flaws, a few of them."""
    return summarize_list([f"{name}: {flaw.description}" for name, flaw in flaws.items()])


def most_common_hint(flaws: Mapping[str, Flaw]) -> str:
    """Return the next step that helps most of the files."""
    return Counter(flaw.hint for flaw in flaws.values()).most_common(1)[0][0]

"""Checks of image files: whether they are images and complete.

Most files are checked by their first and last bytes only; Pillow loads those with an unusual start or end.
Damage inside an image is not detected.
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
_REPLACE_HINT = "replace it with the actual image"
_SIGNATURES_WITH_END_MARK = (b"\x89PNG", _JPEG, b"GIF8", b"RIFF")
_IMAGE_SIGNATURES = (*_SIGNATURES_WITH_END_MARK, b"BM", b"II*", b"II+", b"MM\0")


class Flaw(NamedTuple):
    """Flaw of an image file.

    Attributes:
        description: Phrase for messages: "a git-lfs pointer".
        hint: Next step.
        is_usable: The image can be decoded nevertheless.
    """

    description: str
    hint: str
    is_usable: bool = False


def find_flaw(path: Path) -> Flaw | None:
    """Return the flaw that the start and the end of an image file show, or None."""
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
            raise EOFError  # Pillow fills the rest of the image with grey
    except ImportError:
        if head.startswith(_IMAGE_SIGNATURES):
            return Flaw("an image that cannot be checked without Pillow", "run `pip install pillow`")
    except Exception:  # a damaged file makes Pillow raise errors of any type
        if head.startswith(_IMAGE_SIGNATURES):
            return Flaw("a truncated or damaged image", DOWNLOAD_AGAIN_HINT)
    else:
        kind = "an image without end marker or with trailing data"
        return Flaw(kind, DOWNLOAD_AGAIN_HINT, is_usable=True) if head.startswith(_SIGNATURES_WITH_END_MARK) else None
    if is_drawing or head[4:8] == b"ftyp":  # such as HEIC
        return Flaw("an unsupported image or video format", "save it as PNG or JPEG under the same name")
    return Flaw("not an image", _REPLACE_HINT)


def find_unusable_images(paths: Mapping[str, Path], checked_paths: Collection[Path] = ()) -> dict[str, Flaw]:
    """Return name → flaw of the unusable images in ``paths``, without checking ``checked_paths``."""
    flaws: dict[str, Flaw] = {}
    for name, path in paths.items():
        with suppress(OSError):  # reported when the content is read
            if path not in checked_paths and (flaw := find_flaw(path)) and not flaw.is_usable:
                flaws[name] = flaw
    return flaws


def list_checked_images(manifest: Manifest | None) -> set[Path]:
    """Return the images that were checked at conversion."""
    if manifest is None or manifest.was_changed or not manifest.result.get("judged_images"):
        return set()
    return {manifest.folder / name for name in manifest.files}


def describe_flaws(flaws: Mapping[str, Flaw]) -> str:
    """Return a short list of files with their flaws."""
    return summarize_list([f"{name}: {flaw.description}" for name, flaw in flaws.items()])


def choose_common_hint(flaws: Mapping[str, Flaw]) -> str:
    """Return the hint that helps with most of the files."""
    return Counter(flaw.hint for flaw in flaws.values()).most_common(1)[0][0]

"""The user's own memes: a table of images and texts, as CSV or JSON Lines.

::

    img,text,id,label                    or image for img; id and label may be left out
    photos/cat.jpg,look at this,cat-1,0

    {"img": "photos/cat.jpg", "text": "look at this", "id": "cat-1", "label": 0}

MMF wants annotations with numbers as ids, so each row gets its number; what the user calls it stays beside
that as ``own_id``.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from mmf_win.console import first_few
from mmf_win.dataset.annotations import (
    Row,
    label_of,
    must_be,
    read_objects,
    read_text,
    require_unique,
)
from mmf_win.errors import DatasetError
from mmf_win.files import json_bytes

_COLUMNS = "a table of memes has the columns img (or image) and text, and if you like id and label"
_CSV_LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}  # pandas writes 1.0 where some rows have no label


def read_table(path: Path, *, shown: str | None = None) -> list[Row]:
    """The rows of a table of memes, in its order and numbered from 1.

    ``img`` is the path of the image as the table has it, with ``/``; ``own_id`` is None where the table has
    no id.

    Args:
        path: a ``.csv`` or ``.jsonl`` file in UTF-8.
        shown: what errors call it, where the user knows it by another name.

    Raises:
        DatasetError: the file cannot be read, a row is not what it should be, or two have the same id; it
            names file and line.
    """
    name = shown or str(path)
    if path.suffix.lower() not in (".csv", ".jsonl"):
        raise DatasetError(f"{name}: neither a .csv nor a .jsonl file", hint=_COLUMNS)
    is_csv = path.suffix.lower() == ".csv"
    rows = _csv_rows(name, read_text(path, name)) if is_csv else read_objects(path, name)
    memes = [_meme(f"{name}:{line}", number, line, row) for number, (line, row) in enumerate(rows, 1)]
    if not memes:
        raise DatasetError(f"{name}: there are no memes in it", hint=_COLUMNS)
    require_unique(name, ((meme.own_id, meme.line) for meme in memes if meme.own_id is not None))
    return memes


def find_images(memes: Sequence[Row], folder: Path, *, shown: str) -> list[Row]:
    """The memes with absolute paths to their images, which are looked for from ``folder`` on.

    Args:
        memes: of one table.
        folder: what relative paths begin at.
        shown: what errors call the table.

    Raises:
        DatasetError: images are missing; it names the first of them with their lines.
    """
    found = [replace(meme, img=(folder / meme.img).absolute().as_posix()) for meme in memes]
    missing = [
        f"{meme.img} (line {meme.line})"
        for meme, there in zip(memes, found, strict=True)
        if not Path(there.img).is_file()
    ]
    if missing:
        raise DatasetError(
            f"{shown}: {len(missing)} of {len(memes)} images are missing: {first_few(missing)}",
            hint=f"relative paths begin at {folder.absolute()}",
        )
    return found


def with_own_ids(memes: Sequence[Row]) -> list[Row]:
    """The memes of one table; one without an id is called by the name of its image file.

    Where several have no id and the same file, their numbers tell them apart.
    """
    names = Counter(PurePosixPath(meme.img).name for meme in memes)
    taken = {meme.own_id for meme in memes}

    def own_id(meme: Row) -> str:
        name = PurePosixPath(meme.img).name
        if names[name] > 1 or name in taken:
            name = f"{name}#{meme.id}"
        while name in taken:
            name += "#"
        return name

    return [replace(meme, own_id=meme.own_id or own_id(meme)) for meme in memes]


def write_annotations(path: Path, rows: Iterable[Row]) -> None:
    """Write an annotation file as those of the release, with ``own_id`` where a row has one."""
    with path.open("wb") as file:
        for row in rows:
            value = {"id": row.id, "img": row.img, "label": row.label, "text": row.text, "own_id": row.own_id}
            file.write(json_bytes({key: known for key, known in value.items() if known is not None}))


def annotations_beside(csv: Path) -> Path:
    """Where the annotations of own memes are kept beside their predictions; there is none for a split."""
    return csv.with_suffix(".memes.jsonl")


def _csv_rows(name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    header = text.partition("\n")[0]
    # Excel separates by the semicolon where the comma is the decimal sign.
    delimiter = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = [column.strip().lower() for column in next(reader, [])]
        _require_columns(name, columns)
        start = reader.line_num + 1
        for cells in reader:
            line, start = start, reader.line_num + 1
            if not any(cells):
                continue
            if len(cells) != len(columns):
                raise DatasetError(f"{name}:{line}: {len(cells)} values in {len(columns)} columns")
            row: dict[str, Any] = {c: cell or None for c, cell in zip(columns, cells, strict=True)}
            label = row.get("label")
            yield line, row | {"label": _CSV_LABELS.get(str(label), label)}
    except csv.Error as error:
        raise DatasetError(f"{name}:{reader.line_num}: not CSV: {error}") from None


def _require_columns(name: str, columns: list[str]) -> None:
    known = [column for column in columns if column in ("img", "image", "text", "id", "label")]
    if len(set(known)) < len(known) or {"img", "image"} <= set(known):
        raise DatasetError(f"{name}: a column is there twice: {', '.join(known)}", hint=_COLUMNS)
    if "text" not in known or not {"img", "image"} & set(known):
        raise DatasetError(f"{name}: its columns are {', '.join(columns)}", hint=_COLUMNS)


def _meme(where: str, number: int, line: int, row: Mapping[str, Any]) -> Row:
    column = "img" if "img" in row else "image"
    if {"img", "image"} <= row.keys():
        raise DatasetError(f'{where}: it has "img" and "image"', hint=_COLUMNS)
    image, text = row.get(column), row.get("text")
    if not isinstance(image, str) or not image or "\0" in image:
        raise must_be(where, column, "the path of an image", image)
    if "text" not in row or not (text is None or isinstance(text, str)):
        raise must_be(where, "text", "a text", text)
    own_id, label = _own_id(where, row.get("id")), label_of(where, row.get("label"))
    return Row(number, image.replace("\\", "/"), text or "", label, line, own_id)


def _own_id(where: str, value: object) -> str | None:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)  # as pandas writes a column of numbers in which one is missing
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise must_be(where, "id", "a text or a number", value)
    return str(value)

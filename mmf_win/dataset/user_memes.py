"""User-provided memes: a table of images and texts, as CSV or JSON Lines.

::

    img,text,id,label                    "image" is accepted for "img"; id and label are optional
    photos/cat.jpg,look at this,cat-1,0

    {"img": "photos/cat.jpg", "text": "look at this", "id": "cat-1", "label": 0}

MMF requires integer ids, so each row gets one; the user's id is kept as ``custom_id``. The splits of a
dataset may also be such tables. Their ids are kept if all ids of the split are integers. Otherwise they are
replaced by numbers, the same for a meme in every split. Images become files below ``img``.
"""

from __future__ import annotations

import csv
import io
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from mmf_win.archives.names import collision_key, group_colliding_names
from mmf_win.console import summarize_list
from mmf_win.dataset.annotations import (
    MAX_ID,
    AnnotationFile,
    AnnotationRow,
    invalid_value_error,
    parse_integer,
    parse_label,
    parse_objects,
    read_text_and_sha256,
    require_columns,
    require_unique_ids,
)
from mmf_win.dataset.layout import image_name_hint, make_name_matcher
from mmf_win.errors import DatasetError
from mmf_win.files import json_bytes

_COLUMNS_HINT = "use the columns img (or image) and text, and optionally id and label"
_CSV_LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}  # pandas writes 1.0 if some rows have no label


def read_table(path: Path, *, display_name: str | None = None) -> list[AnnotationRow]:
    """Read a ``.csv`` or ``.jsonl`` table in UTF-8.

    Args:
        path: Path of the table.
        display_name: Name in errors, if the user knows the file by another name.

    Returns:
        The rows in order, with ids from 1. ``img`` is the image path in the table, with ``/``; ``custom_id``
        is None if the row has no id.

    Raises:
        DatasetError: The file or a row is invalid, or two rows have the same id; the error names the line.
    """
    name = display_name or str(path)
    if path.suffix.lower() not in (".csv", ".jsonl"):
        raise DatasetError(f"{name}: neither a .csv nor a .jsonl file", hint=_COLUMNS_HINT)
    rows = enumerate(_read_records(path, name), 1)
    memes = [_parse_meme(f"{name}:{line}", number, line, row) for number, (line, row) in rows]
    if not memes:
        raise DatasetError(f"{name}: no memes found", hint=_COLUMNS_HINT)
    require_unique_ids(name, ((meme.custom_id, meme.line) for meme in memes if meme.custom_id is not None))
    return memes


def read_columns(path: Path, display_name: str) -> list[str]:
    """Return the columns of a table, or the keys of the first object of a JSON Lines file."""
    return list(next(_read_records(path, display_name), (0, {}))[1])


def resolve_image_paths(memes: Sequence[AnnotationRow], table: Path) -> list[AnnotationRow]:
    """Return the memes of a table with absolute image paths; relative paths start at the table's folder.

    A name that differs in case or Unicode normal form also matches, if it is the only one.

    Returns:
        The memes, in order.

    Raises:
        DatasetError: Images are missing; the error names the first ones with their lines.
    """
    folder = table.parent

    @cache
    def group_names(path: Path) -> dict[str, list[str]]:
        return group_colliding_names(os.listdir(path) if path.is_dir() else [])  # noqa: PTH208 – only the names are needed

    @cache
    def find_paths(path: Path) -> list[Path]:
        """Return the existing path, or all paths that differ only in case or Unicode normal form."""
        if os.path.exists(path) or path == path.parent:  # noqa: PTH110 – pathlib raises for long names
            return [path]
        parents, name = find_paths(path.parent), collision_key(path.name)
        return [parent / candidate for parent in parents for candidate in group_names(parent).get(name, [])]

    images = {meme.img: [path for path in find_paths(folder / meme.img) if path.is_file()] for meme in memes}
    if missing := [meme for meme in memes if len(images[meme.img]) != 1]:
        names = summarize_list([f"{meme.img} (line {meme.line})" for meme in missing])
        message = f"{table}: {len(missing)} of {len(memes)} images are missing: {names}"
        candidates = (os.path.relpath(path, folder) for meme in missing for path in images[meme.img])
        hint = image_name_hint((meme.img for meme in missing), sorted(name.replace("\\", "/") for name in candidates))
        raise DatasetError(message, hint=hint or f"check the paths; relative paths start at {folder.absolute()}")
    return [replace(meme, img=images[meme.img][0].absolute().as_posix()) for meme in memes]


def assign_custom_ids(memes: Sequence[AnnotationRow]) -> list[AnnotationRow]:
    """Return the memes with an id each: by default, the image's file name, and its number if needed."""
    names = Counter(PurePosixPath(meme.img).name for meme in memes)
    used_ids = {meme.custom_id for meme in memes}

    def choose_id(meme: AnnotationRow) -> str:
        name = PurePosixPath(meme.img).name
        if names[name] > 1 or name in used_ids:
            name = f"{name}#{meme.id}"
        while name in used_ids:
            name += "#"
        return name

    return [replace(meme, custom_id=meme.custom_id or choose_id(meme)) for meme in memes]


def write_annotations(path: Path, rows: Iterable[AnnotationRow]) -> None:
    """Write an annotation file in the format of the release, with ``own_id`` for rows with a custom id."""
    with path.open("wb") as file:
        for row in rows:
            fields = {"id": row.id, "img": row.img, "label": row.label, "text": row.text, "own_id": row.custom_id}
            file.write(json_bytes({key: field for key, field in fields.items() if field is not None}))


def user_annotations_path(prediction_file: Path) -> Path:
    """Return the path of the annotations that are saved with predictions of user-provided memes."""
    return prediction_file.with_suffix(".memes.jsonl")


def read_tables(
    staged_files: Mapping[str, Path],
    tables: Mapping[str, str],
    source: Path,
    names: Collection[str],
    used_ids: Collection[int],
) -> tuple[dict[str, list[AnnotationRow]], dict[str, str]]:
    """Read the CSV files of a dataset, with ids and image names for MMF.

    Args:
        staged_files: Split → extracted CSV file.
        tables: Split → name of the file in the source.
        source: Archive or folder.
        names: Names of all files in the source.
        used_ids: Ids of other splits.

    Returns:
        The rows of each split, and image → name of its file for the images that were found.

    Raises:
        DatasetError: A file or a row is invalid; the error names file and line.
    """
    rows: dict[str, list[AnnotationRow]] = {}
    images: dict[str, str] = {}
    memes_without_numbers: dict[str, list[AnnotationRow]] = {}
    match = make_name_matcher(names)
    for split, member in tables.items():
        display_name = f"{source}: {member}"
        memes = read_table(staged_files[split], display_name=display_name)
        memes = [_map_image_to_layout(meme, member, display_name, match, images) for meme in memes]
        if any(parse_integer(meme.custom_id) is None for meme in memes):
            memes_without_numbers[split] = memes
            continue
        rows[split] = [replace(meme, id=int(meme.custom_id or ""), custom_id=None) for meme in memes]
        if too_large := [row for row in rows[split] if row.id > MAX_ID]:
            location, id_ = f"{display_name}:{too_large[0].line}", too_large[0].id
            raise DatasetError(f'{location}: "id" must be at most {MAX_ID}, not {id_}')
        require_unique_ids(display_name, ((row.id, row.line) for row in rows[split]))
    numbers: dict[tuple[str | None, str], int] = {}
    largest_id = max([0, *used_ids, *(row.id for listed in rows.values() for row in listed)])
    for split, memes in memes_without_numbers.items():
        rows[split] = [
            replace(row, id=largest_id + numbers.setdefault((row.custom_id, row.img), len(numbers) + 1))
            for row in assign_custom_ids(memes)
        ]
    return rows, images


def _map_image_to_layout(
    meme: AnnotationRow, member: str, display_name: str, match: Callable[[str], str | None], images: dict[str, str]
) -> AnnotationRow:
    """Return the meme with its image name in MMF's layout, and add the image's file to ``images``.

    Raises:
        DatasetError: The path is absolute, or two files would get the same name.
    """
    path = posixpath.normpath(meme.img)
    if posixpath.isabs(path) or re.match(r"[A-Za-z]:", path):
        message = f"{display_name}:{meme.line}: {path} is an absolute path"
        raise DatasetError(message, hint="use image paths that are relative to the CSV file")
    folder = posixpath.dirname(member)
    expected = posixpath.normpath(posixpath.join(folder, path))
    source_name = match(expected)
    if source_name not in (None, expected):
        path = posixpath.relpath(str(source_name), folder or ".")
    relative_path = re.sub(r"^(\.\./)+", "", path)
    image = f"img/{relative_path[4:] if relative_path.lower().startswith('img/') else relative_path}"
    if source_name is not None:
        other = images.setdefault(image, source_name)
        if other != source_name:
            message = f"{display_name}:{meme.line}: {source_name} and {other} would both become {image}"
            raise DatasetError(message, hint="rename one of the two files, and update the table")
    return replace(meme, img=image, original_img=meme.img)


def require_unique_stems(images: Collection[str], rows: Iterable[AnnotationRow]) -> None:
    """Refuse images that differ only in their suffix, because region features are found by the stem.

    Without mmfw, MMF also confuses the images themselves: see ``get_possible_image_paths`` in
    mmf/datasets/databases/image_database.py.

    Raises:
        DatasetError: One of ``rows`` names one of two such images.
    """
    by_name: dict[str, str] = {}
    display_names = {row.img: row.display_img for row in rows}
    for image in sorted(images):
        other = by_name.setdefault(posixpath.splitext(image)[0], image)
        if other != image and {image, other} & display_names.keys():
            pair = " and ".join(display_names.get(name, name) for name in (other, image))
            message = f"the images {pair} differ only in their suffix, which MMF ignores"
            raise DatasetError(message, hint="rename or remove one of them, and update the table")


def _read_records(path: Path, display_name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix.lower() == ".csv":
        return _parse_csv(display_name, read_text_and_sha256(path, display_name)[0])
    return parse_objects(AnnotationFile(path, display_name).lines, display_name)


def _parse_csv(display_name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Excel separates by semicolons if the comma is the decimal sign, and may write "sep=;" as the first line.
    separator_line = re.match(r"sep=(.)\r?\n", text, re.IGNORECASE)
    delimiter = separator_line[1] if separator_line else max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        if separator_line:
            next(reader)
        columns = [column.strip().lower() for column in next(reader, [])]
        known_columns = [column for column in columns if column in ("img", "image", "text", "id", "label")]
        if len(set(known_columns)) < len(known_columns) or {"img", "image"} <= set(known_columns):
            raise DatasetError(f"{display_name}: a column occurs twice: {', '.join(known_columns)}", hint=_COLUMNS_HINT)
        require_columns(display_name, columns, "image" if "image" in columns else "img", "text", hint=_COLUMNS_HINT)
        start = reader.line_num + 1
        for cells in reader:
            line, start = start, reader.line_num + 1
            if not any(cells):
                continue
            if len(cells) != len(columns):
                raise DatasetError(f"{display_name}:{line}: {len(cells)} values in {len(columns)} columns")
            row: dict[str, Any] = {c: cell or None for c, cell in zip(columns, cells, strict=True)}
            if "label" in row:
                row["label"] = _CSV_LABELS.get(str(row["label"]), row["label"])
            yield line, row
    except csv.Error as error:
        raise DatasetError(f"{display_name}:{reader.line_num}: not CSV: {error}") from None


def _parse_meme(location: str, number: int, line: int, row: Mapping[str, Any]) -> AnnotationRow:
    column = "image" if "image" in row else "img"
    if {"img", "image"} <= row.keys():
        raise DatasetError(f'{location}: both "img" and "image" are given', hint=_COLUMNS_HINT)
    require_columns(location, row, column, "text")
    image, text = row[column], row["text"]
    if not isinstance(image, str) or not image or "\0" in image:
        raise invalid_value_error(location, column, "an image path", image)
    if not (text is None or isinstance(text, str)):
        raise invalid_value_error(location, "text", "a string", text)
    custom_id = row.get("id")
    if isinstance(custom_id, float) and custom_id.is_integer():
        custom_id = int(custom_id)  # pandas writes a column of integers with a missing value as floats
    if isinstance(custom_id, bool) or not isinstance(custom_id, (str, int, type(None))):
        raise invalid_value_error(location, "id", "a string or an integer", custom_id)
    custom_id = None if custom_id in (None, "") else str(custom_id)
    label = parse_label(location, row.get("label"))
    return AnnotationRow(number, image.replace("\\", "/"), text or "", label, line, custom_id)

"""The user's own memes: a table of images and texts, as CSV or JSON Lines.

::

    img,text,id,label                    or image for img; id and label may be left out
    photos/cat.jpg,look at this,cat-1,0

    {"img": "photos/cat.jpg", "text": "look at this", "id": "cat-1", "label": 0}

MMF wants numbers as ids, so each row gets one; what the user calls it stays beside that as ``choose_id``. The
splits of a dataset may be such tables, too: there, ids stay where all of a split's are whole numbers, others
give way to numbers that are the same for a meme in every split, and images become files below ``img``.
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

_COLUMNS_HINT = "a table of memes has the columns img (or image) and text, and if you like id and label"
_CSV_LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}  # pandas writes 1.0 where some rows have no label


def read_table(path: Path, *, display_name: str | None = None) -> list[AnnotationRow]:
    """The rows of a ``.csv`` or ``.jsonl`` file in UTF-8, in its order and numbered from 1.

    ``img`` is the path of the image as the table has it, with ``/``; ``choose_id`` is None where the table
    has no id. Errors call the file ``shown``, where the user knows it by another name. Raises DatasetError
    where
    it cannot be read, a row is not what it should be, or two have the same id; that names file and line.
    """
    name = display_name or str(path)
    if path.suffix.lower() not in (".csv", ".jsonl"):
        raise DatasetError(f"{name}: neither a .csv nor a .jsonl file", hint=_COLUMNS_HINT)
    rows = enumerate(_read_records(path, name), 1)
    memes = [_parse_meme(f"{name}:{line}", number, line, row) for number, (line, row) in rows]
    if not memes:
        raise DatasetError(f"{name}: there are no memes in it", hint=_COLUMNS_HINT)
    require_unique_ids(name, ((meme.custom_id, meme.line) for meme in memes if meme.custom_id is not None))
    return memes


def read_columns(path: Path, display_name: str) -> list[str]:
    """Return the columns of a table, or the keys of its first object if it is JSON Lines."""
    return list(next(_read_records(path, display_name), (0, {}))[1])


def resolve_image_paths(memes: Sequence[AnnotationRow], table: Path) -> list[AnnotationRow]:
    """Return the memes of a table with absolute paths to their images; relative ones begin at its folder.

    An image is also found by a name that differs in case or Unicode normal form, if only one does. Raises
    DatasetError where images are missing; it names the first of them with their lines.
    """
    folder = table.parent

    @cache
    def group_names(path: Path) -> dict[str, list[str]]:
        return group_colliding_names(os.listdir(path) if path.is_dir() else [])  # noqa: PTH208 – only names are wanted

    @cache
    def find_paths(path: Path) -> list[Path]:
        """Return the file or folder at a path, or all whose paths look the same."""
        if os.path.exists(path) or path == path.parent:  # noqa: PTH110 – pathlib raises for long names
            return [path]
        parents, name = find_paths(path.parent), collision_key(path.name)
        return [parent / each for parent in parents for each in group_names(parent).get(name, [])]

    images = {meme.img: [each for each in find_paths(folder / meme.img) if each.is_file()] for meme in memes}
    if missing := [meme for meme in memes if len(images[meme.img]) != 1]:
        names = summarize_list([f"{meme.img} (line {meme.line})" for meme in missing])
        message = f"{table}: {len(missing)} of {len(memes)} images are missing: {names}"
        twins = (os.path.relpath(each, folder) for meme in missing for each in images[meme.img])
        hint = image_name_hint(
            (meme.img for meme in missing), sorted(name.replace("\\", "/") for name in twins)
        )
        raise DatasetError(message, hint=hint or f"relative paths begin at {folder.absolute()}")
    return [replace(meme, img=images[meme.img][0].absolute().as_posix()) for meme in memes]


def assign_custom_ids(memes: Sequence[AnnotationRow]) -> list[AnnotationRow]:
    """The memes of one table; one without an id is called by its image file, and by its number if need be."""
    names = Counter(PurePosixPath(meme.img).name for meme in memes)
    taken = {meme.custom_id for meme in memes}

    def choose_id(meme: AnnotationRow) -> str:
        name = PurePosixPath(meme.img).name
        if names[name] > 1 or name in taken:
            name = f"{name}#{meme.id}"
        while name in taken:
            name += "#"
        return name

    return [replace(meme, custom_id=meme.custom_id or choose_id(meme)) for meme in memes]


def write_annotations(path: Path, rows: Iterable[AnnotationRow]) -> None:
    """Write an annotation file as those of the release, with ``choose_id`` where a row has one."""
    with path.open("wb") as file:
        for row in rows:
            value = {
                "id": row.id,
                "img": row.img,
                "label": row.label,
                "text": row.text,
                "own_id": row.custom_id,
            }
            file.write(json_bytes({key: known for key, known in value.items() if known is not None}))


def user_annotations_path(prediction_file: Path) -> Path:
    """Where the annotations of own memes are kept beside their predictions; there is none for a split."""
    return prediction_file.with_suffix(".memes.jsonl")


def read_tables(
    staged_files: Mapping[str, Path],
    tables: Mapping[str, str],
    source: Path,
    names: Collection[str],
    used_ids: Collection[int],
) -> tuple[dict[str, list[AnnotationRow]], dict[str, str]]:
    """The rows of CSV files, with ids and names of images as MMF has them.

    Args:
        staged: split → where its CSV can be read.
        tables: split → its name among the files of the source.
        source: the archive or folder that they are in.
        names: of the files in it.
        taken: ids that other splits have.

    Returns:
        the rows; and image → name of its file, for those that were found.

    Raises:
        DatasetError: a file or a row cannot be used; it names file and line.
    """
    rows: dict[str, list[AnnotationRow]] = {}
    images: dict[str, str] = {}
    unnumbered: dict[str, list[AnnotationRow]] = {}
    match = make_name_matcher(names)
    for split, member in tables.items():
        shown = f"{source}: {member}"
        memes = read_table(staged_files[split], display_name=shown)
        memes = [_map_image_to_layout(meme, member, shown, match, images) for meme in memes]
        if any(parse_integer(meme.custom_id) is None for meme in memes):
            unnumbered[split] = memes
            continue
        rows[split] = [replace(meme, id=int(meme.custom_id or ""), custom_id=None) for meme in memes]
        if too_large := [row for row in rows[split] if row.id > MAX_ID]:
            where, id_ = f"{shown}:{too_large[0].line}", too_large[0].id
            raise DatasetError(f'{where}: "id" must be at most {MAX_ID}, not {id_}')
        require_unique_ids(shown, ((row.id, row.line) for row in rows[split]))
    numbers: dict[tuple[str | None, str], int] = {}
    start = max([0, *used_ids, *(row.id for listed in rows.values() for row in listed)])
    for split, memes in unnumbered.items():
        rows[split] = [
            replace(row, id=start + numbers.setdefault((row.custom_id, row.img), len(numbers) + 1))
            for row in assign_custom_ids(memes)
        ]
    return rows, images


def _map_image_to_layout(
    meme: AnnotationRow,
    member: str,
    display_name: str,
    match: Callable[[str], str | None],
    images: dict[str, str],
) -> AnnotationRow:
    """Return the meme with its image's name in MMF's layout; where that lies is added to ``images``."""
    path = posixpath.normpath(meme.img)
    if posixpath.isabs(path) or re.match(r"[A-Za-z]:", path):
        message = f"{display_name}:{meme.line}: {path} is an absolute path"
        raise DatasetError(message, hint="paths of images are relative to the CSV file")
    folder = posixpath.dirname(member)
    expected = posixpath.normpath(posixpath.join(folder, path))
    found = match(expected)
    if found not in (None, expected):
        path = posixpath.relpath(str(found), folder or ".")
    rest = re.sub(r"^(\.\./)+", "", path)
    image = f"img/{rest[4:] if rest.lower().startswith('img/') else rest}"
    if found is not None:
        other = images.setdefault(image, found)
        if other != found:
            message = f"{display_name}:{meme.line}: {found} and {other} would both become {image}"
            raise DatasetError(message, hint="rename one of the two files, also in the table")
    return replace(meme, img=image, original_img=meme.img)


def require_unique_stems(images: Collection[str], rows: Iterable[AnnotationRow]) -> None:
    """Refuse images that differ in their suffix alone, since region features go by the rest of the name.

    MMF without mmfw also confuses the images themselves: see ``get_possible_image_paths`` in
    mmf/datasets/databases/image_database.py. Raises DatasetError where one of ``rows`` names one of two such.
    """
    by_name: dict[str, str] = {}
    named = {row.img: row.display_img for row in rows}
    for image in sorted(images):
        other = by_name.setdefault(posixpath.splitext(image)[0], image)
        if other != image and {image, other} & named.keys():
            pair = " and ".join(named.get(each, each) for each in (other, image))
            message = f"the images {pair} differ only in their suffix, which MMF ignores"
            raise DatasetError(message, hint="rename or remove one of them, in the table too")


def _read_records(path: Path, display_name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix.lower() == ".csv":
        return _parse_csv(display_name, read_text_and_sha256(path, display_name)[0])
    return parse_objects(AnnotationFile(path, display_name).lines, display_name)


def _parse_csv(display_name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Excel separates by the semicolon where the comma is the decimal sign, and may say so in a line above.
    stated = re.match(r"sep=(.)\r?\n", text, re.IGNORECASE)
    delimiter = stated[1] if stated else max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        if stated:
            next(reader)
        columns = [column.strip().lower() for column in next(reader, [])]
        known = [column for column in columns if column in ("img", "image", "text", "id", "label")]
        if len(set(known)) < len(known) or {"img", "image"} <= set(known):
            raise DatasetError(
                f"{display_name}: a column is there twice: {', '.join(known)}", hint=_COLUMNS_HINT
            )
        require_columns(
            display_name, columns, "image" if "image" in known else "img", "text", hint=_COLUMNS_HINT
        )
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
        raise DatasetError(f'{location}: it has "img" and "image"', hint=_COLUMNS_HINT)
    require_columns(location, row, column, "text")
    image, text = row[column], row["text"]
    if not isinstance(image, str) or not image or "\0" in image:
        raise invalid_value_error(location, column, "the path of an image", image)
    if not (text is None or isinstance(text, str)):
        raise invalid_value_error(location, "text", "a text", text)
    own_id = row.get("id")
    if isinstance(own_id, float) and own_id.is_integer():
        own_id = int(own_id)  # as pandas writes a column of numbers in which one is missing
    if isinstance(own_id, bool) or not isinstance(own_id, (str, int, type(None))):
        raise invalid_value_error(location, "id", "a text or a number", own_id)
    own_id = None if own_id in (None, "") else str(own_id)
    label = parse_label(location, row.get("label"))
    return AnnotationRow(number, image.replace("\\", "/"), text or "", label, line, own_id)

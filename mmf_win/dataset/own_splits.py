"""Splits that a user wrote as CSV: turned into annotations as MMF reads them.

The rows are those of :mod:`mmf_win.dataset.own_memes`. Images may lie in any folder; in MMF's layout they are
below ``img``. Ids stay where all of a split's are whole numbers. Others give way to numbers, the same for a
meme in every split, and stay in the rows as ``own_id``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from mmf_win.dataset.annotations import LARGEST_ID, Row, require_unique, whole_number
from mmf_win.dataset.own_memes import read_table, with_own_ids
from mmf_win.errors import DatasetError


def read_tables(
    staged: Mapping[str, Path],
    tables: Mapping[str, str],
    source: Path,
    names: Collection[str],
    taken: Collection[int],
) -> tuple[dict[str, list[Row]], dict[str, str]]:
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
        DatasetError: a file cannot be read, or a row cannot be used; it names file and line.
    """
    rows: dict[str, list[Row]] = {}
    images: dict[str, str] = {}
    unnumbered: dict[str, list[Row]] = {}
    for split, member in tables.items():
        shown = f"{source}: {member}"
        memes = read_table(staged[split], shown=shown)
        memes = [_in_layout(meme, member, shown, names, images) for meme in memes]
        _require_even_labels(memes, shown)
        if all(whole_number(meme.own_id) is not None for meme in memes):
            rows[split] = _numbered_by_table(memes, shown)
        else:
            unnumbered[split] = memes
    numbers: dict[tuple[str | None, str], int] = {}
    start = max([0, *taken, *(row.id for listed in rows.values() for row in listed)])
    for split, memes in unnumbered.items():
        rows[split] = [
            replace(row, id=start + numbers.setdefault((row.own_id, row.img), len(numbers) + 1))
            for row in with_own_ids(memes)
        ]
    return rows, images


def _in_layout(meme: Row, member: str, shown: str, names: Collection[str], images: dict[str, str]) -> Row:
    """The meme with its image's name in MMF's layout; where that lies is added to ``images``."""
    path = posixpath.normpath(meme.img)
    if posixpath.isabs(path) or re.match(r"[A-Za-z]:", path):
        raise DatasetError(
            f"{shown}:{meme.line}: {path} is an absolute path",
            hint="paths of images are relative to the CSV file",
        )
    found = posixpath.normpath(posixpath.join(posixpath.dirname(member), path))
    rest = re.sub(r"^(\.\./)+", "", path)
    image = rest if rest.startswith("img/") else f"img/{rest}"
    if found in names:
        other = images.setdefault(image, found)
        if other != found:
            raise DatasetError(f"{shown}:{meme.line}: {found} and {other} would both become {image}")
    return replace(meme, img=image)


def require_names_apart(images: Collection[str], named: Collection[str]) -> None:
    """Refuse images that differ in their suffix alone, since region features go by the rest of the name.

    MMF without mmfw also confuses the images themselves: see ``get_possible_image_paths`` in
    mmf/datasets/databases/image_database.py.

    Args:
        images: all that there are.
        named: those in the rows.

    Raises:
        DatasetError: two have the same name but for their suffix, and a row has one of them.
    """
    by_name: dict[str, str] = {}
    for image in sorted(images):
        other = by_name.setdefault(posixpath.splitext(image)[0], image)
        if other != image and {image, other} & set(named):
            raise DatasetError(
                f"the images {other} and {image} differ only in their suffix, by which MMF does not tell "
                "region features apart, nor without mmfw the images",
                hint="rename one of them, or take it out",
            )


def _require_even_labels(memes: Collection[Row], shown: str) -> None:
    without = [meme for meme in memes if meme.label is None]
    if 0 < len(without) < len(memes):
        raise DatasetError(
            f"{shown}:{without[0].line}: no label, as {len(without)} of {len(memes)} rows",
            hint="a split has labels in all of its rows, or in none",
        )


def _numbered_by_table(memes: Collection[Row], shown: str) -> list[Row]:
    rows = [replace(meme, id=int(meme.own_id or ""), own_id=None) for meme in memes]
    for row in rows:
        if row.id > LARGEST_ID:
            raise DatasetError(f'{shown}:{row.line}: "id" must be at most {LARGEST_ID}, not {row.id}')
    require_unique(shown, ((row.id, row.line) for row in rows))
    return rows

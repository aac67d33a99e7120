"""Annotation files of Hateful Memes: one JSON object per line, one file per split.

The current release writes ids as zero-padded strings, the challenge's first phase as numbers::

    {"id": "08291", "img": "img/08291.png", "label": 1, "text": "..."}
    {"id": 8291, "img": "img/08291.png", "label": 1, "text": "..."}

Both name the meme 8291: MMF converts ids to ``int``, and writes integers into its predictions. Rows that mmfw
converted from a user's table may also have ``own_id``, the user's name of the meme.

Other programs write a JSON list, a byte order mark, or ``null`` for an unknown label. mmfw reads all of them,
and so does MMF with a patch.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from mmf_win.console import format_command, suggestion_hint
from mmf_win.errors import DatasetError, NoValidationSplitError
from mmf_win.paths import DatasetPaths, data_dir_arguments
from mmf_win.unpacking.staging import require_complete_install

_log = logging.getLogger(__name__)

#: Splits of phase 1 (train, dev, test) and of phase 2, by the stems of their files.
SPLITS = ("train", "dev", "test", "dev_seen", "dev_unseen", "test_seen", "test_unseen")

_CSV_HEADER = re.compile(r"\W*(id|img|text|label)\W*[,;\t].*", re.IGNORECASE)
_CSV_HINT = "rename the file to end in .csv; user data may be CSV"
_JSON_LINES_HINT = 'write one JSON object per line: {"id": 1, "img": "img/1.png", "text": "…", "label": 0}'
_UTF8_HINT = "save it as UTF-8 (“CSV UTF-8” in Excel)"
_TEXT_IDS_HINT = "save the table as CSV with the columns id, img, text and label; in CSV, ids may be any text"
_LABEL_HINT = "write 1 for hateful and 0 for not, without quotes; if a meme has several labels, use the majority"
_COLUMN_SYNONYMS = {
    "id": ("meme_id", "image_id", "uid", "index"),
    "img": ("image", "image_path", "img_path", "file", "filename", "file_name", "image_name", "path"),
    "text": ("texts", "caption", "sentence", "ocr", "ocr_text", "transcription", "content", "tweet_text"),
    "label": ("labels", "hateful", "gold_hate", "is_hateful", "hate", "class", "target"),
}
_MAX_SHOWN_CHARACTERS = 100
_DIGITS = re.compile(r"[0-9]{1,18}")
#: MMF stores ids as 32-bit integers.
MAX_ID = 2**31 - 1

# In order of preference. MMF 1.0.0rc12 validates on dev_unseen and tests on test_unseen.
_VALIDATION_SPLITS = ("dev_unseen", "dev_seen", "dev")
_TEST_SPLITS = ("test_unseen", "test_seen", "test")


@dataclass(frozen=True)
class AnnotationRow:
    """One meme.

    Attributes:
        id: Unique within the split, independent of its notation in the file.
        img: Image path, relative to the images folder: ``img/01235.png``.
        text: Text on the meme.
        label: 1 hateful, 0 not hateful, None in a split published without labels.
        line: Line number in the file, or position in a JSON list, from 1.
        custom_id: The user's name of the meme, if it is not the id.
        original_img: The image's name in the user's table, if it is not ``img``.
    """

    id: int
    img: str
    text: str
    label: int | None
    line: int
    custom_id: str | None = None
    original_img: str | None = None

    @property
    def display_img(self) -> str:
        """Name of the image in messages."""
        return self.original_img or self.img

    @property
    def display_id(self) -> str:
        """Name of the meme in prediction files and on pages."""
        return str(self.id) if self.custom_id is None else self.custom_id


class AnnotationFile:
    """Annotation file, read once for its rows and its hash.

    Args:
        path: Path of the file.
        display_name: Name in errors, if the user knows the file by another name.

    Attributes:
        lines: The lines that are not blank, or the items of a JSON list, with their numbers from 1.
        sha256: SHA-256 of the file, in hexadecimal digits.

    Raises:
        DatasetError: The file cannot be read.
    """

    def __init__(self, path: Path, display_name: str | None = None) -> None:
        self.path, self._display_name = path, display_name or str(path)
        text, self.sha256 = read_text_and_sha256(path, self._display_name)
        self.lines = _split_lines(text, self._display_name)

    @cached_property
    def rows(self) -> list[AnnotationRow]:
        """Memes in the order of the file.

        Raises:
            DatasetError: A line is invalid, or two lines have the same id; the error names file and line.
        """
        name = self._display_name
        rows = [_parse_row(f"{name}:{number}", number, value) for number, value in parse_objects(self.lines, name)]
        require_unique_ids(name, ((row.id, row.line) for row in rows))
        return rows


def read_annotations(path: Path, *, display_name: str | None = None) -> list[AnnotationRow]:
    """Return the rows of an annotation file; arguments and errors are those of :class:`AnnotationFile`."""
    return AnnotationFile(path, display_name).rows


def require_unique_ids(display_name: str, ids: Iterable[tuple[int | str, int]]) -> None:
    """Refuse two rows with the same id; ``ids`` has ids with line numbers.

    Raises:
        DatasetError: An id occurs twice.
    """
    lines: dict[int | str, int] = {}
    for id_, line in ids:
        if (earlier := lines.setdefault(id_, line)) != line:
            message = f"{display_name}:{line}: id {id_} is already in line {earlier}"
            raise DatasetError(message, hint="give each meme an id of its own")


def keep_rows(path: Path, rows: list[AnnotationRow]) -> None:
    """Rewrite an annotation file with only the lines of ``rows`` and with the image names of ``rows``."""
    images = {row.line: row.img for row in rows}
    kept = [(json.loads(line), line, images[n]) for n, line in AnnotationFile(path).lines if n in images]
    lines = [
        line if value["img"] == image else json.dumps(value | {"img": image}, ensure_ascii=False)
        for value, line, image in kept
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def to_mmf_annotations(file: AnnotationFile) -> list[dict[str, Any]]:
    """Return the annotations with labels for all rows or for none, as MMF requires."""
    rows: list[dict[str, Any]] = [json.loads(line) for _, line in file.lines]
    if any(row.get("label") is None for row in rows):
        for row in rows:
            row.pop("label", None)
    return rows


def list_splits(paths: DatasetPaths) -> list[str]:
    """Return the splits with annotation files in MMF's layout: published splits first, then others."""
    existing = {path.stem for path in paths.annotations.glob("[!.]*.jsonl") if path.is_file()}
    return [split for split in SPLITS if split in existing] + sorted(existing.difference(SPLITS))


def require_split(paths: DatasetPaths, split: str) -> Path:
    """Return the annotation file of a split.

    Raises:
        DatasetError: There is no such split, or no dataset.
    """
    require_complete_install(paths.root)
    file = paths.annotation_file(split)
    if file.stem == split and file.is_file():  # a split is a name, not a path
        return file
    existing = list_splits(paths)
    if not existing:
        raise DatasetError(f"no Hateful Memes dataset in {paths.data_dir}", hint=missing_dataset_hint(paths))
    suggestion = "pass --split once per split; " if "," in split else suggestion_hint(Path(split).stem, existing)
    hint = f"{suggestion}choose one of {', '.join(existing)}"
    raise DatasetError(f"{paths.annotations}: no split named {split}", hint=hint)


def missing_dataset_hint(paths: DatasetPaths) -> str:
    """Return a hint for a missing dataset: a data folder above or below that has one, or how to convert."""
    data_dir = paths.data_dir
    with suppress(OSError):  # a folder may not be readable
        for folder in (*data_dir.parents, *sorted(data_dir.glob("*"))):
            if DatasetPaths.from_data_dir(folder).annotation_file("train").is_file():
                return f"pass `{format_command('--data-dir', folder)}` to use the dataset there"
    convert_command = format_command("mmfw", "convert", "--zip", "ARCHIVE", *data_dir_arguments(data_dir))
    return f"run `{convert_command}`, or pass the data folder with --data-dir"


def collect_labels(rows: Iterable[AnnotationRow]) -> list[int] | None:
    """Return the label of each row, or None if there are no rows or one has no label."""
    labels = [row.label for row in rows]
    known_labels = [label for label in labels if label is not None]
    return known_labels if known_labels and len(known_labels) == len(labels) else None


def choose_splits(paths: DatasetPaths) -> dict[str, str]:
    """Choose the annotation files for MMF's ``train``, ``val`` and ``test``.

    Splits of phase 2 are preferred. ``test`` is named even if it does not exist: training does not need it.

    Returns:
        MMF's split → stem of the annotation file.

    Raises:
        DatasetError: There is no training split.
        NoValidationSplitError: There is no validation split.
    """
    require_complete_install(paths.root)
    existing = list_splits(paths)
    val = next((split for split in _VALIDATION_SPLITS if split in existing), None)
    if "train" not in existing:
        no_train = f"{paths.annotations}: train.jsonl not found"
        no_dataset = f"no Hateful Memes dataset in {paths.data_dir}"
        raise DatasetError(no_train if existing else no_dataset, hint=missing_dataset_hint(paths))
    if val is None:
        message = f"{paths.annotations}: no validation split (dev_unseen, dev_seen or dev)"
        command = format_command("mmfw", "convert", "--force", "--zip", "ARCHIVE", *data_dir_arguments(paths.data_dir))
        hint = f"add dev.csv or dev.jsonl to the files that were converted, then run `{command}`"
        raise NoValidationSplitError(message, hint=hint)
    return {"train": "train", "val": val, "test": next((s for s in _TEST_SPLITS if s in existing), _TEST_SPLITS[0])}


def _split_lines(text: str, display_name: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, or the items of a JSON list, numbered from 1."""
    if text.lstrip().startswith("["):
        try:
            items: list[Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{display_name}: not JSON: {error}") from None
        return [(n, json.dumps(item, ensure_ascii=False)) for n, item in enumerate(items, 1)]
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def read_text_and_sha256(path: Path, display_name: str) -> tuple[str, str]:
    """Read a UTF-8 file, with or without a byte order mark.

    Returns:
        The text without the mark, and the file's SHA-256.

    Raises:
        DatasetError: The file cannot be read or has another encoding; the error calls it ``display_name``.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{display_name}: {error.strerror}") from None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DatasetError(f"{display_name}: encoded in UTF-16 (as PowerShell's > writes), not UTF-8", hint=_UTF8_HINT)
    try:
        return content.decode("utf-8-sig"), hashlib.sha256(content).hexdigest()
    except UnicodeDecodeError:
        raise DatasetError(f"{display_name}: not a text file in UTF-8", hint=_UTF8_HINT) from None


def parse_objects(lines: Iterable[tuple[int, str]], display_name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and JSON object of each line, or raise ``DatasetError`` for an invalid line."""
    for number, line in lines:
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == 1 and _CSV_HEADER.fullmatch(line):
                raise DatasetError(f"{display_name}: CSV, not JSON Lines", hint=_CSV_HINT) from None
            raise DatasetError(f"{display_name}:{number}: not JSON: {error}", hint=_JSON_LINES_HINT) from None
        if not isinstance(value, dict):
            raise DatasetError(f"{display_name}:{number}: not a JSON object", hint=_JSON_LINES_HINT)
        for key, item in value.items():  # all keys, because a conversion may write them
            if not is_valid_unicode(json.dumps([key, item], ensure_ascii=False)):
                expected = "valid Unicode without unpaired surrogates"
                raise invalid_value_error(f"{display_name}:{number}", key, expected, item)
        yield number, value


def _parse_row(location: str, line: int, value: Mapping[str, Any]) -> AnnotationRow:
    require_columns(location, value, "id", "img", "text")
    id_, img, text, custom_id = (value.get(key) for key in ("id", "img", "text", "own_id"))
    id_number = parse_integer(id_)
    if id_number is None or abs(id_number) > MAX_ID:
        hint = _TEXT_IDS_HINT if isinstance(id_, str) else None
        raise invalid_value_error(location, "id", f"an integer of at most {MAX_ID}", id_, hint)
    if not isinstance(img, str) or not img:
        raise invalid_value_error(location, "img", "an image path", img)
    if not isinstance(text, str):
        raise invalid_value_error(location, "text", "a string", text, 'write "" if there is none')
    if custom_id is not None and not isinstance(custom_id, str):
        raise invalid_value_error(location, "own_id", "a string", custom_id)
    return AnnotationRow(id_number, img, text, parse_label(location, value.get("label")), line, custom_id)


def is_valid_unicode(text: str) -> bool:
    """Return whether a text has no unpaired surrogates, which programs that cut texts leave behind."""
    return re.search(r"[\ud800-\udfff]", text) is None


def require_columns(location: str, columns: Iterable[str], *required: str, hint: str = _JSON_LINES_HINT) -> None:
    """Require columns of a table or keys of a JSON object.

    Raises:
        DatasetError: A ``required`` column is missing; the error names the existing ones.
    """
    if missing := [key for key in required if key not in columns]:
        message = f'{location}: no column "{missing[0]}"; the columns are {", ".join(columns)}'
        raise DatasetError(message, hint=_rename_columns_hint(columns, *missing) or hint)


def _rename_columns_hint(columns: Iterable[str], *missing: str) -> str | None:
    """Return a hint to rename columns with a synonym of a ``missing`` name, or None if there are none."""
    renamed_columns: dict[str, str] = {}
    for key, column in product(missing, columns):
        if column != key and column.lower() in (key, *_COLUMN_SYNONYMS[key]):
            renamed_columns.setdefault(key, column)
    renames = [f'{json.dumps(column)} to "{key}"' for key, column in renamed_columns.items()]
    return f"rename {', '.join(renames)}" if renames else None


def require_labels(display_name: str, split: str, rows: Sequence[AnnotationRow], columns: Collection[str] = ()) -> None:
    """Require labels, except in a test split, for which a warning is logged.

    The columns of the first row are used in the hint.

    Raises:
        DatasetError: Rows of a training or validation split have no label.
    """
    unlabelled = [row.line for row in rows if row.label is None]
    if not unlabelled:
        return
    message = f"{display_name}:{unlabelled[0]}: {len(unlabelled)} of {len(rows)} rows have no label"
    hint = _rename_columns_hint(columns, "label")
    if len(unlabelled) < len(rows):
        hint = "give these rows the label 0 or 1, or remove them"
    elif columns:
        message += f"; the columns are {', '.join(columns)}"
    if not split.startswith("test"):
        raise DatasetError(message, hint=hint or f"add labels for training and validation; {_LABEL_HINT}")
    if hint:
        _log.warning("%s; using %s as a split without labels (to change this, %s)", message, split, hint)


def invalid_value_error(location: str, key: str, expected: str, value: object, hint: str | None = None) -> DatasetError:
    """Return the error for an invalid value; ``location`` is the file and line."""
    text = json.dumps(value)
    text = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
    return DatasetError(f"{location}: {json.dumps(key)} must be {expected}, not {text}", hint=hint)


def parse_label(location: str, value: object) -> int | None:
    """Return a label of a JSON file, or raise ``DatasetError``; ``true`` and ``"1"`` are invalid."""
    if value is None:
        return None
    # pandas writes 1.0 and 0.0 if some rows of a column have no label.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value not in (0, 1):
        raise invalid_value_error(location, "label", "0 or 1", value, _LABEL_HINT)
    return int(value)


def parse_integer(value: object) -> int | None:
    """Return an integer, or the value of a string of digits, or None for anything else."""
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None

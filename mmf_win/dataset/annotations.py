"""The annotation files of Hateful Memes: one JSON object a line, one file a split.

The release that can be had today writes ids as zero-padded strings, the challenge's first phase as numbers::

    {"id": "08291", "img": "img/08291.png", "label": 1, "text": "..."}
    {"id": 8291, "img": "img/08291.png", "label": 1, "text": "..."}

Both name the meme 8291: MMF takes ``int`` of either, and writes whole numbers into its predictions. Rows that
mmfw made of a user's own table may also have ``custom_id``, what the user calls the meme instead.

Other programs write a JSON list, a byte order mark, or ``null`` for a label that is not known. All of that is
read, here and, by a patch, in MMF.
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

#: The splits of phase 1 (train, dev, test) and of phase 2, as their files are named.
SPLITS = ("train", "dev", "test", "dev_seen", "dev_unseen", "test_seen", "test_unseen")

_CSV_HEADER = re.compile(r"\W*(id|img|text|label)\W*[,;\t].*", re.IGNORECASE)
_CSV_HINT = "let its name end in .csv; a conversion, and a prediction of memes of your own, take CSV"
_JSON_LINES_HINT = 'each line is one JSON object: {"id": 1, "img": "img/1.png", "text": "…", "label": 0}'
_UTF8_HINT = "save it as UTF-8; Excel calls that “CSV UTF-8”"
_TEXT_IDS_HINT = "save the table as CSV, whose ids may be any text, with the columns id, img, text and label"
_LABEL_HINT = (
    "write 1 for hateful, 0 for not, without quotes; if a meme has several labels, take the majority"
)
_COLUMN_SYNONYMS = {
    "id": ("meme_id", "image_id", "uid", "index"),
    "img": ("image", "image_path", "img_path", "file", "filename", "file_name", "image_name", "path"),
    "text": ("texts", "caption", "sentence", "ocr", "ocr_text", "transcription", "content", "tweet_text"),
    "label": ("labels", "hateful", "gold_hate", "is_hateful", "hate", "class", "target"),
}
_MAX_SHOWN_CHARACTERS = 100
_DIGITS = re.compile(r"[0-9]{1,18}")
#: MMF keeps ids in 32 bits.
MAX_ID = 2**31 - 1

# MMF 1.0.0rc12 validates on dev_unseen and tests on test_unseen; the others stand in where these are not.
_VALIDATION_SPLITS = ("dev_unseen", "dev_seen", "dev")
_TEST_SPLITS = ("test_unseen", "test_seen", "test")


@dataclass(frozen=True)
class AnnotationRow:
    """One meme.

    Attributes:
        id: unique within its split, whichever way the file writes it.
        img: the image, relative to the images folder: ``img/01235.png``.
        text: what is written on it.
        label: 1 hateful, 0 not, None where the split was published without labels.
        line: where it stands in its file, counted from 1; in a JSON list, which of its items it is.
        own_id: what the user calls the meme, where that is not its id.
        written_img: how the user's table names the image, where that is not ``img``.
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
        """The image's name in messages."""
        return self.original_img or self.img

    @property
    def display_id(self) -> str:
        """The meme's name in prediction files and on pages."""
        return str(self.id) if self.custom_id is None else self.custom_id


class AnnotationFile:
    """An annotation file that was read, once for all who need its rows or its hash.

    Raises DatasetError where it cannot be read.

    Args:
        path: where it lies.
        shown: what errors call it, where the user knows it by another name.

    Attributes:
        lines: those that are not blank, or the items of a JSON list, each with its number, from 1.
        sha256: the hash of the file, in hexadecimal digits.
    """

    def __init__(self, path: Path, display_name: str | None = None) -> None:
        self.path, self._display_name = path, display_name or str(path)
        text, self.sha256 = read_text_and_sha256(path, self._display_name)
        self.lines = _split_lines(text, self._display_name)

    @cached_property
    def rows(self) -> list[AnnotationRow]:
        """The memes, in the order of the file.

        Raises DatasetError where a line is not what it should be, or two have the same id; that names file
        and line.
        """
        name = self._display_name
        rows = [
            _parse_row(f"{name}:{number}", number, value) for number, value in parse_objects(self.lines, name)
        ]
        require_unique_ids(name, ((row.id, row.line) for row in rows))
        return rows


def read_annotations(path: Path, *, display_name: str | None = None) -> list[AnnotationRow]:
    """Return the rows of an annotation file; arguments and errors are those of :class:`AnnotationFile`."""
    return AnnotationFile(path, display_name).rows


def require_unique_ids(display_name: str, ids: Iterable[tuple[int | str, int]]) -> None:
    """Raise DatasetError where two rows of a file have the same id; ``ids`` are theirs, with their lines."""
    lines: dict[int | str, int] = {}
    for id_, line in ids:
        if (earlier := lines.setdefault(id_, line)) != line:
            raise DatasetError(f"{display_name}:{line}: id {id_} is already in line {earlier}")


def keep_rows(path: Path, rows: list[AnnotationRow]) -> None:
    """Rewrite the file at ``path`` so that it has only the lines of ``rows``, with their images' names."""
    images = {row.line: row.img for row in rows}
    kept = [(json.loads(line), line, images[n]) for n, line in AnnotationFile(path).lines if n in images]
    lines = [
        line if value["img"] == image else json.dumps(value | {"img": image}, ensure_ascii=False)
        for value, line, image in kept
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def to_mmf_annotations(file: AnnotationFile) -> list[dict[str, Any]]:
    """The rows of an annotation file as MMF wants them: it needs labels for all rows or for none."""
    rows: list[dict[str, Any]] = [json.loads(line) for _, line in file.lines]
    if any(row.get("label") is None for row in rows):
        for row in rows:
            row.pop("label", None)
    return rows


def splits_on_disk(paths: DatasetPaths) -> list[str]:
    """The splits whose annotation files lie in MMF's layout: those of a release, then the user's own."""
    there = {path.stem for path in paths.annotations.glob("[!.]*.jsonl") if path.is_file()}
    return [split for split in SPLITS if split in there] + sorted(there.difference(SPLITS))


def require_split(paths: DatasetPaths, split: str) -> Path:
    """The annotation file of a split. Raises DatasetError where there is none."""
    require_complete_install(paths.root)
    file = paths.annotation_file(split)
    if file.stem == split and file.is_file():  # a split is a name, not a path
        return file
    there = splits_on_disk(paths)
    if not there:
        raise DatasetError(f"no Hateful Memes dataset in {paths.data_dir}", hint=missing_dataset_hint(paths))
    meant = "give --split once for each; " if "," in split else suggestion_hint(Path(split).stem, there)
    hint = f"{meant}there are: {', '.join(there)}"
    raise DatasetError(f"{paths.annotations}: there is no such split: {split}", hint=hint)


def missing_dataset_hint(paths: DatasetPaths) -> str:
    """What to do where there is no dataset: name the folder above or below that has one, or make it."""
    named = paths.data_dir
    with suppress(OSError):  # of a folder that must not be looked into
        for folder in (*named.parents, *sorted(named.glob("*"))):
            if DatasetPaths.from_data_dir(folder).annotation_file("train").is_file():
                return f"{format_command('--data-dir', folder)} is where a dataset lies"
    make = format_command("mmfw", "convert", "--zip", "ARCHIVE", *data_dir_arguments(named))
    return f"`{make}` makes it, or name its folder with --data-dir"


def labels_of(rows: Iterable[AnnotationRow]) -> list[int] | None:
    """The label of each row; None where there are no rows, or one was published without."""
    labels = [row.label for row in rows]
    known = [label for label in labels if label is not None]
    return known if known and len(known) == len(labels) else None


def choose_splits(paths: DatasetPaths) -> dict[str, str]:
    """The annotation file's stem for each of MMF's ``train``, ``val`` and ``test``.

    Phase 2 wins where both phases lie on disk. ``test`` is named even when there is none: training does
    without. Raises DatasetError where there is nothing to train with or to validate on.
    """
    require_complete_install(paths.root)
    there = splits_on_disk(paths)
    val = next((split for split in _VALIDATION_SPLITS if split in there), None)
    if "train" not in there:
        lacking = f"{paths.annotations}: there is no train.jsonl"
        none = f"no Hateful Memes dataset in {paths.data_dir}"
        raise DatasetError(lacking if there else none, hint=missing_dataset_hint(paths))
    if val is None:
        message = f"{paths.annotations}: there is no validation split (dev_unseen, dev_seen or dev)"
        again = format_command(
            "mmfw", "convert", "--force", "--zip", "ARCHIVE", *data_dir_arguments(paths.data_dir)
        )
        hint = f"training needs one: add dev.csv or dev.jsonl to what was converted, and `{again}`"
        raise NoValidationSplitError(message, hint=hint)
    return {
        "train": "train",
        "val": val,
        "test": next((s for s in _TEST_SPLITS if s in there), _TEST_SPLITS[0]),
    }


def _split_lines(text: str, display_name: str) -> list[tuple[int, str]]:
    """The lines that are not blank, without their ends, or the items of a JSON list, counted from 1."""
    if text.lstrip().startswith("["):
        try:
            items: list[Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{display_name}: not JSON: {error}") from None
        return [(n, json.dumps(item, ensure_ascii=False)) for n, item in enumerate(items, 1)]
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def read_text_and_sha256(path: Path, display_name: str) -> tuple[str, str]:
    """The text in a file in UTF-8, without a byte order mark, and its SHA-256; errors call it ``shown``.

    Raises DatasetError where it cannot be read, or is in another encoding.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{display_name}: {error.strerror}") from None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DatasetError(
            f"{display_name}: not in UTF-8 but UTF-16, as PowerShell's > writes", hint=_UTF8_HINT
        )
    try:
        return content.decode("utf-8-sig"), hashlib.sha256(content).hexdigest()
    except UnicodeDecodeError:
        raise DatasetError(f"{display_name}: not a text file in UTF-8", hint=_UTF8_HINT) from None


def parse_objects(
    lines: Iterable[tuple[int, str]], display_name: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects in the lines of an annotation file, each with its number.

    Errors call the file ``shown``. Raises DatasetError where it holds something else.
    """
    for number, line in lines:
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == 1 and _CSV_HEADER.fullmatch(line):
                raise DatasetError(f"{display_name}: this is CSV, not JSON Lines", hint=_CSV_HINT) from None
            raise DatasetError(f"{display_name}:{number}: not JSON: {error}", hint=_JSON_LINES_HINT) from None
        if not isinstance(value, dict):
            raise DatasetError(f"{display_name}:{number}: not a JSON object", hint=_JSON_LINES_HINT)
        for key, written in value.items():  # of all keys, since a conversion may have to write them
            if not is_valid_unicode(json.dumps([key, written], ensure_ascii=False)):
                wanted = "whole letters, without half of a surrogate pair"
                raise invalid_value_error(f"{display_name}:{number}", key, wanted, written)
        yield number, value


def _parse_row(location: str, line: int, value: Mapping[str, Any]) -> AnnotationRow:
    require_columns(location, value, "id", "img", "text")
    id_, img, text, own_id = (value.get(key) for key in ("id", "img", "text", "own_id"))
    id_number = parse_integer(id_)
    if id_number is None or abs(id_number) > MAX_ID:
        hint = _TEXT_IDS_HINT if isinstance(id_, str) else None
        raise invalid_value_error(location, "id", f"a whole number of at most {MAX_ID}", id_, hint)
    if not isinstance(img, str) or not img:
        raise invalid_value_error(location, "img", "the name of an image", img)
    if not isinstance(text, str):
        raise invalid_value_error(location, "text", "a text", text, 'write "" if there is none')
    if own_id is not None and not isinstance(own_id, str):
        raise invalid_value_error(location, "own_id", "a text", own_id)
    return AnnotationRow(id_number, img, text, parse_label(location, value.get("label")), line, own_id)


def is_valid_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: tools that cut texts leave halves of surrogate pairs."""
    return re.search(r"[\ud800-\udfff]", text) is None


def require_columns(
    location: str, columns: Iterable[str], *required: str, hint: str = _JSON_LINES_HINT
) -> None:
    """Raise DatasetError where a ``wanted`` column is missing; it names those that there are."""
    if missing := [key for key in required if key not in columns]:
        message = f'{location}: there is no "{missing[0]}"; the columns are {", ".join(columns)}'
        raise DatasetError(message, hint=_rename_columns_hint(columns, *missing) or hint)


def _rename_columns_hint(columns: Iterable[str], *missing: str) -> str | None:
    """Return the advice to rename the columns that seem to be the ``wanted`` ones; None if none does."""
    meant: dict[str, str] = {}
    for key, column in product(missing, columns):
        if column != key and column.lower() in (key, *_COLUMN_SYNONYMS[key]):
            meant.setdefault(key, column)
    renamed = [f'{json.dumps(column)} to "{key}"' for key, column in meant.items()]
    return f"rename {', '.join(renamed)}" if renamed else None


def require_labels(
    display_name: str, split: str, rows: Sequence[AnnotationRow], columns: Collection[str] = ()
) -> None:
    """Raise DatasetError where rows have no label, unless they are those of a test split.

    ``columns`` are those of the first row, for the advice.
    """
    without = [row.line for row in rows if row.label is None]
    if not without:
        return
    told = f"{display_name}:{without[0]}: {len(without)} of {len(rows)} rows have no label"
    advice = _rename_columns_hint(columns, "label")
    if len(without) < len(rows):
        advice = "give these rows the label 0 or 1, or remove them"
    elif columns:
        told += f"; the columns are {', '.join(columns)}"
    if not split.startswith("test"):
        raise DatasetError(told, hint=advice or f"training and validation need labels; {_LABEL_HINT}")
    if advice:
        _log.warning("%s; %s is used as a split without labels (to change that, %s)", told, split, advice)


def invalid_value_error(
    location: str, key: str, expected: str, value: object, hint: str | None = None
) -> DatasetError:
    """The error about a value that is not what its key wants; ``where`` is the file and line."""
    shown = json.dumps(value)
    shown = shown if len(shown) <= _MAX_SHOWN_CHARACTERS else f"{shown[:_MAX_SHOWN_CHARACTERS]}…"
    return DatasetError(f"{location}: {json.dumps(key)} must be {expected}, not {shown}", hint=hint)


def parse_label(location: str, value: object) -> int | None:
    """A label of a JSON file; pandas writes 1.0 and 0.0 where some rows of a column have none.

    Raises DatasetError where it is none; neither is true, nor "1".
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value not in (0, 1):
        raise invalid_value_error(location, "label", "0 or 1", value, _LABEL_HINT)
    return int(value)


def parse_integer(value: object) -> int | None:
    """``value`` as a whole number, whether it is one or a string of digits; None for anything else."""
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None

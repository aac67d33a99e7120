"""Annotation files: reading, errors, and the choice of splits for MMF."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.dataset.annotations import (
    AnnotationFile,
    AnnotationRow,
    choose_splits,
    keep_rows,
    read_annotations,
    require_split,
    to_mmf_annotations,
)
from mmf_win.errors import DatasetError
from mmf_win.paths import DatasetPaths

GOOD = '{"id": 8291, "img": "img/08291.png", "label": 1, "text": "мем 梗"}\n'


def test_rows_are_read_in_the_order_of_the_file(user_dir: Path) -> None:
    path = user_dir / "train.jsonl"
    path.write_text(GOOD + '\n{"id": 7, "img": "img/00007.png", "text": ""}', encoding="utf-8")
    assert read_annotations(path) == [
        AnnotationRow(8291, "img/08291.png", "мем 梗", 1, line=1),
        AnnotationRow(7, "img/00007.png", "", None, line=3),
    ]
    assert len(AnnotationFile(path).lines) == 2


@pytest.mark.parametrize(("label", "means"), [("0.0", 0), ("1.0", 1), ("null", None)])
def test_labels_written_by_pandas_are_read(label: str, means: int | None, user_dir: Path) -> None:
    path = user_dir / "dev_seen.jsonl"
    path.write_text(GOOD.replace('"label": 1', f'"label": {label}'), encoding="utf-8")
    assert [row.label for row in read_annotations(path)] == [means]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (GOOD.replace("8291,", '"08291",', 1), "id 8291 is already in line 1"),  # IDs may have leading zeros
        ('{"img": "img/1.png", "text": "", "label": 0}', '"id"'),
        ('{"id": "cat", "img": "img/1.png", "text": ""}', '"id"'),
        ('{"id": "1.0", "img": "img/1.png", "text": ""}', '"id"'),
        ('{"id": "१", "img": "img/1.png", "text": ""}', '"id"'),
        ('{"id": 3000000000, "img": "img/1.png", "text": ""}', '"id"'),
        ('{"id": "3000000000", "img": "img/1.png", "text": ""}', '"id"'),
        ('{"id": true, "img": "img/1.png", "text": ""}', '"id"'),
        ('{"id": 1, "text": ""}', '"img"'),
        ('{"id": 1, "img": "img/1.png"}', '"text"'),
        ('{"id": 9223372036854775808, "img": "img/1.png", "text": ""}', '"id"'),
        (f'{{"id": {"9" * 5000}, "img": "img/1.png", "text": ""}}', "not JSON|id"),
        (r'{"id": 1, "img": "img/1.png", "text": "\ud83d"}', '"text"'),
        (r'{"id": 1, "img": "img/\udc00.png", "text": ""}', '"img"'),
        (r'{"id": 1, "img": "img/1.png", "text": "", "own_id": "\ud83d"}', '"own_id"'),
        (r'{"id": 1, "img": "img/1.png", "text": "", "label": null, "note": ["\ud83d"]}', '"note"'),
        (r'{"id": 1, "img": "img/1.png", "text": "", "\ud83d": 1}', r'"\\ud83d"'),
        ('{"id": 1, "img": "img/1.png", "text": "", "label": 2}', '"label"'),
        ('{"id": 1, "img": "img/1.png", "text": "", "label": "1"}', '"label"'),
        ('{"id": 1, "img": "img/1.png", "text": "", "label": true}', '"label"'),
        ('{"id": 1, "img": "img/1.png", "text": "", "label": NaN}', '"label"'),
    ],
)
def test_invalid_line_is_reported_with_its_number(line: str, reason: str, user_dir: Path) -> None:
    path = user_dir / "train.jsonl"
    path.write_text(f"{GOOD}\n{line}\n", encoding="utf-8")
    with pytest.raises(DatasetError, match=reason) as caught:
        read_annotations(path)
    assert f"{path}:3: " in str(caught.value)


def test_long_values_are_shortened_in_errors(user_dir: Path) -> None:
    path = user_dir / "train.jsonl"
    path.write_text(json.dumps({"id": "cat" * 10_000, "img": "img/1.png", "text": ""}), encoding="utf-8")
    with pytest.raises(DatasetError, match=r'"id" must be .*, not "catcat') as caught:
        read_annotations(path)
    assert len(str(caught.value)) < len(str(path)) + 200


def test_missing_annotation_file_is_an_error(user_dir: Path) -> None:
    with pytest.raises(DatasetError, match=r"train\.jsonl"):
        len(AnnotationFile(user_dir / "train.jsonl").lines)


def on_disk(root: Path, *splits: str) -> DatasetPaths:
    paths = DatasetPaths(root)
    paths.annotations.mkdir(parents=True)
    for split in splits:
        paths.annotation_file(split).touch()
    return paths


@pytest.mark.parametrize(
    ("existing", "val", "test"),
    [
        (["train", "dev", "test"], "dev", "test"),
        (["train", "dev_seen", "dev_unseen", "test_seen", "test_unseen"], "dev_unseen", "test_unseen"),
        (["train", "dev", "test", "dev_unseen", "test_unseen"], "dev_unseen", "test_unseen"),
        (["train", "dev_seen", "test_seen"], "dev_seen", "test_seen"),
        (["train", "dev"], "dev", "test_unseen"),
    ],
)
def test_splits_of_phase_2_are_preferred(existing: list[str], val: str, test: str, user_dir: Path) -> None:
    paths = on_disk(user_dir, *existing)
    assert choose_splits(paths) == {"train": "train", "val": val, "test": test}


@pytest.mark.parametrize(
    ("existing", "missing"),
    [
        ([], "no Hateful Memes dataset"),
        (["dev", "test"], r"annotations: train\.jsonl not found"),
        (["train", "test"], "validation"),
    ],
)
def test_missing_training_or_validation_split_is_an_error(existing: list[str], missing: str, user_dir: Path) -> None:
    with pytest.raises(DatasetError, match=missing):
        choose_splits(on_disk(user_dir, *existing))


def test_split_is_a_name_and_not_a_path(tmp_path: Path) -> None:
    paths = on_disk(tmp_path, "test_seen")
    assert require_split(paths, "test_seen") == paths.annotation_file("test_seen")
    with pytest.raises(DatasetError, match="no split named"):
        require_split(paths, "../annotations/test_seen")


LIST = f"[\n  {GOOD.strip()},\n  {GOOD.strip().replace('8291,', '7,')}\n]\n"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(LIST.encode(), id="a JSON list over several lines"),
        pytest.param(LIST.replace("\n", "").encode(), id="a JSON list on one line"),
        pytest.param(("\ufeff" + GOOD + GOOD.replace("8291,", "7,")).encode(), id="a byte order mark"),
        pytest.param((GOOD + "\r\n" + GOOD.replace("8291,", "7,")).encode(), id="a blank line"),
    ],
)
def test_other_file_formats_are_read(content: bytes, user_dir: Path) -> None:
    path = user_dir / "train.jsonl"
    path.write_bytes(content)
    assert [(row.id, row.text, row.label) for row in read_annotations(path)] == [(8291, "мем 梗", 1), (7, "мем 梗", 1)]
    assert [row["id"] for row in to_mmf_annotations(AnnotationFile(path))] == [8291, 7]
    keep_rows(path, read_annotations(path)[1:])
    assert path.read_bytes() == GOOD.replace("8291,", "7,").encode()


def test_mmf_gets_labels_for_all_rows_or_none(user_dir: Path) -> None:
    path = user_dir / "train.jsonl"
    unknown = GOOD.replace('"label": 1', '"label": null').replace("8291,", "7,")
    path.write_text(GOOD + unknown, encoding="utf-8")
    assert [row.label for row in read_annotations(path)] == [1, None]
    assert [row.get("label", "none") for row in to_mmf_annotations(AnnotationFile(path))] == ["none", "none"]
    path.write_text(GOOD, encoding="utf-8")
    assert [row["label"] for row in to_mmf_annotations(AnnotationFile(path))] == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD.encode("utf-16"), "UTF-16"),
        (b"id,img,label,text\n1,img/00001.png,0,a\n", "CSV"),
        (b'"id";"img";"label";"text"\n1;img/00001.png;0;a\n', "CSV"),
        (LIST[:-30].encode(), "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (rb'[{"id": 1, "img": "1.png", "text": "", "note": "\ud83d"}]', r'train\.jsonl:1: "note"'),
        (b"caf\xe9", "not a text file in UTF-8"),
    ],
)
def test_unreadable_file_is_reported_with_its_cause(content: bytes, message: str, user_dir: Path) -> None:
    path = user_dir / "train.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        read_annotations(path)
    assert str(path) in str(caught.value)

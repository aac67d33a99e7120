"""Tables of user memes, as written by pandas, Excel and people, and their errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.dataset.annotations import AnnotationFile, AnnotationRow, read_annotations, to_mmf_annotations
from mmf_win.dataset.user_memes import assign_custom_ids, read_table, resolve_image_paths, write_annotations
from mmf_win.errors import DatasetError

CAT = AnnotationRow(1, "img/кот.png", "look, a 猫", 1, line=2, custom_id="cat-1")


def table(folder: Path, content: str | bytes, name: str = "memes.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        'img,text,id,label\nimg/кот.png,"look, a 猫",cat-1,1\n',
        'image,text,id,label\r\nimg/кот.png,"look, a 猫",cat-1,1\r\n',
        "\ufefflabel;Text;ID;Image;source\n1.0;look, a 猫;cat-1;img\\кот.png;web\n",
        "img\ttext\tid\tlabel\nimg/кот.png\tlook, a 猫\tcat-1\t1",
        "\ufeffsep=|\r\nimg|text|id|label\r\nimg/кот.png|look, a 猫|cat-1|1\r\n",
    ],
    ids=["plain", "windows", "excel", "tabs", "a separator that is stated"],
)
def test_csv_variants_of_common_programs_are_read(content: str, user_dir: Path) -> None:
    line = 3 if "sep=" in content else 2
    assert read_table(table(user_dir, content)) == [replace(CAT, line=line)]


def test_pandas_table_with_missing_values_is_read(user_dir: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is of the dev extra, not on Windows in the tests")
    frame = pandas.DataFrame(
        {"img": ["a.png", "b.png"], "text": ['two\nlines, "said" he', None], "id": [7, None], "label": [1, None]}
    )
    first = AnnotationRow(1, "a.png", 'two\nlines, "said" he', 1, line=2, custom_id="7.0")
    second = AnnotationRow(2, "b.png", "", None, line=4)
    frame.to_csv(user_dir / "a.csv", encoding="utf-8-sig")  # with the index of pandas
    assert read_table(user_dir / "a.csv") == [first, second], "values of a text table must be kept as written"
    for as_lines in (True, False):
        frame.to_json(user_dir / "a.jsonl", orient="records", lines=as_lines, force_ascii=False)
        rows = read_table(user_dir / "a.jsonl")
        assert rows == [replace(first, line=1, custom_id="7"), replace(second, line=2)]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "a.csv", "columns"),
        ("img,text\n", "a.csv", "no memes"),
        ("a.png,hello\n", "a.csv", "columns are a.png, hello"),
        ("img,image,text\na,b,c\n", "a.csv", "twice"),
        ("img,text,text\na,b,c\n", "a.csv", "twice"),
        ("img,text\na.png,hello, you\n", "a.csv", ":2: 3 values in 2 columns"),
        ('img,text\na.png,"hello\n', "a.csv", "not CSV"),
        ("img,text\n,hello\n", "a.csv", ':2: "img"'),
        ("img,text,label\na.png,b,yes\n", "a.csv", ':2: "label" must be 0 or 1, not "yes"'),
        ("img,text,label\na.png,b,true\n", "a.csv", ':2: "label"'),
        ("img,text,label\na.png,b,2\n", "a.csv", ':2: "label"'),
        ("img,text,id\na.png,b,x\nc.png,d,x\n", "a.csv", ":3: id x is already in line 2"),
        (b"img,text\na.png,caf\xe9\n", "a.csv", "UTF-8"),
        ('["a"]', "a.jsonl", ":1: not a JSON object"),
        ('[\n{"img": "a", "text": "b"}\n', "a.jsonl", "not JSON"),
        ('{"img": "a", "text": "b"', "a.jsonl", ":1: not JSON"),
        ("img,text\na,b\n", "a.jsonl", "CSV, not JSON Lines"),
        ('{"img": "a.png"}', "a.jsonl", ':1: no column "text"; the columns are img'),
        ('{"img": "a.png", "text": 3}', "a.jsonl", ':1: "text"'),
        ('{"text": "b"}', "a.jsonl", ':1: no column "img"; the columns are text'),
        ('{"img": "a", "text": "b", "id": true}', "a.jsonl", ':1: "id"'),
        ('{"img": "a", "text": "b", "label": "1"}', "a.jsonl", ':1: "label" must be 0 or 1, not "1"'),
        ('{"img": "a", "text": "b", "label": true}', "a.jsonl", ':1: "label"'),
        ("{}", "a.json", "neither"),
        ('{"img": "a", "image": "b", "text": "c"}', "a.jsonl", ':1: both "img" and "image" are given'),
        ('{"img": "a", "text": "half \\ud83d"}', "a.jsonl", ':1: "text"'),
        ('{"img": "a", "text": "b", "id": "\\ud83d"}', "a.jsonl", ':1: "id"'),
        ("[" * 100_000, "a.jsonl", "not JSON"),
    ],
)
def test_invalid_table_is_reported_with_its_line(content: str | bytes, name: str, message: str, user_dir: Path) -> None:
    path = table(user_dir, content, name)
    with pytest.raises(DatasetError) as caught:
        read_table(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_image_paths_start_at_the_table_and_missing_ones_are_named(user_dir: Path) -> None:
    (user_dir / "фото").mkdir()
    for name in ("фото/a.png", "b.png"):
        (user_dir / name).touch()
    path = table(user_dir, f"img,text\nфото/a.png,x\n{(user_dir / 'b.png').as_posix()},y\n")
    memes = resolve_image_paths(read_table(path), path)
    assert [meme.img for meme in memes] == [(user_dir / name).as_posix() for name in ("фото/a.png", "b.png")]
    (user_dir / "b.png").unlink()
    with pytest.raises(DatasetError, match=r"memes\.csv: 1 of 2 images are missing: .*b\.png \(line 3\)"):
        resolve_image_paths(memes, path)


def test_memes_without_an_id_get_unique_ids_from_their_file_names() -> None:
    images = [("a/x.png", "mine"), ("a/y.png", None), ("b/z.png", None), ("c/z.png", None), ("mine", None)]
    images += [("v.png", "z.png#4")]
    memes = [AnnotationRow(n, image, "", None, n + 1, own_id) for n, (image, own_id) in enumerate(images, 1)]
    rows = assign_custom_ids(memes)
    assert [row.id for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.display_id for row in rows] == ["mine", "y.png", "z.png#3", "z.png#4#", "mine#5", "z.png#4"]


@pytest.mark.parametrize(("labels", "for_mmf"), [((1, 0), True), ((1, None), False), ((None, None), False)])
def test_annotations_keep_existing_labels_and_mmf_gets_all_or_none(
    labels: tuple[int | None, int | None], for_mmf: bool, user_dir: Path
) -> None:
    memes = [AnnotationRow(n + 1, f"{n}.png", "текст", label, n + 2) for n, label in enumerate(labels)]
    path = user_dir / "memes.jsonl"
    write_annotations(path, assign_custom_ids(memes))
    assert [(row.id, row.img, row.text, row.label, row.custom_id) for row in read_annotations(path)] == [
        (1, "0.png", "текст", labels[0], "0.png"),
        (2, "1.png", "текст", labels[1], "1.png"),
    ]
    assert all(("label" in value) == for_mmf for value in to_mmf_annotations(AnnotationFile(path)))

"""User-provided memes, datasets and splits with the real MMF: predicted from tables and single images, trained on."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.dataset.annotations import read_annotations
from tests.endtoend.conftest import Tool, predicted_ids, probabilities
from tests.endtoend.test_predicting import run_predict
from tests.worlds import feature_files, hostile_archives, tiny_mmf
from tests.worlds.tools import mark_wide, split_command

SPLIT = "test_unseen"


def write_split_table(tool: Tool, folder: Path) -> Path:
    """Write the rows of a split as a user's table with copied images and other column names; return its path."""
    folder.mkdir()
    path = folder / "мои мемы.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "text", "image"])
        for row in read_annotations(tool.world.dataset / "annotations" / f"{SPLIT}.jsonl"):
            image = folder / Path(row.img).name
            shutil.copyfile(tool.world.dataset / "images" / row.img, image)
            table.writerow([f"мем {row.id}", row.text, image.name])
    return path


@pytest.mark.parametrize("recipe", mark_wide(["image", "bert", "mmbt", "visual_bert"], except_for=("mmbt",)))
def test_user_memes_get_same_probabilities_as_split(recipe: str, tool: Tool) -> None:
    tool.get_trained_run(recipe)
    split_result = tool("predict", "--split", SPLIT, "--no-report")
    table = write_split_table(tool, tool.folder / "my memes")
    files_before = sorted(file.name for file in table.parent.iterdir())
    user_result = tool("predict", "--memes", str(table))
    assert probabilities(user_result) == probabilities(split_result)
    assert predicted_ids(user_result) == [f"мем {id_}" for id_ in predicted_ids(split_result)]
    assert user_result["auroc"] is None, "memes without labels must have no score"
    assert sorted(file.name for file in table.parent.iterdir()) == files_before, "the user's folder must not change"
    page = Path(user_result["report"]).read_text(encoding="utf-8")
    assert "мои мемы.csv" in page and predicted_ids(user_result)[0] in page and 'id="gallery"' in page
    assert page.count("data:image/webp") == len(predicted_ids(split_result))


def test_single_meme_is_predicted_without_dataset_and_output_file(tool: Tool) -> None:
    run = tool.get_trained_run("mmbt")
    table = write_split_table(tool, tool.folder / "mine")
    row = read_annotations(tool.world.dataset / "annotations" / f"{SPLIT}.jsonl")[0]
    image = table.parent / Path(row.img).name
    tool.world = tiny_mmf.TinyWorld(tool.folder / "bare")
    tool.world.data.mkdir(parents=True)
    result = tool("predict", "--image", str(image), "--text", row.text)
    [proba] = [result["proba"]]
    table_probas = probabilities(tool("predict", "--memes", str(table), "--no-report"))
    assert proba == pytest.approx(table_probas[0], abs=1e-5), "the size of the batch must not matter"
    assert len(list(run.reports.glob("*.csv"))) == 1
    assert tool.run_for_exit_code("predict", "--image", str(image), "--text", row.text) == 0
    assert tool.output.strip() == f"{proba:.4f}"
    assert tool.run_for_exit_code("predict", "--image", str(image), "--text", "", "-o", "new") == 2
    assert "--output" in tool.errors and not Path("new").exists()
    assert tool.run_for_exit_code("predict", "--image", str(image)) == 2
    assert "--text" in tool.errors
    (tool.folder / "no.png").write_text("hello", encoding="utf-8")
    for file, message in (("no.png", "no.png: image cannot be read"), ("mine/мои мемы.csv", "a table of memes with")):
        assert tool.run_for_exit_code("predict", "--image", str(tool.folder / file), "--text", "") == 3
        assert message in tool.errors and "row" not in tool.errors
    assert tool.run_for_exit_code("predict", "--memes", str(table), "--memes", str(table)) == 2
    assert "2 times" in tool.errors


def test_labelled_user_memes_are_scored_and_report_is_recreated(tool: Tool) -> None:
    tool.get_trained_run("bert")
    rows = [
        {"img": tool.world.dataset.joinpath("images", row.img).as_posix(), "text": row.text, "label": row.label}
        for row in read_annotations(tool.world.dataset / "annotations" / f"{SPLIT}.jsonl")
    ]
    table = tool.folder / "dev_seen.jsonl"  # named like a split
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = tool("predict", "--memes", str(table))
    assert 0 <= result["auroc"] <= 1 and result["rows"] == len(rows)
    assert result["annotations"] == str(table)
    assert predicted_ids(result) == [Path(row["img"]).name for row in rows]
    table.unlink()
    Path(result["report"]).unlink()
    partly_labelled = tool.folder / "partly.jsonl"
    rows[0]["label"] = None
    partly_labelled.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    unscored = tool("predict", "--memes", str(partly_labelled))
    assert (unscored["auroc"], unscored["labelled"]) == (None, len(rows) - 1)
    labels = f"{len(rows) - 1} of {len(rows)} labels"
    assert labels in Path(unscored["report"]).read_text(encoding="utf-8")
    assert tool.run_for_exit_code("report", "--split", result["split"]) == 0
    page = Path(result["csv"]).with_suffix(".html").read_text(encoding="utf-8")
    assert "dev_seen.jsonl" in page and "Published" not in page
    assert "licensed" not in page


@pytest.mark.wide
def test_ensemble_writes_predictions_of_user_memes_to_output_folder(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [tool.get_trained_run("bert", seed=seed, run=f"n{seed}") for seed in (1, 2)]
    table = write_split_table(tool, tool.folder / "mine")
    monkeypatch.chdir(tool.folder)
    arguments = ("n1", "n2", "--ensemble", "mean", "--memes", str(table), "-o", "new/folder")
    results = run_predict(tool, *arguments)
    columns = [probabilities(result) for result in results]
    assert columns[2] == pytest.approx([sum(pair) / 2 for pair in zip(*columns[:2], strict=True)])
    for result, members in zip(results, [[runs[0]], [runs[1]], runs], strict=True):
        page = Path(result["report"]).read_text(encoding="utf-8")
        assert "мои мемы.csv" in page and all(run.id in page for run in members)
    contents = {path: path.read_bytes() for path in (tool.folder / "new/folder").iterdir()}
    outputs = {Path(result[kind]) for result in results for kind in ("csv", "report")}
    assert outputs == {path for path in contents if path.suffix in (".csv", ".html")}
    assert len(contents) == 4 * len(results), "each page and CSV must come with its scores and its memes"
    assert not any(run.reports.exists() for run in runs) and not (tool.save_dir / "ensembles").exists()
    run_predict(tool, *arguments, "--no-report")
    assert {path: path.read_bytes() for path in contents} == contents, "no file may be overwritten"


def test_user_memes_without_region_features_are_refused_with_hint(tool: Tool, tmp_path: Path) -> None:
    tool.get_trained_run("visual_bert")
    image = tmp_path / "новое.png"
    shutil.copyfile(next((tool.world.dataset / "images" / "img").iterdir()), image)
    table = tmp_path / "own.csv"
    table.write_text("img,text\nновое.png,hello\n", encoding="utf-8")
    assert tool.run_for_exit_code("predict", "--memes", str(table)) == 3
    assert "новое.png" in tool.errors
    assert "such as mmbt_grid" in tool.errors
    assert "mmfw features add" in tool.errors

    lmdb = tmp_path / "Doe, Jane" / "own, new.lmdb"
    extracted = feature_files.write_pairs(tmp_path / "extracted", ["новое"], classes=tiny_mmf.CLASS_COUNT)
    assert main(["features", "add", str(extracted), "--output", str(lmdb)]) == 0
    tool.read_output()  # discard the output
    result = tool("predict", "--memes", str(table), "--features", str(lmdb))
    assert predicted_ids(result) == ["новое.png"]

    predict_arguments = ("predict", "--memes", str(table), "--features", str(lmdb))
    hostile_archives.truncate_file(lmdb / "data.mdb")
    assert tool.run_for_exit_code(*predict_arguments) == 3
    [command] = re.findall("`mmfw (features add .*?)`", tool.errors)
    assert str(lmdb) in command
    assert main(split_command(command)) == 0
    tool.read_output()
    assert tool(*predict_arguments)["rows"] == 1


@pytest.mark.wide
def test_undecodable_user_image_is_named_with_its_table_row(tool: Tool, tmp_path: Path) -> None:
    tool.get_trained_run("image")
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    table = tmp_path / "own.csv"
    table.write_text("img,text,id\ntorn.png,hello,cat-1\n", encoding="utf-8")
    assert tool.run_for_exit_code("predict", "--memes", str(table)) == 3
    assert "torn.png" in tool.errors and "cat-1" in tool.errors and f"row 1 of {table}" in tool.errors
    assert not list(tool.save_dir.glob("*/*/reports/*.csv"))


def test_features_of_image_with_similar_name_are_not_used(tool: Tool, tmp_path: Path) -> None:
    tool.get_trained_run("visual_bert")
    for name in ("cat_7.png", "7.png"):
        shutil.copyfile(next((tool.world.dataset / "images" / "img").iterdir()), tmp_path / name)
    tiny_mmf.build_features(tmp_path / "own.lmdb", ["cat_7", "7"])
    table = tmp_path / "own.csv"
    table.write_text("img,text\ncat_7.png,hello\n", encoding="utf-8")
    assert tool.run_for_exit_code("predict", "--memes", str(table), "--features", str(tmp_path / "own.lmdb")) == 3
    assert "cat_7.png" in tool.errors and "rename" in tool.errors


def write_user_dataset(folder: Path) -> None:
    """Write a dataset of CSV files with pandas, and images in several formats with Pillow."""
    import numpy as np
    import pandas
    from PIL import Image

    random = np.random.default_rng(0)
    number = 0
    for split, count in {"train": 6, "dev": 4, "test": 3}.items():
        rows = []
        for n in range(count):
            number += 1
            image = folder / "photos" / split / f"{number}.{('jpg', 'png', 'webp', 'GIF')[n % 4]}"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (50, 60, 3), dtype=np.uint8)).save(image)
            text = 'she said "love",\nthis cat' if n % 2 else "смех 世界"
            path = image.relative_to(folder).as_posix()
            rows.append({"image": path, "text": text, "id": f"{split}-{n}", "label": float(n % 2)})
        pandas.DataFrame(rows).to_csv(folder / f"{split}.csv", index=False, encoding="utf-8-sig")


def test_user_csv_dataset_is_trained_on_and_predicted_with_its_ids(tool: Tool, tmp_path: Path) -> None:
    source = tmp_path / "мой набор"
    source.mkdir()
    write_user_dataset(source)
    user_tool = tool.with_world_copy("world")
    shutil.rmtree(user_tool.world.dataset)
    assert main(["convert", "--zip", str(source), "--data-dir", str(user_tool.world.data)]) == 0
    tool.read_output()
    assert user_tool("train", user_tool.write_preset("concat_bert"), "--updates", "2")["state"] == "done"
    assert predicted_ids(user_tool("predict")) == ["test-0", "test-1", "test-2"]


@pytest.mark.wide
def test_suggested_next_command_works_without_test_split(tool: Tool) -> None:
    user_tool = tool.with_world_copy("world")
    for split in user_tool.world.dataset.glob("annotations/test*.jsonl"):
        split.unlink()
    assert user_tool.run_for_exit_code("train", user_tool.write_preset("bert"), "--updates", "1") == 0
    [command] = re.findall("^next: mmfw (.*)", user_tool.errors, re.MULTILINE)
    assert user_tool.run_for_exit_code(*split_command(command)) == 0
    assert "dev_unseen" in user_tool.output


@pytest.mark.wide
def test_additional_user_split_is_predicted(tool: Tool) -> None:
    user_tool = tool.with_world_copy("world")
    annotations = user_tool.world.dataset / "annotations"
    shutil.copyfile(annotations / "dev_seen.jsonl", annotations / "трудные.jsonl")
    tool.get_trained_run("bert")
    user_split, published_split = (user_tool("predict", "--split", split) for split in ("трудные", "dev_seen"))
    assert len(predicted_ids(user_split)) == tiny_mmf.SPLIT_SIZES["dev_seen"]
    assert (predicted_ids(published_split), probabilities(published_split)) == (
        predicted_ids(user_split),
        probabilities(user_split),
    )
    assert user_tool.run_for_exit_code("predict", "--split", "hard") == 3
    assert "трудные" in user_tool.errors

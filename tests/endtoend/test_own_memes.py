"""Own memes, sets and splits by the real MMF: scored from tables and from one image, and trained on."""

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
from tests.endtoend.test_predicting import predict
from tests.worlds import feature_files, hostile_archives, tiny_mmf
from tests.worlds.tools import mark_wide, split_command

SPLIT = "test_unseen"


def table_of_the_split(tool: Tool, folder: Path) -> Path:
    """The rows of a split as a table of a user's own: images elsewhere, other names for the columns."""
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
def test_own_memes_get_the_very_probabilities_that_they_get_as_a_split(recipe: str, tool: Tool) -> None:
    tool.get_trained_run(recipe)
    split = tool("predict", "--split", SPLIT, "--no-report")
    table = table_of_the_split(tool, tool.folder / "my memes")
    before = sorted(file.name for file in table.parent.iterdir())
    own = tool("predict", "--memes", str(table))
    assert probabilities(own) == probabilities(split)
    assert predicted_ids(own) == [f"мем {id_}" for id_ in predicted_ids(split)]
    assert own["auroc"] is None, "the table has no labels"
    assert sorted(file.name for file in table.parent.iterdir()) == before, "the user's folder is left alone"
    page = Path(own["report"]).read_text(encoding="utf-8")
    assert "мои мемы.csv" in page and predicted_ids(own)[0] in page and 'id="gallery"' in page
    assert page.count("data:image/webp") == len(predicted_ids(split))


def test_one_image_and_its_text_get_a_probability_without_a_dataset_and_leave_no_file(tool: Tool) -> None:
    run = tool.get_trained_run("mmbt")
    table = table_of_the_split(tool, tool.folder / "mine")
    first = read_annotations(tool.world.dataset / "annotations" / f"{SPLIT}.jsonl")[0]
    image = table.parent / Path(first.img).name
    tool.world = tiny_mmf.TinyWorld(tool.folder / "bare")
    tool.world.data.mkdir(parents=True)
    one = tool("predict", "--image", str(image), "--text", first.text)
    [batch_of_one] = [one["proba"]]
    of_table = probabilities(tool("predict", "--memes", str(table), "--no-report"))
    assert batch_of_one == pytest.approx(of_table[0], abs=1e-5), "only the size of the batch differs"
    assert len(list(run.reports.glob("*.csv"))) == 1
    assert tool.run_for_exit_code("predict", "--image", str(image), "--text", first.text) == 0
    assert tool.output.strip() == f"{batch_of_one:.4f}"
    assert tool.run_for_exit_code("predict", "--image", str(image), "--text", "", "-o", "new") == 2
    assert "--output" in tool.errors and not Path("new").exists()
    assert tool.run_for_exit_code("predict", "--image", str(image)) == 2
    assert "--text" in tool.errors
    (tool.folder / "no.png").write_text("hello", encoding="utf-8")
    for other, told in (("no.png", "no.png: image cannot be read"), ("mine/мои мемы.csv", "a table of memes with")):
        assert tool.run_for_exit_code("predict", "--image", str(tool.folder / other), "--text", "") == 3
        assert told in tool.errors and "row" not in tool.errors
    assert tool.run_for_exit_code("predict", "--memes", str(table), "--memes", str(table)) == 2
    assert "2 times" in tool.errors


def test_labels_are_scored_and_the_page_can_be_made_again(tool: Tool) -> None:
    tool.get_trained_run("bert")
    rows = [
        {"img": tool.world.dataset.joinpath("images", row.img).as_posix(), "text": row.text, "label": row.label}
        for row in read_annotations(tool.world.dataset / "annotations" / f"{SPLIT}.jsonl")
    ]
    table = tool.folder / "dev_seen.jsonl"  # called as a split, which it is not
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = tool("predict", "--memes", str(table))
    assert 0 <= own["auroc"] <= 1 and own["rows"] == len(rows)
    assert own["annotations"] == str(table)
    assert predicted_ids(own) == [Path(row["img"]).name for row in rows]
    table.unlink()
    Path(own["report"]).unlink()
    partly = tool.folder / "partly.jsonl"
    rows[0]["label"] = None
    partly.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    unscored = tool("predict", "--memes", str(partly))
    assert (unscored["auroc"], unscored["labelled"]) == (None, len(rows) - 1)
    labels = f"{len(rows) - 1} of {len(rows)} labels"
    assert labels in Path(unscored["report"]).read_text(encoding="utf-8")
    assert tool.run_for_exit_code("report", "--split", own["split"]) == 0
    page = Path(own["csv"]).with_suffix(".html").read_text(encoding="utf-8")
    assert "dev_seen.jsonl" in page and "Published" not in page
    assert "licensed" not in page


@pytest.mark.wide
def test_an_ensemble_scores_own_memes_into_a_folder_of_the_users(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [tool.get_trained_run("bert", seed=seed, run=f"n{seed}") for seed in (1, 2)]
    table = table_of_the_split(tool, tool.folder / "mine")
    monkeypatch.chdir(tool.folder)
    words = ("n1", "n2", "--ensemble", "mean", "--memes", str(table), "-o", "new/folder")
    results = predict(tool, *words)
    columns = [probabilities(result) for result in results]
    assert columns[2] == pytest.approx([sum(pair) / 2 for pair in zip(*columns[:2], strict=True)])
    for result, named in zip(results, [[runs[0]], [runs[1]], runs], strict=True):
        page = Path(result["report"]).read_text(encoding="utf-8")
        assert "мои мемы.csv" in page and all(run.id in page for run in named)
    written = {path: path.read_bytes() for path in (tool.folder / "new/folder").iterdir()}
    made = {Path(result[kind]) for result in results for kind in ("csv", "report")}
    assert made == {path for path in written if path.suffix in (".csv", ".html")}
    assert len(written) == 4 * len(results), "beside each page and CSV lie its scores and its memes"
    assert not any(run.reports.exists() for run in runs) and not (tool.save_dir / "ensembles").exists()
    predict(tool, *words, "--no-report")
    assert {path: path.read_bytes() for path in written} == written, "nothing is overwritten"


def test_images_without_region_features_are_refused_with_what_can_be_done(tool: Tool, tmp_path: Path) -> None:
    tool.get_trained_run("visual_bert")
    image = tmp_path / "новое.png"
    shutil.copyfile(next((tool.world.dataset / "images" / "img").iterdir()), image)
    table = tmp_path / "own.csv"
    table.write_text("img,text\nновое.png,hello\n", encoding="utf-8")
    assert tool.run_for_exit_code("predict", "--memes", str(table)) == 3
    assert "новое.png" in tool.errors
    assert "such as mmbt_grid" in tool.errors
    assert "mmfw features add" in tool.errors

    other = tmp_path / "Doe, Jane" / "own, new.lmdb"
    extracted = feature_files.write_pairs(tmp_path / "extracted", ["новое"], classes=tiny_mmf.CLASS_COUNT)
    assert main(["features", "add", str(extracted), "--output", str(other)]) == 0
    tool.read_output()  # what it has printed
    own = tool("predict", "--memes", str(table), "--features", str(other))
    assert predicted_ids(own) == ["новое.png"]

    again = ("predict", "--memes", str(table), "--features", str(other))
    hostile_archives.truncate_file(other / "data.mdb")
    assert tool.run_for_exit_code(*again) == 3
    [command] = re.findall("`mmfw (features add .*?)`", tool.errors)
    assert str(other) in command
    assert main(split_command(command)) == 0
    tool.read_output()
    assert tool(*again)["rows"] == 1


@pytest.mark.wide
def test_a_picture_that_cannot_be_decoded_is_named_with_the_users_table(tool: Tool, tmp_path: Path) -> None:
    tool.get_trained_run("image")
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    table = tmp_path / "own.csv"
    table.write_text("img,text,id\ntorn.png,hello,cat-1\n", encoding="utf-8")
    assert tool.run_for_exit_code("predict", "--memes", str(table)) == 3
    assert "torn.png" in tool.errors and "cat-1" in tool.errors and f"row 1 of {table}" in tool.errors
    assert not list(tool.save_dir.glob("*/*/reports/*.csv"))


def test_features_of_another_image_are_not_taken(tool: Tool, tmp_path: Path) -> None:
    tool.get_trained_run("visual_bert")
    for name in ("cat_7.png", "7.png"):
        shutil.copyfile(next((tool.world.dataset / "images" / "img").iterdir()), tmp_path / name)
    tiny_mmf.build_features(tmp_path / "own.lmdb", ["cat_7", "7"])
    table = tmp_path / "own.csv"
    table.write_text("img,text\ncat_7.png,hello\n", encoding="utf-8")
    assert tool.run_for_exit_code("predict", "--memes", str(table), "--features", str(tmp_path / "own.lmdb")) == 3
    assert "cat_7.png" in tool.errors and "rename" in tool.errors


def own_set(folder: Path) -> None:
    """Tables by pandas, with images of several kinds by Pillow."""
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


def test_a_set_of_csv_files_is_trained_on_and_predicted_by_its_own_ids(tool: Tool, tmp_path: Path) -> None:
    source = tmp_path / "мой набор"
    source.mkdir()
    own_set(source)
    own = tool.with_world_copy("world")
    shutil.rmtree(own.world.dataset)
    assert main(["convert", "--zip", str(source), "--data-dir", str(own.world.data)]) == 0
    tool.read_output()
    assert own("train", own.preset("concat_bert"), "--updates", "2")["state"] == "done"
    assert predicted_ids(own("predict")) == ["test-0", "test-1", "test-2"]


@pytest.mark.wide
def test_what_is_to_do_next_without_a_test_split_goes_well(tool: Tool) -> None:
    own = tool.with_world_copy("world")
    for split in own.world.dataset.glob("annotations/test*.jsonl"):
        split.unlink()
    assert own.run_for_exit_code("train", own.preset("bert"), "--updates", "1") == 0
    [command] = re.findall("^next: mmfw (.*)", own.errors, re.MULTILINE)
    assert own.run_for_exit_code(*split_command(command)) == 0
    assert "dev_unseen" in own.output


@pytest.mark.wide
def test_a_split_that_lies_beside_the_others_is_predicted(tool: Tool) -> None:
    own = tool.with_world_copy("world")
    annotations = own.world.dataset / "annotations"
    shutil.copyfile(annotations / "dev_seen.jsonl", annotations / "трудные.jsonl")
    tool.get_trained_run("bert")
    mine, same = (own("predict", "--split", split) for split in ("трудные", "dev_seen"))
    assert len(predicted_ids(mine)) == tiny_mmf.SPLIT_SIZES["dev_seen"]
    assert (predicted_ids(same), probabilities(same)) == (predicted_ids(mine), probabilities(mine))
    assert own.run_for_exit_code("predict", "--split", "hard") == 3
    assert "трудные" in own.errors

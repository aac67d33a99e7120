"""Conversion, training and prediction with missing images: each score names the number of rows that it covers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.dataset.annotations import AnnotationRow, read_annotations
from mmf_win.files import read_json
from mmf_win.paths import DatasetPaths
from tests.endtoend.conftest import Tool, read_events_of_kind
from tests.worlds.report_world import visible_text
from tests.worlds.tiny_mmf import SPLIT_SIZES, build_features

PUBLISHED = {"val": {"auroc": 71.13}, "test": {"auroc": [70.45, 1.16]}}


@pytest.fixture
def incomplete_copy(tool: Tool, tmp_path: Path) -> tuple[Tool, dict[str, list[AnnotationRow]]]:
    """Return the tool with a folder of annotations that lacks some images, and the rows of the full dataset.

    One meme of ``train``, one of ``dev_unseen`` and two of ``test_unseen`` have no image, and another
    one of ``dev_unseen`` has no region features.
    """
    tool_copy = tool.with_world_copy("a world with a copy")
    dataset = DatasetPaths(tool_copy.world.dataset)
    rows = {split: read_annotations(dataset.annotation_file(split)) for split in SPLIT_SIZES}
    for row in (rows["train"][5], rows["dev_unseen"][4], *rows["test_unseen"][3:]):
        (dataset.images / row.img).unlink()
    source = tmp_path / "copy"
    source.mkdir()
    dataset.images.joinpath("img").rename(source / "img")
    for split in SPLIT_SIZES:
        dataset.annotation_file(split).rename(source / f"{split}.jsonl")
    shutil.rmtree(dataset.features)
    stems = {Path(row.img).stem for split_rows in rows.values() for row in split_rows}
    build_features(dataset.features / "detectron.lmdb", sorted(stems - {Path(rows["dev_unseen"][2].img).stem}))
    return tool_copy, rows


def test_each_score_names_the_number_of_rows_that_it_covers(
    incomplete_copy: tuple[Tool, dict[str, list[AnnotationRow]]],
) -> None:
    tool, rows = incomplete_copy
    data_options = ["--data-dir", str(tool.world.data)]
    assert main(["convert", "--zip", str(tool.folder / "copy"), "--allow-missing", *data_options]) == 0
    table = tool.read_output()[0]
    assert "4 of 5" in table and "3 of 5" in table and "13 of 14" in table

    preset = tool.write_preset("vilbert", published=PUBLISHED)
    assert tool.run_for_exit_code("train", preset, "--updates", "2", "--seed", "1", "--allow-missing") == 0, tool.errors
    assert "13 of 14 rows of train" in tool.errors
    assert re.search(r"validation AUROC \d\.\d{4} on 3 of 5 rows of dev_unseen", tool.errors)
    assert "The paper reports dev_seen and test_seen, not dev_unseen" in tool.errors
    assert "0.7113" not in tool.errors
    [summary] = tool("runs")
    assert [summary[f"val_{key}"] for key in ("split", "rows", "full_rows")] == ["dev_unseen", 3, 5]
    details = tool("runs", "show")
    assert details["trained_on"] == {"split": "train", "rows": 13, "full_rows": 14}
    assert {(validation["rows"], validation["full_rows"]) for validation in details["validations"]} == {(3, 5)}
    run = tool.get_run(summary)
    used_annotations = run.path / "attempts" / "1" / "annotations" / "dev_unseen.jsonl"
    assert len(read_annotations(used_annotations)) == 3, "MMF must read only these rows"
    assert {event["data"]["rows"] for event in read_events_of_kind(run, "val")} == {3}

    options = ("--checkpoint", "best", "--checkpoint", "last", "--ensemble", "mean")
    assert tool.run_for_exit_code("predict", *options) == 0, tool.errors
    assert tool.errors.count("3 of 5 rows of test_unseen: ") == 3
    csvs = [Path(line) for line in tool.output.splitlines()]
    for csv in csvs:
        record = read_json(csv.with_suffix(".metrics.json"))
        assert (record["rows"], record["full_rows"], record["split"]) == (3, 5, "test_unseen")
    for csv in (csvs[0], csvs[2]):
        page = visible_text(csv.with_suffix(".html"))
        assert "These predictions cover 3 of 5 rows of test_unseen" in page
        assert "0.7045" not in page and "0.7113" not in page
    page = visible_text(csvs[0].with_suffix(".html"))
    assert "The paper reports dev_seen and test_seen, not test_unseen." in page
    assert "Validated on 3 of 5 rows of dev_unseen" in page and "Trained on 13 of 14 rows of train" in page
    assert tool.run_for_exit_code("runs", "show") == 0
    assert "  3 of 5 rows of test_unseen" in tool.output

    assert tool.run_for_exit_code("predict", "--split", "test_seen") == 0, tool.errors
    assert "4 rows of test_seen: " in tool.errors
    [page_of_split] = run.reports.glob("*_test_seen_*.html")
    page = visible_text(page_of_split)
    assert re.search(r"Published 0\.7045 ± 0\.0116 on the 1,000 rows of test_seen .{1,40}Not compar", page)

    command = ["check-submission", str(csvs[0]), "--split", "test_unseen", *data_options]
    assert main(command) == 3
    errors = tool.read_output()[1]
    assert "missing ids (2): " in errors and "mmfw convert" in errors
    with csvs[0].open("a", encoding="utf-8", newline="") as file:
        file.write("".join(f"{row.id},0.5,0\n" for row in rows["test_unseen"][3:]))
    assert main(command) == 0


@pytest.mark.wide
def test_run_validated_on_the_papers_split_names_that_split(phase_1_tool: Tool) -> None:
    preset = phase_1_tool.write_preset("vilbert", published=PUBLISHED)
    assert phase_1_tool.run_for_exit_code("train", preset, "--updates", "1") == 0, phase_1_tool.errors
    assert "published: 0.7113 on the 500 rows of dev, so the two are not comparable" in phase_1_tool.errors

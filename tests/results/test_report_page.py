"""The page of a run: its content, published scores, and problems of its source files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.prediction_file import read_predictions
from mmf_win.dataset.user_memes import user_annotations_path
from mmf_win.errors import DataError, UsageError
from mmf_win.files import write_json
from mmf_win.locking import file_lock
from mmf_win.protocol import AttemptOutcome
from mmf_win.results.report.scored_split import load_scored_split
from tests.worlds.report_world import (
    SPLIT,
    ReportWorld,
    attempt_events,
    record_excluded_memes,
    requires_report_packages,
    visible_text,
    write_events,
)
from tests.worlds.tools import LazyModule, requires_package

pages = LazyModule("mmf_win.results.report.pages")
sklearn = LazyModule("sklearn.metrics")

pytestmark = [pytest.mark.torch, requires_report_packages, requires_package("sklearn")]


def read_run_page(world: ReportWorld, **options: Any) -> str:
    page: Path = pages.write_run_page(world.add_predicted_run(), **options)
    return page.read_text(encoding="utf-8")


def test_page_shows_the_origin_of_its_numbers(world: ReportWorld) -> None:
    run = world.add_run()
    csv = world.add_predictions(run)
    member = {"run": run.id, "checkpoint": "x/best.ckpt", "checkpoint_sha256": "ab" * 32}
    record = {"members": [member], "threshold": 0.375, "threshold_from": "best accuracy on dev_unseen"}
    write_json(csv.with_suffix(".metrics.json"), record)
    page = pages.write_run_page(run).read_text(encoding="utf-8")
    assert hashlib.sha256(world.dataset.annotation_file(SPLIT).read_bytes()).hexdigest() in page
    assert "ab" * 32 in page
    for fact in ("mmbt_grid", "1.0.0rc10", "2.13.0", "cuda:0", f"{SPLIT}, 32 memes", "120 of 120"):
        assert fact in visible_text(page), fact
    assert "Threshold 0.375, best accuracy on dev_unseen" in visible_text(page)
    assert "The dashed line is the threshold, 0.375" in visible_text(page)


def test_page_shows_the_requested_predictions_of_a_split(world: ReportWorld) -> None:
    run = world.add_run()
    older = world.add_predictions(run)
    newer = older.with_name(older.name.replace("T00-00-01", "T00-00-02"))
    newer.write_bytes(older.read_bytes())
    for requested, expected, other in ((older, older, newer), (None, newer, older)):
        scored = requested and load_scored_split(requested, SPLIT, world.dataset)
        page = pages.write_run_page(run, split=SPLIT, scored=scored)
        assert page == expected.with_suffix(".html")
        text = visible_text(page)
        assert expected.name in text and other.name not in text


def write_ensemble(world: ReportWorld, kind: str, **record: Any) -> Path:
    """Write blended predictions with their record."""
    csv = world.save / "ensembles" / "2026-01-01T00-00-00" / f"hateful_memes_{kind}_{SPLIT}.csv"
    csv.parent.mkdir(parents=True)
    world.add_predictions(world.add_run()).rename(csv)
    facts = {"split": SPLIT, "annotations": str(world.dataset.annotation_file(SPLIT)), "threshold": 0.5}
    write_json(csv.with_suffix(".metrics.json"), {**facts, "ensemble": kind, **record})
    return csv


def test_ensemble_page_lists_members_and_has_no_curves(world: ReportWorld) -> None:
    members = [
        {"run": f"{name}/x", "checkpoint": f"{name}/best.ckpt", "checkpoint_sha256": sha * 32}
        for name, sha in (("a", "ab"), ("b", "cd"))
    ]
    record_excluded_memes(world, 8)
    csv = write_ensemble(world, "mean", members=members)
    written = pages.write_ensemble_page(load_scored_split(csv, SPLIT, world.dataset))
    assert written == csv.with_suffix(".html")
    page = written.read_text(encoding="utf-8")
    for word in (f"Mean of 2 on {SPLIT}", "Member a/x", "Member b/x", "The ensemble", "Do not publish"):
        assert word in visible_text(page), word
    assert "cd" * 32 in page and 'id="roc"' in page
    assert 'id="loss"' not in page
    assert f"These predictions cover 32 of 40 rows of {SPLIT}" in visible_text(page)
    assert "Published" not in visible_text(page) and "No published baseline" not in page


def test_page_of_blended_ranks_omits_calibration(world: ReportWorld) -> None:
    csv = write_ensemble(world, "rank", versions={"mmf": "1.0.0rc10", "torch": "2.13.0"})
    page = pages.write_ensemble_page(load_scored_split(csv, SPLIT, world.dataset)).read_text(encoding="utf-8")
    assert 'id="roc"' in page and "Average precision" in visible_text(page)
    assert 'id="calibration"' not in page and "Brier" not in page and "Calibration error" not in page
    assert "PyTorch 2.13.0" in visible_text(page)
    assert "probabilit" not in page.lower() and "has the higher rank" in visible_text(page)
    world.write_annotations([{"id": n, "img": f"img/{n:05}.png", "text": "a"} for n in range(1000, 1032)])
    page = pages.write_ensemble_page(load_scored_split(csv, SPLIT, world.dataset)).read_text(encoding="utf-8")
    assert "Highest ranks" in page and "probabilit" not in page.lower()


def test_page_names_the_methods_of_intervals_and_explains_missing_ones(world: ReportWorld) -> None:
    page = visible_text(pages.write_run_page(world.add_predicted_run(skill=5)))
    assert "Wilson" in page and "DeLong" in page
    assert "AUROC 1.0000 the ranking metric of the challenge" in page
    assert "such as an AUROC of 1, has no interval" in page
    assert re.search(r"Accuracy 1\.0000 95 % interval 0\.8\d+ – 1\.0000", page)


def test_long_texts_are_truncated_with_their_length(world: ReportWorld) -> None:
    texts = {n: f"{n} long " * 100_000 for n in range(1000, 1006)}
    rows = [{"id": n, "img": f"img/{n:05}.png", "text": texts[n], "label": n % 2} for n in texts]
    world.write_annotations(rows)
    page = pages.write_run_page(world.add_predicted_run())
    assert page.stat().st_size < 500_000
    assert f"1000 long … ({10 * 100_000:,} characters)" in visible_text(page)


def test_pillow_warnings_are_suppressed(world: ReportWorld) -> None:
    """Pillow warns about large pictures; a warning is an error in tests, so there would be no thumbnail."""
    from PIL import Image

    world.write_annotations([{"id": n, "img": f"img/{n}.jpg", "text": "a"} for n in (1, 2)])
    for n in (1, 2):
        Image.new("L", (10_000, 9_500), 100 * n).save(world.dataset.images / "img" / f"{n}.jpg")
    assert "too large" not in read_run_page(world)


def test_text_of_memes_and_runs_is_escaped(world: ReportWorld) -> None:
    evil = '<script>alert("1")</script>"\' onload=alert(2)'
    memes = [{"id": 1, "img": "img/01000.png", "label": 0}, {"id": 2, "img": '"><script>', "label": 1}]
    world.write_annotations([{**meme, "text": f"{evil}\u202e\x9b"} for meme in memes])
    run = world.add_run(preset=evil[:40], model="<b>\u2066", settings={})
    csv = run.reports / f"hateful_memes_mmbt_grid_{SPLIT}_2026-01-01T00-00-01.csv"
    csv.write_text("id,proba,label\n1,0.9,1\n2,0.1,0\n", encoding="utf-8")
    page = pages.write_run_page(run).read_text(encoding="utf-8")
    assert page.count("<script>") == 1, "only the script of the page may be executable"
    assert "&lt;b&gt;" in page
    assert "\\u202e\\u009b" in page and not set(page) & set("\u202e\x9b\u2066")
    assert "&lt;script&gt;alert(&#34;1&#34;)" in page


def test_page_can_omit_images(world: ReportWorld) -> None:
    page = read_run_page(world, images=False)
    assert "<img" not in page
    assert "images are not included" in page
    assert "Same text" in page, "pairs with the same text must be found without pictures"
    assert "Pictures were not compared" in page and "or the same picture" not in page


def test_missing_and_damaged_images_are_marked_and_counted(world: ReportWorld) -> None:
    images = sorted((world.dataset.images / "img").iterdir())
    for image in images[::2]:
        image.unlink()
    for image in images[1::2]:
        image.write_bytes(b"broken")
    page = read_run_page(world)
    assert "Do not publish: contains licensed images and texts" in visible_text(page)
    assert "The picture is missing, damaged or too large" in page
    assert re.search(r"\d+ of the pictures below are missing, damaged or too large", page)
    assert "Show all pictures" not in page.split("<script>")[0], "there must be no button without a picture to show"


def test_split_without_labels_has_a_page_without_scores(world: ReportWorld) -> None:
    world.write_annotations([{"id": n, "img": f"img/{n:05}.png", "text": "a"} for n in range(1000, 1008)])
    page = read_run_page(world)
    assert "has no labels" in page
    assert 'id="histogram"' in page and 'id="loss"' in page
    assert 'id="roc"' not in page and "Worst mistakes" not in page
    gallery = page.partition('id="gallery"')[2]
    probas = [float(proba) for proba in re.findall(r"<b>(0\.\d+)</b>", gallery)]
    assert len(probas) == 8 and probas == sorted(probas, reverse=True)


def test_labelled_user_memes_have_a_gallery_and_mistakes(world: ReportWorld) -> None:
    run = world.add_run()
    csv = world.add_predictions(run)
    user_annotations_path(csv).write_bytes(world.dataset.annotation_file(SPLIT).read_bytes())
    page = pages.write_run_page(run).read_text(encoding="utf-8")
    assert page.count('class="card"', page.index('id="gallery"'), page.index("Worst mistakes")) == 24
    assert page.count('class="all"') == 1, "one button must show all pictures"


@pytest.mark.parametrize("label", [0, 1])
def test_labels_of_one_class_leave_the_auroc_undefined(world: ReportWorld, label: int) -> None:
    rows = [{"id": n, "img": "img/01000.png", "text": f"{n}", "label": label} for n in range(1, 9)]
    world.write_annotations(rows)
    page = read_run_page(world)
    assert "labels of one class only, so the AUROC is undefined" in page
    assert re.search(r"rows of test_seen\s+<cite>", page), "words must be separated by spaces"
    assert 'id="roc"' not in page and 'id="histogram"' in page


def test_page_of_a_run_without_predictions_shows_its_curves(world: ReportWorld) -> None:
    run = world.add_run(seed=None, start_checkpoint="other/best.ckpt")
    page = pages.write_run_page(run).read_text(encoding="utf-8")
    assert "This run has no predictions yet" in page
    assert 'id="loss"' in page and "Do not publish" not in page
    assert "Seed 4000, random" in visible_text(page) and "Started from other/best.ckpt" in visible_text(page)


def test_page_of_published_weights_says_nothing_was_trained(world: ReportWorld) -> None:
    request = {"published_weights": "mmbt.hateful_memes.images", "seed": None}
    run = world.add_predicted_run("mmbt_grid-published", **request)
    run.events.unlink()
    run.outcome_file.unlink()
    page = pages.write_run_page(run).read_text(encoding="utf-8")
    assert "mmbt.hateful_memes.images" in page and "nothing was trained here" in page
    assert 'id="training-title"' not in page and "Training time" not in page
    assert "0.6792" in page, "the published score must be shown"


def test_page_says_that_a_run_is_in_progress(world: ReportWorld) -> None:
    run = world.add_run()
    run.outcome_file.unlink()
    with file_lock(run.training_lock_file):
        assert "in progress; this page covers it up to update 120" in visible_text(pages.write_run_page(run))


def test_truncated_events_file_is_read_as_far_as_possible(world: ReportWorld) -> None:
    run = world.add_run()
    truncated = run.events.read_bytes()[:-20].replace(b'"loss": 0.65', b'"loss": 0.6', 1)
    run.events.write_bytes(b'\x00\xff not JSON\n[1]\n{"kind": 3}\n' + truncated)
    assert 'id="loss"' in pages.write_run_page(run).read_text(encoding="utf-8")
    run.events.unlink()
    assert "No update has been reported yet" in visible_text(pages.write_run_page(run))


def test_attempts_are_marked_and_explained(world: ReportWorld) -> None:
    run = world.add_run()
    write_events(run, [*attempt_events("1", 0, 60), *attempt_events("2", 30, 120, micro_batch=16)])
    AttemptOutcome("cuda_oom").save(run.attempt(1).outcome_file)
    page = visible_text(pages.write_run_page(run))
    started = "Attempt 2 started at update 30, after the GPU ran out of memory"
    assert f"{started}; batch 32, micro-batch 16." in page
    assert "Batch 32, micro-batch 16" in page


def test_page_of_two_thousand_memes_is_below_5_mb(world: ReportWorld) -> None:
    from PIL import Image

    noise = Random(0)
    for n in range(4):  # noise compresses worst
        image = Image.frombytes("RGB", (256, 256), noise.randbytes(3 * 256 * 256))
        image.save(world.dataset.images / "img" / f"{n}.png")
    texts = {n: f"{n // 2} " * 40 for n in range(2000)}
    rows = [{"id": n, "img": f"img/{n % 4}.png", "text": texts[n], "label": n % 2} for n in texts]
    world.write_annotations(rows)
    page = pages.write_run_page(world.add_predicted_run())
    assert page.read_text(encoding="utf-8").count("<img") == 12 + 12 + 2 * 8
    assert page.stat().st_size < 5_000_000


def test_newest_predictions_are_shown_unless_a_split_is_given(world: ReportWorld) -> None:
    lines = world.dataset.annotation_file(SPLIT).read_text(encoding="utf-8").splitlines()
    memes = [json.loads(line) for line in lines]
    world.write_annotations(memes[:8], "dev_seen")
    run = world.add_predicted_run()
    older = world.add_predictions(run, "dev_seen")
    os.utime(older, (0, 0))
    assert f"on {SPLIT}" in visible_text(pages.write_run_page(run))
    assert "on dev_seen" in visible_text(pages.write_run_page(run, split="dev_seen"))
    with pytest.raises(UsageError, match="no predictions for train") as caught:
        pages.write_run_page(run, split="train")
    assert "dev_seen" in str(caught.value.hint)


def test_mismatched_predictions_are_an_error_and_keep_the_old_page(world: ReportWorld) -> None:
    run = world.add_run()
    csv = world.add_predictions(run)
    page = pages.write_run_page(run)
    before = page.read_bytes()
    csv.write_text("id,proba,label\n1,0.5,1\n", encoding="utf-8")
    with pytest.raises(DataError, match="do not match the annotations"):
        pages.write_run_page(run)
    world.dataset.annotation_file(SPLIT).unlink()
    with pytest.raises(DataError, match="file not found"):
        pages.write_run_page(run)
    assert page.read_bytes() == before
    assert [file.name for file in page.parent.iterdir() if file.suffix == ".part"] == []


@pytest.mark.parametrize("rest", [",1.5,1", ",-0.1,0", ",0.5,2", ',"' + "1" * 200_000])
def test_invalid_predictions_are_an_error(world: ReportWorld, rest: str) -> None:
    run = world.add_run()
    csv = world.add_predictions(run)
    head, first, *others = csv.read_text(encoding="utf-8").splitlines()
    csv.write_text("\n".join([head, first.partition(",")[0] + rest, *others]), encoding="utf-8")
    with pytest.raises(DataError, match=r"invalid numbers|not a prediction file"):
        pages.write_run_page(run)


def test_command_prints_the_path_of_the_page(world: ReportWorld, capsys: pytest.CaptureFixture[str]) -> None:
    run = world.add_run()
    save = ["--save-dir", str(world.save)]
    assert main(["report", *save]) == 0
    assert Path(capsys.readouterr().out.strip()) == run.reports / "report.html"
    csv = world.add_predictions(run)
    assert main(["report", *save]) == 0
    assert Path(capsys.readouterr().out.strip()) == csv.with_suffix(".html")
    output = world.save.parent / "new folder" / "страница.html"
    assert main(["report", "mmbt_grid", "--no-images", "-o", str(output), "--json", *save]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(output), "runs": [run.id]}
    assert output.is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes differ on Windows")
def test_page_replaces_only_regular_files_and_link_targets(
    world: ReportWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.add_run()
    pipe, link, real = (tmp_path / name for name in ("pipe", "link.html", "real.html"))
    os.mkfifo(pipe)
    command = ["report", "--no-images", "--save-dir", str(world.save), "--output"]
    assert main([*command, str(pipe)]) == 2
    assert "not a file" in capsys.readouterr().err
    assert pipe.is_fifo()
    link.symlink_to(real)
    assert main([*command, str(link)]) == 0
    assert link.is_symlink()
    assert "<html" in real.read_text(encoding="utf-8")


def test_page_compares_scores_with_published_ones(world: ReportWorld) -> None:
    rows = [{"id": n, "img": f"img/{n}.png", "text": f"{n}", "label": n % 2} for n in range(1000)]
    world.write_annotations(rows)
    run = world.add_run()
    csv = world.add_predictions(run)
    page = visible_text(pages.write_run_page(run, images=False))
    labels = [row.label for row in read_annotations(world.dataset.annotation_file(SPLIT))]
    auroc = sklearn.roc_auc_score(labels, [row.proba for row in read_predictions(csv)])
    assert f"AUROC {auroc:.4f}" in page
    assert "Published 0.6792 ± 0.0087 on the 1,000 rows of test_seen" in page
    assert "arXiv:2005.04790" in page
    assert f"{auroc - 0.6792:+.4f}".replace("-", "−") in page
    assert "Not comparable" not in page


def read_page_of_split(world: ReportWorld, split: str, **request: Any) -> str:
    """Return the page of a run that predicted the world's 32 memes as this split."""
    world.dataset.annotation_file(split).write_bytes(world.dataset.annotation_file(SPLIT).read_bytes())
    return visible_text(
        pages.write_run_page(world.add_predicted_run(split=split, **request), split=split, images=False)
    )


@pytest.mark.parametrize(
    ("split", "number"), [("dev_seen", "0.6857"), ("dev", "0.6857"), ("test_seen", "0.6792"), ("test", "0.6792")]
)
def test_published_score_names_its_split_and_is_only_compared_on_the_same_rows(
    world: ReportWorld, split: str, number: str
) -> None:
    page = read_page_of_split(world, split)
    rows = {"0.6857": "500", "0.6792": "1,000"}[number]
    assert re.search(rf"Published {number}( ± \S+)? on the {rows} rows of {split}\b", page)
    assert "Not comparable: this score covers 32 rows" in page
    assert not re.search(r"rows of \w+ [+−]0", page), "a difference must not be shown"


@pytest.mark.parametrize("split", ["dev_unseen", "test_unseen", "train", "mine"])
def test_other_splits_have_no_published_score(world: ReportWorld, split: str) -> None:
    page = read_page_of_split(world, split, splits={"train": "train", "val": split, "test": split})
    assert f"The paper reports dev_seen and test_seen, not {split}." in page
    for number in ("0.6857", "0.6792", "0.5820", "0.6006"):
        assert number not in page


def test_page_reports_excluded_rows_of_scores_and_training(world: ReportWorld) -> None:
    record_excluded_memes(world, 8)
    run = world.add_predicted_run()
    data = {"split": "train", "rows": 8400, "full_rows": 8500}
    validated = {"split": "dev_unseen", "rows": 433, "full_rows": 540}
    write_events(run, attempt_events("1", 0, 120, data=data, val_data=validated))
    page = visible_text(pages.write_run_page(run))
    assert f"These predictions cover 32 of 40 rows of {SPLIT}" in page
    assert f"Split {SPLIT}, 32 of 40 memes" in page
    assert "Not comparable: this score covers 32 of 40 rows" in page
    assert "Trained on 8,400 of 8,500 rows of train" in page
    assert "Validated on 433 of 540 rows of dev_unseen" in page
    assert "at update 120, on 433 of 540 rows of dev_unseen" in page


def test_page_of_a_complete_split_reports_no_excluded_rows(world: ReportWorld) -> None:
    record_excluded_memes(world, 0)
    page = visible_text(read_run_page(world))
    assert f"Split {SPLIT}, 32 memes" in page and "These predictions cover" not in page

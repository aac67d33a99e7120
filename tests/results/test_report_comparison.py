"""The page that compares runs, those of a sweep by their settings."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.errors import UsageError
from mmf_win.files import write_json
from mmf_win.protocol import AttemptOutcome
from mmf_win.results.report.scored_split import load_scored_split
from mmf_win.runs.history import RunRecord
from tests.worlds.event_log import EventLog
from tests.worlds.report_world import (
    SPLIT,
    ReportWorld,
    attempt_events,
    make_sweep_runs,
    record_excluded_memes,
    requires_report_packages,
    visible_text,
    write_events,
)
from tests.worlds.tools import LazyModule

pages = LazyModule("mmf_win.results.report.pages")
plots = LazyModule("mmf_win.results.report.plots")
comparison = LazyModule("mmf_win.results.report.comparison")

pytestmark = [pytest.mark.torch, requires_report_packages]


def entries(runs: list[Any]) -> list[Any]:
    return [
        comparison.build_compared_run(known, pages.load_best_scored_split(known, SPLIT, None))
        for known in map(RunRecord.read, runs)
    ]


def test_a_presets_mean_and_deviation_are_over_its_seeds(world: ReportWorld) -> None:
    runs = [world.add_predicted_run(stamp=f"2026-01-0{n}T00-00-00", seed=n) for n in (1, 2, 3)]
    other = world.add_predicted_run("visual_bert", preset="visual_bert", published={})
    first, second = comparison.group_runs(entries([*runs, other]))
    aurocs = [entry.auroc for entry in first.entries]
    page = visible_text(pages.write_comparison_page([*runs, other], world.save))
    assert f"{statistics.mean(aurocs):.4f} ± {statistics.stdev(aurocs):.4f} n = 3" in page
    assert f"{second.entries[0].auroc:.4f} n = 1" in page, "one run has no deviation"
    assert "Published AUROC on test_seen" in page
    assert "0.6792 on 1,000 rows: not comparable" in page, "with 32"


def grouped(*runs: Any) -> dict[str, list[Any]]:
    """The runs of each group, by its name."""
    groups = comparison.group_runs([comparison.build_compared_run(RunRecord.read(run), None) for run in runs])
    return {group.name: [entry.run_record.run for entry in group.entries] for group in groups}


SAME = "model_config.mmbt.classifier=mlp"
UNLIKE: dict[str, tuple[dict[str, Any], str]] = {
    "total": ({"updates": 22}, ", total=22"),
    "overrides": ({"overrides": [SAME, "optimizer.params.lr=1e-3"]}, ", optimizer.params.lr=0.001"),
    "settings": ({"settings": {"optimizer": {"params": {"lr": 1e-3}}}}, ", optimizer.params.lr=0.001"),
    "batch size": ({"batch_size": 8}, ", training.batch_size=8"),
    "start": ({"start": "elsewhere/current.ckpt"}, ", start=elsewhere/current.ckpt"),
    "init": ({"init": "mmbt.hateful_memes.images"}, ", init=mmbt.hateful_memes.images"),
    "published weights": ({"published_weights": "mmbt.images", "seed": None}, ", published weights"),
    "the same seed": ({"seed": 1}, " (mmbt_grid/2026-01-03T00-00-00)"),
}


@pytest.mark.parametrize(("changes", "name"), UNLIKE.values(), ids=UNLIKE)
def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(
    world: ReportWorld, changes: dict[str, Any], name: str
) -> None:
    first = world.add_run(stamp="2026-01-01T00-00-00", seed=1, overrides=[SAME])
    unimportant = {"keep": 3, "overrides": [SAME, "training.num_workers=3"]}
    second = world.add_run(stamp="2026-01-02T00-00-00", seed=2, **unimportant)
    other = world.add_run(stamp="2026-01-03T00-00-00", **{"seed": 3, "overrides": [SAME], **changes})
    found = grouped(first, other, second)
    assert list(found.values()) == [[first, second], [other]]
    assert list(found)[1] == f"mmbt_grid{name}"
    page = visible_text(pages.write_comparison_page([first, other, second], world.save))
    assert "n = 2" in page and "n = 3" not in page


@pytest.mark.parametrize(
    "given",
    [
        lambda seed: {"seed": None, "overrides": [f"training.seed={seed}"]},
        lambda seed: {"seed": None, "settings": {"training": {"seed": seed}}},
    ],
    ids=["override", "preset"],
)
def test_a_seed_counts_however_it_was_given(world: ReportWorld, given: Callable[[int], dict[str, Any]]) -> None:
    runs = []
    for day, seed in enumerate((1, 2, 2), start=1):
        run = world.add_run(stamp=f"2026-01-0{day}T00-00-00", **given(seed))
        write_events(run, attempt_events("1", 0, 60, seed=seed))
        runs.append(run)
    assert list(grouped(*runs).values()) == [runs[:2], runs[2:]]


def test_a_run_that_did_not_reach_its_end_is_not_averaged(world: ReportWorld) -> None:
    runs = [world.add_run(stamp=f"2026-01-0{n}T00-00-00", seed=n) for n in (1, 2, 3, 4)]
    AttemptOutcome("interrupted").save(runs[2].outcome_file)
    AttemptOutcome("interrupted").save(runs[3].outcome_file)
    assert grouped(*runs) == {
        "mmbt_grid": runs[:2],
        f"mmbt_grid, state=interrupted ({runs[2].id})": [runs[2]],
        f"mmbt_grid, state=interrupted ({runs[3].id})": [runs[3]],
    }


def test_a_run_whose_total_was_raised_later_is_not_averaged(world: ReportWorld) -> None:
    runs = [world.add_run(stamp=f"2026-01-0{n}T00-00-00", seed=n) for n in (1, 2)]
    first = attempt_events("1", 0, 60, max_updates=60, seed=2)
    write_events(runs[1], [*first, *attempt_events("2", 60, 120, seed=2)])
    assert list(grouped(*runs)) == ["mmbt_grid, total=120", "mmbt_grid, total=60 then 120"]


def test_mmfs_configuration_tells_runs_apart_where_what_was_asked_for_does_not(world: ReportWorld) -> None:
    """Change a configuration file that the preset names."""
    runs = [world.add_run(stamp=f"2026-01-0{n}T00-00-00", seed=n) for n in (1, 2, 3)]
    for run, rate in zip(runs, (0.1, 0.2, 0.2), strict=True):
        run.checkpoints.mkdir()
        config = {"optimizer": {"params": {"lr": rate}}, "training": {"seed": run.request().training_number("seed")}}
        (run.checkpoints / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    assert grouped(*runs) == {
        "mmbt_grid, mmf.optimizer.params.lr=0.1": runs[:1],
        "mmbt_grid, mmf.optimizer.params.lr=0.2": runs[1:],
    }


def test_colours_tell_presets_apart_and_runs_where_there_is_one_preset(world: ReportWorld) -> None:
    runs = [world.add_run("first"), world.add_run("second", seed=2), world.add_run("third", preset="visual_bert")]
    for shown, apart in ((runs, ["mmbt_grid", "visual_bert"]), (runs[:2], [run.id for run in runs[:2]])):
        assert (
            list(
                comparison.build_comparison_context([(RunRecord.read(run), None) for run in shown], None, {})["colours"]
            )
            == apart
        )
    page = pages.write_comparison_page(runs[:2], world.save).read_text(encoding="utf-8")
    assert page.count("--key: var(--series-2)") == 2, "in the legend and in the table"


def test_differences_are_of_the_memes_that_both_predicted(world: ReportWorld) -> None:
    good, bad = world.add_predicted_run("good", skill=1.5), world.add_predicted_run("bad", skill=0.0)
    (contrast,) = comparison.compare_aurocs(entries([bad, good]))
    first, second, difference = (contrast[key] for key in ("first", "second", "difference"))
    assert (first.run_record.run, second.run_record.run, contrast["memes"]) == (good, bad, 32)
    assert difference.value == pytest.approx(first.auroc - second.auroc)
    assert difference.low <= difference.value <= difference.high
    assert difference.p < 0.05


def by(csv: Path, sha256: str) -> None:
    """Record which checkpoint predicted."""
    member = {"run": "a", "checkpoint": "best.ckpt", "checkpoint_sha256": sha256}
    facts = {"split": SPLIT, "rows": 32, "full_rows": 32, "auroc": 0.5, "threshold": 0.5}
    write_json(csv.with_suffix(".metrics.json"), facts | {"members": [member]})


def test_runs_are_compared_by_their_best_checkpoints_alone(world: ReportWorld) -> None:
    run, old, last = world.add_run("a"), world.add_run("b"), world.add_run("c")
    best = world.add_predictions(run, skill=1.5)
    newer = best.with_name(best.name.replace("00-00-01", "00-00-02"))
    newer.write_bytes(world.add_predictions(old, skill=0.0).read_bytes())
    for csv, sha256 in ((best, "best"), (newer, "last"), (world.add_predictions(last), "last")):
        by(csv, sha256)
    for each in (run, last):
        EventLog(each.events, "1").write("checkpoint", update=60, best=True, sha256="best")
    known = [RunRecord.read(each) for each in (run, old, last)]
    about = comparison.build_comparison_context(
        [(each, pages.load_best_scored_split(each, SPLIT, None)) for each in known], SPLIT, {}
    )
    assert [entry.run_record.scores.scored_checkpoint for entry in about["entries"]] == ["best", "unknown", "best"]
    assert [entry.rows for entry in about["entries"]] == ["32", "32", None]
    assert about["entries"][0].scored.csv == best and len(about["contrasts"]) == 1
    page = visible_text(pages.write_comparison_page([run, old, last], world.save))
    assert page.count("by checkpoint: unknown") == 1
    for shown, told in ((best, "best.ckpt (best)"), (newer, "best.ckpt (unknown)")):
        scored = load_scored_split(shown, SPLIT, world.dataset)
        assert told in visible_text(pages.write_run_page(run, scored=scored))
    with pytest.raises(UsageError, match="by the best checkpoint"):
        pages.write_comparison_page([last, world.add_run("d")], world.save, split=SPLIT)


def test_a_run_beside_itself_does_not_differ(world: ReportWorld) -> None:
    run = world.add_run("a")
    csv = world.add_predictions(run)
    twin = world.add_run("b")
    (twin.reports / csv.name.replace("_a_", "_b_")).write_bytes(csv.read_bytes())
    (contrast,) = comparison.compare_aurocs(entries([run, twin]))
    assert (contrast["difference"].value, contrast["difference"].p) == (0.0, None)
    page = visible_text(pages.write_comparison_page([run, twin], world.save))
    assert "+0.0000 – – 32" in page, "neither an interval nor a p-value"


def test_runs_without_predictions_are_compared_by_their_training(world: ReportWorld) -> None:
    runs = [world.add_run("a"), world.add_run("b"), world.add_run("c")]
    write_events(runs[2], attempt_events("1", 0, 0))
    page = pages.write_comparison_page(runs, world.save).read_text(encoding="utf-8")
    assert "only their training is compared" in page
    assert 'id="validation"' in page and "Differences in AUROC" not in page
    assert page.count("2 of 3 runs, one line per run") == 4, "of two plots, and as their text alternative"


@pytest.mark.parametrize("label", [{"label": 1}, {}], ids=["one class", "no labels"])
def test_without_both_classes_the_difference_is_undefined(world: ReportWorld, label: dict[str, int]) -> None:
    world.write_annotations([{"id": n, "img": "img/01000.png", "text": f"{n}", **label} for n in range(1, 9)])
    runs = [world.add_predicted_run("a"), world.add_predicted_run("b")]
    assert "undefined" in visible_text(pages.write_comparison_page(runs, world.save))


def test_the_command_compares_when_several_runs_are_named(
    world: ReportWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        world.add_predicted_run(name)
    save = ["--save-dir", str(world.save), "--json"]
    assert main(["report", "a", "b", *save]) == 0
    told = json.loads(capsys.readouterr().out)
    page = Path(told["report"])
    assert page.parent == world.save and page.is_file()
    before = page.read_bytes()
    assert main(["report", "b", "a", *save]) == 0
    assert json.loads(capsys.readouterr().out)["report"] != str(page) and page.read_bytes() == before
    assert [id_.split("/")[0] for id_ in told["runs"]] == ["a", "b"]


def test_what_cannot_be_compared_is_an_error(world: ReportWorld) -> None:
    run, other = world.add_run("a"), world.add_run("b")
    with pytest.raises(UsageError, match="cannot be compared with itself"):
        pages.write_comparison_page([run, run], world.save)
    with pytest.raises(UsageError, match="dev_seen"):
        pages.write_comparison_page([run, other], world.save, split="dev_seen")


@pytest.mark.parametrize("asked", [{}, {"published": {}}], ids=["a preset of the paper", "another"])
def test_no_published_number_stands_beside_another_split(world: ReportWorld, asked: dict[str, Any]) -> None:
    world.dataset.annotation_file("test_unseen").write_bytes(world.dataset.annotation_file(SPLIT).read_bytes())
    runs = [world.add_predicted_run(name, split="test_unseen", **asked) for name in ("a", "b")]
    page = visible_text(pages.write_comparison_page(runs, world.save))
    assert "0.6792" not in page and "Published" not in page
    assert ("The paper reports dev_seen and test_seen, not test_unseen." in page) == (not asked)


def test_rows_that_were_left_out_are_told_of_each_run(world: ReportWorld) -> None:
    record_excluded_memes(world, 8)
    runs = [
        world.add_predicted_run("a"),
        world.add_predicted_run("b", seed=2),
        world.add_predicted_run("c", preset="vilbert"),
    ]
    for run, rows in zip(runs, (433, 540, 540), strict=True):
        data = {"split": "dev_unseen", "rows": rows, "full_rows": 540}
        write_events(run, attempt_events("1", 0, 120, val_data=data, seed=run.request().training_number("seed")))
    page = visible_text(pages.write_comparison_page(runs, world.save))
    assert f"Rows of {SPLIT}" in page and page.count("32 of 40") == 3 + 2, "runs and presets"
    assert "on 433 of 540 rows of dev_unseen" in page and "on dev_unseen" in page
    assert "on different rows" in page, "of the first preset's two runs"


def plotted(values: list[Any], scores: list[float | None] | None = None) -> Any:
    """The plot of one setting."""
    reached = scores or [n / 100 for n in range(len(values))]
    [plot] = plots.draw_scores_by_setting(
        [({"lr": value}, score) for value, score in zip(values, reached, strict=True)]
    )
    return plot


def places(plot: Any) -> dict[str, float]:
    """Return the horizontal position of each label."""
    found = re.findall(r"rotate\(-0 ([\d.]+)[^>]*>([^<]*)</text>", plot.svg.partition("matplotlib.axis_2")[0])
    return {text: float(x) for x, text in found}


def dots(plot: Any) -> list[tuple[float, float]]:
    """Return the positions of the runs, from the left and from the top."""
    found = re.findall(r'<use [^>]*x="(.*?)" y="(.*?)" style="fill: var\(--accent', plot.svg)
    return [(float(x), float(y)) for x, y in found]


def line(plot: Any) -> list[tuple[float, float]]:
    """The points of the line in the colour of the runs."""
    found = re.search(r'<path d="([^"]*)"[^>]*stroke: var\(--accent\); stroke-opacity[^>]*linecap', plot.svg)
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", found[1])] if found else []


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([16, 1000, 32], ["16", "32", "1000"]),
        (["1e-5", 1e-4, 1e-3, "1e-4"], ["1e-05", "0.0001", "0.001"]),
        (["b", "c", "a", True], ["True", "a", "b", "c"]),
        ([64, None, 16], ["16", "64", "not set"]),
    ],
)
def test_values_stand_in_order_and_apart(values: list[Any], labels: list[str]) -> None:
    plot = plotted(values)
    at = places(plot)
    assert list(at) == labels
    distances = [b - a for a, b in pairwise(at.values())]
    assert distances == pytest.approx([distances[0]] * len(distances), rel=0.01)
    assert sorted({x for x, _ in dots(plot)}) == pytest.approx(list(at.values()), abs=0.1)


def test_many_labels_are_turned_and_do_not_touch() -> None:
    plot = plotted([f"{n:02} and more" for n in range(60)])
    turned = re.findall(r"translate\(([\d.]+) [^)]*\) rotate\(-90\)", plot.svg)
    assert len(turned) == 20 and all(b - a > 9 for a, b in pairwise(map(float, turned)))


@pytest.mark.parametrize("value", ["a", None, float("nan"), 10**400, "", "$x^", "<b>&", [1], "\N{SNOWMAN}" * 30])
def test_any_value_can_be_drawn(value: object) -> None:
    assert len(dots(plotted([value, 1]))) == 2


def test_a_line_goes_through_the_mean_at_each_value() -> None:
    plot = plotted([1, 2, 2, 3], [0.5, 0.6, 0.8, 0.9])
    (_, first), (_, low), (_, high), (_, last) = dots(plot)
    assert [y for _, y in line(plot)] == pytest.approx([first, (low + high) / 2, last], abs=0.01)
    assert line(plotted([1, 2, 3])) == [], "one run a value has no mean"


def test_what_does_not_vary_and_what_has_no_score_is_left_out() -> None:
    found = plots.draw_scores_by_setting([({"a": n, "b": 7, "c": n // 2}, n / 10 if n < 2 else None) for n in range(4)])
    assert [(plot.title, plot.name) for plot in found] == [("a", "setting-1")]
    assert len(dots(found[0])) == 2 and found[0].caption == "2 runs at 2 values."
    assert plots.draw_scores_by_setting([({"a": n}, None) for n in range(4)]) == []


def test_of_many_runs_the_best_by_validation_are_shown_and_compared(world: ReportWorld) -> None:
    runs, settings = make_sweep_runs(world, 12, predicted_count=10)
    known = [RunRecord.read(run) for run in runs]
    about = comparison.build_comparison_context(
        [(each, pages.load_best_scored_split(each, SPLIT, None)) for each in known], None, settings
    )
    compared = (entry for c in about["contrasts"] for entry in (c["first"], c["second"]))
    contrasted = {entry.run_record.run.id for entry in compared}
    assert contrasted == {run.id for run in runs[2:10]}, "of those with predictions"
    assert len(about["contrasts"]) == 8 * 7 / 2
    assert len(about["colours"]) == 8 and about["plots"][0].caption.startswith("8 runs")
    runs[0].events.unlink()
    page = visible_text(pages.write_comparison_page(runs, world.save, settings=settings))
    assert "Shown are the 8 of 12 runs with the best validation AUROC." in page
    assert "Only the 8 runs with the best validation AUROC among those with predictions" in page
    assert "11 runs at 11 values" in page and "Not shown, without a validation AUROC: 1 of 12 runs." in page


def test_of_few_runs_all_are_shown_and_of_no_sweep_there_are_no_settings(world: ReportWorld) -> None:
    runs, settings = make_sweep_runs(world, 9, predicted_count=9)
    page = pages.write_comparison_page(runs, world.save).read_text(encoding="utf-8")
    assert 'id="setting' not in page and "Shown are the" not in page
    assert page.count('data-name="Other"') == 9 * 8 / 2
    data = {"split": "dev_seen", "rows": 433, "full_rows": 500}
    for run, validated in zip(runs[:2], (None, data), strict=True):
        write_events(run, attempt_events("1", 0, 120, val_data=validated))
        page = visible_text(pages.write_comparison_page(runs[:2], world.save, settings=settings))
        assert "2 runs at 2 values" in page and "Shown are the" not in page and "Only the" not in page
        assert ("The runs were validated on different rows" in page) == (validated is not None)

"""The page that compares runs, and the plots of a sweep's runs by their settings."""

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


def build_entries(runs: list[Any]) -> list[Any]:
    return [
        comparison.build_compared_run(run_record, pages.load_best_scored_split(run_record, SPLIT, None))
        for run_record in map(RunRecord.read, runs)
    ]


def test_mean_and_deviation_of_a_preset_are_computed_over_its_seeds(world: ReportWorld) -> None:
    runs = [world.add_predicted_run(stamp=f"2026-01-0{n}T00-00-00", seed=n) for n in (1, 2, 3)]
    other = world.add_predicted_run("visual_bert", preset="visual_bert", published_scores={})
    first, second = comparison.group_runs(build_entries([*runs, other]))
    aurocs = [entry.auroc for entry in first.entries]
    page = visible_text(pages.write_comparison_page([*runs, other], world.save))
    assert f"{statistics.mean(aurocs):.4f} ± {statistics.stdev(aurocs):.4f} n = 3" in page
    assert f"{second.entries[0].auroc:.4f} n = 1" in page, "a single run must have no deviation"
    assert "Published AUROC on test_seen" in page
    assert "0.6792 on 1,000 rows: not comparable" in page, "scores on 32 rows must not be compared with the paper"


def group_runs_by_name(*runs: Any) -> dict[str, list[Any]]:
    """Return the runs of each group by the name of the group."""
    groups = comparison.group_runs([comparison.build_compared_run(RunRecord.read(run), None) for run in runs])
    return {group.name: [entry.run_record.run for entry in group.entries] for group in groups}


SAME = "model_config.mmbt.classifier=mlp"
DIFFERENT_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "total": ({"updates": 22}, ", total=22"),
    "overrides": ({"overrides": [SAME, "optimizer.params.lr=1e-3"]}, ", optimizer.params.lr=0.001"),
    "settings": ({"settings": {"optimizer": {"params": {"lr": 1e-3}}}}, ", optimizer.params.lr=0.001"),
    "batch size": ({"batch_size": 8}, ", training.batch_size=8"),
    "start": ({"start_checkpoint": "elsewhere/current.ckpt"}, ", start=elsewhere/current.ckpt"),
    "init": ({"init_weights": "mmbt.hateful_memes.images"}, ", init=mmbt.hateful_memes.images"),
    "published weights": ({"published_weights": "mmbt.images", "seed": None}, ", published weights"),
    "the same seed": ({"seed": 1}, " (mmbt_grid/2026-01-03T00-00-00)"),
}


@pytest.mark.parametrize(("changes", "name"), DIFFERENT_REQUESTS.values(), ids=DIFFERENT_REQUESTS)
def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(
    world: ReportWorld, changes: dict[str, Any], name: str
) -> None:
    first = world.add_run(stamp="2026-01-01T00-00-00", seed=1, overrides=[SAME])
    ignored_settings = {"keep": 3, "overrides": [SAME, "training.num_workers=3"]}
    second = world.add_run(stamp="2026-01-02T00-00-00", seed=2, **ignored_settings)
    other = world.add_run(stamp="2026-01-03T00-00-00", **{"seed": 3, "overrides": [SAME], **changes})
    groups = group_runs_by_name(first, other, second)
    assert list(groups.values()) == [[first, second], [other]]
    assert list(groups)[1] == f"mmbt_grid{name}"
    page = visible_text(pages.write_comparison_page([first, other, second], world.save))
    assert "n = 2" in page and "n = 3" not in page


@pytest.mark.parametrize(
    "request_fields",
    [
        lambda seed: {"seed": None, "overrides": [f"training.seed={seed}"]},
        lambda seed: {"seed": None, "settings": {"training": {"seed": seed}}},
    ],
    ids=["override", "preset"],
)
def test_seed_is_recognized_from_override_and_preset(
    world: ReportWorld, request_fields: Callable[[int], dict[str, Any]]
) -> None:
    runs = []
    for day, seed in enumerate((1, 2, 2), start=1):
        run = world.add_run(stamp=f"2026-01-0{day}T00-00-00", **request_fields(seed))
        write_events(run, attempt_events("1", 0, 60, seed=seed))
        runs.append(run)
    assert list(group_runs_by_name(*runs).values()) == [runs[:2], runs[2:]]


def test_interrupted_run_is_not_averaged(world: ReportWorld) -> None:
    runs = [world.add_run(stamp=f"2026-01-0{n}T00-00-00", seed=n) for n in (1, 2, 3, 4)]
    AttemptOutcome("interrupted").save(runs[2].outcome_file)
    AttemptOutcome("interrupted").save(runs[3].outcome_file)
    assert group_runs_by_name(*runs) == {
        "mmbt_grid": runs[:2],
        f"mmbt_grid, state=interrupted ({runs[2].id})": [runs[2]],
        f"mmbt_grid, state=interrupted ({runs[3].id})": [runs[3]],
    }


def test_run_with_a_raised_total_is_not_averaged(world: ReportWorld) -> None:
    runs = [world.add_run(stamp=f"2026-01-0{n}T00-00-00", seed=n) for n in (1, 2)]
    first = attempt_events("1", 0, 60, max_updates=60, seed=2)
    write_events(runs[1], [*first, *attempt_events("2", 60, 120, seed=2)])
    assert list(group_runs_by_name(*runs)) == ["mmbt_grid, total=120", "mmbt_grid, total=60 then 120"]


def test_runs_with_equal_requests_are_distinguished_by_mmfs_configuration(world: ReportWorld) -> None:
    """The runs have different learning rates because a configuration file named by the preset was changed."""
    runs = [world.add_run(stamp=f"2026-01-0{n}T00-00-00", seed=n) for n in (1, 2, 3)]
    for run, rate in zip(runs, (0.1, 0.2, 0.2), strict=True):
        run.checkpoints.mkdir()
        config = {"optimizer": {"params": {"lr": rate}}, "training": {"seed": run.request().training_number("seed")}}
        (run.checkpoints / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    assert group_runs_by_name(*runs) == {
        "mmbt_grid, mmf.optimizer.params.lr=0.1": runs[:1],
        "mmbt_grid, mmf.optimizer.params.lr=0.2": runs[1:],
    }


def test_colours_distinguish_presets_or_runs_of_a_single_preset(world: ReportWorld) -> None:
    runs = [world.add_run("first"), world.add_run("second", seed=2), world.add_run("third", preset="visual_bert")]
    for compared_runs, expected in ((runs, ["mmbt_grid", "visual_bert"]), (runs[:2], [run.id for run in runs[:2]])):
        assert (
            list(
                comparison.build_comparison_context([(RunRecord.read(run), None) for run in compared_runs], None, {})[
                    "colours"
                ]
            )
            == expected
        )
    page = pages.write_comparison_page(runs[:2], world.save).read_text(encoding="utf-8")
    assert page.count("--key: var(--series-2)") == 2, "the colour must be in the legend and in the table"


def test_auroc_difference_is_computed_on_memes_predicted_by_both_runs(world: ReportWorld) -> None:
    good, bad = world.add_predicted_run("good", skill=1.5), world.add_predicted_run("bad", skill=0.0)
    (contrast,) = comparison.compare_aurocs(build_entries([bad, good]))
    first, second, difference = (contrast[key] for key in ("first", "second", "difference"))
    assert (first.run_record.run, second.run_record.run, contrast["memes"]) == (good, bad, 32)
    assert difference.value == pytest.approx(first.auroc - second.auroc)
    assert difference.low <= difference.value <= difference.high
    assert difference.p < 0.05


def write_metrics_record(csv: Path, sha256: str) -> None:
    """Write the metrics record of predictions by a checkpoint with this hash."""
    member = {"run": "a", "checkpoint": "best.ckpt", "checkpoint_sha256": sha256}
    facts = {"split": SPLIT, "rows": 32, "full_rows": 32, "auroc": 0.5, "threshold": 0.5}
    write_json(csv.with_suffix(".metrics.json"), facts | {"members": [member]})


def test_comparison_uses_only_predictions_of_best_checkpoints(world: ReportWorld) -> None:
    run, old, last = world.add_run("a"), world.add_run("b"), world.add_run("c")
    best = world.add_predictions(run, skill=1.5)
    newer = best.with_name(best.name.replace("00-00-01", "00-00-02"))
    newer.write_bytes(world.add_predictions(old, skill=0.0).read_bytes())
    for csv, sha256 in ((best, "best"), (newer, "last"), (world.add_predictions(last), "last")):
        write_metrics_record(csv, sha256)
    for evaluated_run in (run, last):
        EventLog(evaluated_run.events, "1").write("checkpoint", update=60, best=True, sha256="best")
    records = [RunRecord.read(compared_run) for compared_run in (run, old, last)]
    context = comparison.build_comparison_context(
        [(record, pages.load_best_scored_split(record, SPLIT, None)) for record in records], SPLIT, {}
    )
    assert [entry.run_record.scores.scored_checkpoint for entry in context["entries"]] == ["best", "unknown", "best"]
    assert [entry.rows for entry in context["entries"]] == ["32", "32", None]
    assert context["entries"][0].scored.csv == best and len(context["contrasts"]) == 1
    page = visible_text(pages.write_comparison_page([run, old, last], world.save))
    assert page.count("by checkpoint: unknown") == 1
    for csv_file, label in ((best, "best.ckpt (best)"), (newer, "best.ckpt (unknown)")):
        scored = load_scored_split(csv_file, SPLIT, world.dataset)
        assert label in visible_text(pages.write_run_page(run, scored=scored))
    with pytest.raises(UsageError, match="by the best checkpoint"):
        pages.write_comparison_page([last, world.add_run("d")], world.save, split=SPLIT)


def test_runs_with_identical_predictions_do_not_differ(world: ReportWorld) -> None:
    run = world.add_run("a")
    csv = world.add_predictions(run)
    twin = world.add_run("b")
    (twin.reports / csv.name.replace("_a_", "_b_")).write_bytes(csv.read_bytes())
    (contrast,) = comparison.compare_aurocs(build_entries([run, twin]))
    assert (contrast["difference"].value, contrast["difference"].p) == (0.0, None)
    page = visible_text(pages.write_comparison_page([run, twin], world.save))
    assert "+0.0000 – – 32" in page, "there must be neither an interval nor a p-value"


def test_runs_without_predictions_are_compared_by_their_training(world: ReportWorld) -> None:
    runs = [world.add_run("a"), world.add_run("b"), world.add_run("c")]
    write_events(runs[2], attempt_events("1", 0, 0))
    page = pages.write_comparison_page(runs, world.save).read_text(encoding="utf-8")
    assert "only their training is compared" in page
    assert 'id="validation"' in page and "Differences in AUROC" not in page
    assert page.count("2 of 3 runs, one line per run") == 4, "both plots and their text alternatives must name the runs"


@pytest.mark.parametrize("label", [{"label": 1}, {}], ids=["one class", "no labels"])
def test_difference_is_undefined_without_both_classes(world: ReportWorld, label: dict[str, int]) -> None:
    world.write_annotations([{"id": n, "img": "img/01000.png", "text": f"{n}", **label} for n in range(1, 9)])
    runs = [world.add_predicted_run("a"), world.add_predicted_run("b")]
    assert "undefined" in visible_text(pages.write_comparison_page(runs, world.save))


def test_report_command_compares_several_named_runs(world: ReportWorld, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        world.add_predicted_run(name)
    save = ["--save-dir", str(world.save), "--json"]
    assert main(["report", "a", "b", *save]) == 0
    result = json.loads(capsys.readouterr().out)
    page = Path(result["report"])
    assert page.parent == world.save and page.is_file()
    before = page.read_bytes()
    assert main(["report", "b", "a", *save]) == 0
    assert json.loads(capsys.readouterr().out)["report"] != str(page) and page.read_bytes() == before
    assert [id_.split("/")[0] for id_ in result["runs"]] == ["a", "b"]


def test_comparison_with_itself_or_without_predictions_is_an_error(world: ReportWorld) -> None:
    run, other = world.add_run("a"), world.add_run("b")
    with pytest.raises(UsageError, match="cannot be compared with itself"):
        pages.write_comparison_page([run, run], world.save)
    with pytest.raises(UsageError, match="dev_seen"):
        pages.write_comparison_page([run, other], world.save, split="dev_seen")


@pytest.mark.parametrize("preset_fields", [{}, {"published_scores": {}}], ids=["a preset of the paper", "another"])
def test_published_score_is_not_shown_for_another_split(world: ReportWorld, preset_fields: dict[str, Any]) -> None:
    world.dataset.annotation_file("test_unseen").write_bytes(world.dataset.annotation_file(SPLIT).read_bytes())
    runs = [world.add_predicted_run(name, split="test_unseen", **preset_fields) for name in ("a", "b")]
    page = visible_text(pages.write_comparison_page(runs, world.save))
    assert "0.6792" not in page and "Published" not in page
    assert ("The paper reports dev_seen and test_seen, not test_unseen." in page) == (not preset_fields)


def test_excluded_rows_are_shown_for_each_run(world: ReportWorld) -> None:
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
    assert f"Rows of {SPLIT}" in page and page.count("32 of 40") == 3 + 2, "each run and each preset must name its rows"
    assert "on 433 of 540 rows of dev_unseen" in page and "on dev_unseen" in page
    assert "on different rows" in page, "the two runs of the first preset must be marked"


def plot_setting(values: list[Any], scores: list[float | None] | None = None) -> Any:
    """Plot one setting with these values."""
    run_scores = scores or [n / 100 for n in range(len(values))]
    [plot] = plots.draw_scores_by_setting(
        [({"lr": value}, score) for value, score in zip(values, run_scores, strict=True)]
    )
    return plot


def read_label_positions(plot: Any) -> dict[str, float]:
    """Return the horizontal position of each label."""
    labels = re.findall(r"rotate\(-0 ([\d.]+)[^>]*>([^<]*)</text>", plot.svg.partition("matplotlib.axis_2")[0])
    return {text: float(x) for x, text in labels}


def read_points(plot: Any) -> list[tuple[float, float]]:
    """Return the positions of the runs, from the left and from the top."""
    circles = re.findall(r'<use [^>]*x="(.*?)" y="(.*?)" style="fill: var\(--accent', plot.svg)
    return [(float(x), float(y)) for x, y in circles]


def read_line(plot: Any) -> list[tuple[float, float]]:
    """Return the points of the line in the colour of the runs."""
    path = re.search(r'<path d="([^"]*)"[^>]*stroke: var\(--accent\); stroke-opacity[^>]*linecap', plot.svg)
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path[1])] if path else []


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([16, 1000, 32], ["16", "32", "1000"]),
        (["1e-5", 1e-4, 1e-3, "1e-4"], ["1e-05", "0.0001", "0.001"]),
        (["b", "c", "a", True], ["True", "a", "b", "c"]),
        ([64, None, 16], ["16", "64", "not set"]),
    ],
)
def test_setting_values_are_sorted_and_evenly_spaced(values: list[Any], labels: list[str]) -> None:
    plot = plot_setting(values)
    positions = read_label_positions(plot)
    assert list(positions) == labels
    distances = [b - a for a, b in pairwise(positions.values())]
    assert distances == pytest.approx([distances[0]] * len(distances), rel=0.01)
    assert sorted({x for x, _ in read_points(plot)}) == pytest.approx(list(positions.values()), abs=0.1)


def test_many_labels_are_rotated_and_do_not_overlap() -> None:
    plot = plot_setting([f"{n:02} and more" for n in range(60)])
    positions = re.findall(r"translate\(([\d.]+) [^)]*\) rotate\(-90\)", plot.svg)
    assert len(positions) == 20 and all(b - a > 9 for a, b in pairwise(map(float, positions)))


@pytest.mark.parametrize("value", ["a", None, float("nan"), 10**400, "", "$x^", "<b>&", [1], "\N{SNOWMAN}" * 30])
def test_any_setting_value_can_be_plotted(value: object) -> None:
    assert len(read_points(plot_setting([value, 1]))) == 2


def test_line_connects_the_means_at_each_value() -> None:
    plot = plot_setting([1, 2, 2, 3], [0.5, 0.6, 0.8, 0.9])
    (_, first), (_, low), (_, high), (_, last) = read_points(plot)
    assert [y for _, y in read_line(plot)] == pytest.approx([first, (low + high) / 2, last], abs=0.01)
    assert read_line(plot_setting([1, 2, 3])) == [], "a single run per value must have no mean"


def test_constant_settings_and_runs_without_scores_are_not_plotted() -> None:
    drawn = plots.draw_scores_by_setting([({"a": n, "b": 7, "c": n // 2}, n / 10 if n < 2 else None) for n in range(4)])
    assert [(plot.title, plot.name) for plot in drawn] == [("a", "setting-1")]
    assert len(read_points(drawn[0])) == 2 and drawn[0].caption == "2 runs at 2 values."
    assert plots.draw_scores_by_setting([({"a": n}, None) for n in range(4)]) == []


def test_only_the_best_of_many_runs_by_validation_are_compared(world: ReportWorld) -> None:
    runs, settings = make_sweep_runs(world, 12, predicted_count=10)
    records = [RunRecord.read(run) for run in runs]
    context = comparison.build_comparison_context(
        [(record, pages.load_best_scored_split(record, SPLIT, None)) for record in records], None, settings
    )
    compared = (entry for c in context["contrasts"] for entry in (c["first"], c["second"]))
    contrasted = {entry.run_record.run.id for entry in compared}
    assert contrasted == {run.id for run in runs[2:10]}, "only runs with predictions must be compared"
    assert len(context["contrasts"]) == 8 * 7 / 2
    assert len(context["colours"]) == 8 and context["plots"][0].caption.startswith("8 runs")
    runs[0].events.unlink()
    page = visible_text(pages.write_comparison_page(runs, world.save, settings=settings))
    assert "Shown are the 8 of 12 runs with the best validation AUROC." in page
    assert "Only the 8 runs with the best validation AUROC among those with predictions" in page
    assert "11 runs at 11 values" in page and "Not shown, without a validation AUROC: 1 of 12 runs." in page


def test_few_runs_are_all_shown_and_settings_only_for_a_sweep(world: ReportWorld) -> None:
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

"""Chooses what a page is about and where it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from mmf_win.console import shell_line
from mmf_win.dataset.annotations import splits_on_disk
from mmf_win.errors import DataError, UsageError
from mmf_win.paths import DatasetPaths, Places, data_option, new_file
from mmf_win.results import saved_metrics
from mmf_win.results.report import comparison, page
from mmf_win.results.report.scored import Scored, read_scored
from mmf_win.runs.folder import Run
from mmf_win.runs.history import Record
from mmf_win.runs.scores import common_split


def of_run(
    run: Run,
    *,
    split: str | None = None,
    csv: Path | None = None,
    data_dir: Path | None = None,
    output: Path | None = None,
    images: bool = True,
) -> Path:
    """Write the page of a run and return it.

    Args:
        run: what it is about.
        split: whose predictions to show; None for the newest. Without any, the page is about training alone.
        csv: which predictions of the split; None for the newest.
        data_dir: MMF's data folder; None for the run's own.
        output: the page; None for one beside the predictions that has their name, or ``report.html``.
        images: whether the page holds small copies of the memes.

    Raises UsageError where ``split`` was not predicted, and DataError where predictions, annotations or the
    run's request cannot be read.
    """
    known = Record.read(run)
    dataset = _dataset(known, data_dir)
    predicted = [(each.split, each.csv) for each in known.scores.made]
    named = [(split, csv)] if split is not None and csv is not None else predicted
    found = next((each for each in named if split in (None, each[0])), None)
    if found is None and split is not None:
        there = splits_on_disk(dataset)
        message = f"run {run.id} has no predictions for {split}"
        if split in there:
            raise UsageError(message, hint=_predict([run], split, data_dir))
        others = sorted({name for name, _ in predicted})
        hint = f"it has those for {', '.join(others)}" if others else f"there are: {', '.join(there)}"
        raise UsageError(message, hint=hint)
    scored = None if found is None else read_scored(found[1], found[0], dataset)
    beside = found[1].with_suffix(".html") if found else run.reports / "report.html"
    return page.write("run.html", output or beside, page.of_run(known, scored, dataset, images=images))


def with_something_to_show(run: Run) -> Run:
    """The run, if it came as far as an update or has predictions. Raises DataError for any other."""
    known = Record.read(run)
    if known.scores.made or any(event["kind"] in ("train", "val") for event in known.events):
        return run
    raise DataError("has neither updates nor predictions to show", about=f"run {run.id}")


def of_ensemble(csv: Path) -> Path:
    """Write the page of an ensemble beside its predictions and their record, and return it.

    Raises DataError where predictions or annotations cannot be read.
    """
    facts = saved_metrics.read(csv)
    annotations = Path(facts["annotations"])  # of own memes, it lies in no dataset, and a copy beside the CSV
    dataset = DatasetPaths(annotations.parent.parent)
    scored = read_scored(csv, facts["split"], dataset)
    return page.write("run.html", csv.with_suffix(".html"), page.of_ensemble(scored, dataset))


def of_runs(
    runs: Sequence[Run],
    save_dir: Path,
    *,
    split: str | None = None,
    data_dir: Path | None = None,
    output: Path | None = None,
    settings: Mapping[Run, Mapping[str, object]] | None = None,
) -> Path:
    """Write the page that compares runs and return it.

    Args:
        runs: two or more; the same one twice is one.
        save_dir: where the page goes as ``comparison_<time>.html``, when ``output`` is None.
        split: what to compare them on; None for the one that most of them have predicted.
        data_dir: MMF's data folder; None for each run's own.
        output: the page.
        settings: the parameters in which runs of a sweep differ, to be shown with what came of them.

    Raises UsageError where fewer than two different runs are named, or none of them has predicted ``split``,
    and DataError where predictions, annotations or a run's request cannot be read.
    """
    runs = list(dict.fromkeys(runs))
    if len(runs) < 2:
        raise UsageError("the same run was named twice", hint="name another one beside it")
    found = [Record.read(run) for run in runs]
    chosen = split or common_split(known.scores.newest for known in found)
    scored = [(known, scored_by_best(known, chosen, data_dir)) for known in found]
    if split is not None and not any(predictions for _, predictions in scored):
        message = f"none of these runs has predictions for {split} by its best checkpoint"
        raise UsageError(message, hint=_predict(runs, split, data_dir))
    about = comparison.of_runs(scored, chosen, settings or {})
    with nullcontext(output) if output else new_file(save_dir, "comparison_", ".html") as made:
        return page.write("compare.html", made, about)


def _predict(runs: Sequence[Run], split: str, data_dir: Path | None) -> str:
    """The command that makes the predictions which a page needs."""
    where = data_option(data_dir) if data_dir else []
    command = shell_line("mmfw", "predict", *(run.path for run in runs), "--split", split, *where)
    return f"`{command}` makes them"


def _dataset(known: Record, data_dir: Path | None) -> DatasetPaths:
    return Places.resolve(data_dir or Path(known.request.data_dir)).dataset


def scored_by_best(known: Record, split: str | None, data_dir: Path | None) -> Scored | None:
    """Return a run's predictions of the split by its best checkpoint, or None if there are none."""
    found = known.scores.newest.get(split) if split else None
    return None if found is None else read_scored(found.csv, found.split, _dataset(known, data_dir))

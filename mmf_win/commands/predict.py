"""``mmfw predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmf_win.commands import options
from mmf_win.console import print_json, say

if TYPE_CHECKING:
    from mmf_win.results.prediction import Result

# As in mmf_win.results.ensemble.KINDS, which a test compares; that is imported only when there is work.
KINDS = ("mean", "rank", "logit")


@click.command(
    epilog="""\b
Examples:
  mmfw predict                              the newest run's best checkpoint, on its test split
  mmfw predict mmbt_grid                    the newest run of that name
  mmfw predict mmbt_grid --split dev_seen --split test_seen
  mmfw predict --checkpoint model.ckpt
  mmfw predict mmbt_grid vilbert_cc visual_bert_coco --ensemble rank
  mmfw predict --checkpoint best --checkpoint last --ensemble mean
  mmfw predict --threshold best-accuracy"""
)
@click.argument("words", nargs=-1, metavar="[RUN ...] [KEY=VALUE ...]")
@click.option(
    "--checkpoint",
    multiple=True,
    default=("best",),
    show_default="best",
    metavar="best|last|PATH",
    help="The weights to use; may be given several times.",
)
@click.option(
    "--split",
    multiple=True,
    metavar="SPLIT",
    help="The annotation file's name, such as test_seen; may be given several times.  [default: the run's]",
)
@click.option(
    "--ensemble", type=click.Choice(KINDS), help="Blend the runs' and checkpoints' predictions into one."
)
@click.option(
    "--threshold",
    type=click.Choice(["0.5", "best-accuracy"]),
    default="0.5",
    show_default=True,
    help="From which probability on a meme is labelled hateful. best-accuracy chooses it on the validation "
    "split, which is predicted too.",
)
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Memes a batch.  [default: the run's]"
)
@click.option(
    "--report/--no-report",
    default=True,
    help="Whether to make a report.html beside the predictions, which takes seconds.",
)
@options.stop_timeout
@options.no_retry
@options.data_dir
@options.save_dir
@options.as_json
def command(
    words: tuple[str, ...],
    checkpoint: tuple[str, ...],
    split: tuple[str, ...],
    ensemble: str | None,
    threshold: str,
    batch_size: int | None,
    report: bool,
    retry: bool,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
) -> None:
    """Predict splits with trained runs.

    Writes id,proba,label in the order of the annotations, with exactly their ids, and scores the result where
    the split has labels. RUN is a run's id, its name or its folder; without one it is the newest. Of several
    runs or checkpoints each is predicted by itself, and with --ensemble they are blended too. The
    page report.html beside the predictions is about the split that was named first, report_SPLIT.html about
    another; an ensemble's splits have a folder each. --json prints an object for each prediction file, which
    names the page that shows it.
    """
    from mmf_win.paths import Places
    from mmf_win.results import members, prediction
    from mmf_win.runs.overrides import split_runs

    runs, overrides = split_runs(words)
    save = Places.resolve(None, save_dir).save_dir
    chosen = prediction.Options(
        splits=split,
        kind=ensemble,
        best_threshold=threshold == "best-accuracy",
        data_dir=data_dir,
        overrides=overrides,
        batch_size=batch_size,
        retry=retry,
    )
    shown: dict[Path, list[str]] = {}  # folder → the splits that have a page there
    for result in prediction.predict(members.choose(save, runs, checkpoint), save, chosen):
        if not as_json:
            _tell(result)
            print(result.csv, flush=True)
        page = _page(result, data_dir, shown.setdefault(result.csv.parent, [])) if report else None
        if as_json:
            print_json(
                {"csv": str(result.csv), "report": None if page is None else str(page), **result.record}
            )


def _page(result: Result, data_dir: Path | None, shown: list[str]) -> Path | None:
    """The page about a prediction; None where its split is ``shown`` already, or a package is missing."""
    from mmf_win.bridge.install import require_packages
    from mmf_win.errors import MmfError
    from mmf_win.runs import history

    split: str = result.record["split"]
    if split in shown:
        return None
    try:
        require_packages("jinja2", "matplotlib", "pillow")
    except MmfError as error:  # the predictions are there, and that is what was asked for
        say(f"no report: {error}")
        return None
    from mmf_win.results.report import pages

    run = history.owner(result.csv)
    if run is None:  # an ensemble's lie in none, each in a folder of its own
        page = pages.of_ensemble(result.csv)
    else:
        page = result.csv.with_name(f"report_{split}.html" if shown else "report.html")
        pages.of_run(run, split=split, csv=result.csv, data_dir=data_dir, output=page)
    shown.append(split)
    say(f"report: {page}")
    return page


def _tell(result: Result) -> None:
    record = result.record
    where = f"{record['rows']} rows of {record['split']}: {result.title}"
    if record["accuracy"] is None:
        say(f"{where}: no labels, so there is nothing to score")
        return
    say(where)
    if record["auroc"] is None:
        say("  AUROC is not defined, since all labels are of one class")
    for name, title in _TITLES.items():
        if record[name] is not None:
            low, high = record["intervals"][name]
            say(f"  {title:<17} {record[name]:.4f}  (95 %: {low:.4f} to {high:.4f})")
    if record["threshold_from"] != "default":
        say(f"  labelled hateful above {record['threshold']:.4f}, for {record['threshold_from']}")


_TITLES: dict[str, Any] = {
    "auroc": "AUROC",
    "accuracy": "accuracy",
    "average_precision": "average precision",
    "f1": "F1",
    "brier": "Brier score",
    "calibration_error": "calibration error",
}

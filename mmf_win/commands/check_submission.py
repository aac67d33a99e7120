"""``mmfw check-submission``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.commands.completion import completed_by, splits
from mmf_win.commands.hints import data_option
from mmf_win.console import as_typed, print_json, say
from mmf_win.dataset.annotations import read_rows, require_split
from mmf_win.dataset.coverage import converted
from mmf_win.errors import DataError
from mmf_win.paths import Places
from mmf_win.results.submission import check
from mmf_win.runs.search import owner


@click.command(
    "check-submission",
    epilog="""\b
Examples:
  mmfw check-submission predictions.csv --split test_seen
  mmfw check-submission predictions.csv --split test_unseen --json""",
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--split",
    required=True,
    metavar="SPLIT",
    shell_complete=completed_by(splits),
    help="The annotation file's name, such as test_seen.",
)
@options.data_dir
@options.as_json
def command(file: Path, split: str, data_dir: Path | None, as_json: bool) -> None:
    """Check that a prediction file is what the challenge takes for a split.

    Looks at everything: header and separators, missing, repeated, unknown and reordered ids, probabilities
    that are no numbers or not within 0 and 1, labels, encoding and line ends. What cannot be scored is an
    error, the rest a warning. The challenge takes full submissions only: memes that were left out when the
    dataset was converted are needed, too.
    """
    places = Places.resolve(data_dir)
    annotations = require_split(places.dataset, split)
    ids = [row.shown_id for row in read_rows(annotations)]
    left_out = _left_out(places, split)
    found = check(file, ids, left_out)
    if as_json:
        problems = [{"text": problem.text, "fatal": problem.fatal} for problem in found.problems]
        print_json(
            {
                "file": file,
                "split": split,
                "usable": found.usable,
                "rows": len(found.predictions),
                "needed": len(ids) + len(left_out),
                "missing": found.missing,
                "missing_left_out": found.missing_left_out,
                "problems": problems,
            }
        )
    else:
        for problem in found.problems:
            say(f"{'error' if problem.fatal else 'warning'}: {problem.text}")
    if not found.usable:
        count = sum(problem.fatal for problem in found.problems)
        run = owner(file.expanduser().absolute())
        words = [*([run.path] if run else []), "--split", split, *data_option(places.data_dir)]
        hint = f"a run's prediction is written right by: {as_typed('mmfw', 'predict', *words)}"
        if left_out:
            hint = (
                f"this copy of the dataset lacks the images of {len(left_out)} memes of {split}; get a "
                f"complete one, convert it and predict again: {_convert(places, '--force')}"
            )
        raise DataError(
            f"{file}: {count} thing{'s' * (count > 1)} must be put right before it can be scored on {split}",
            hint=hint,
        )
    say(f"{file}: {len(found.predictions)} rows, right for {split}")


def _left_out(places: Places, split: str) -> list[str]:
    """The ids that the full split has and the annotation file lacks.

    Raises:
        DataError: there are some, and an earlier mmfw did not note which.
    """
    summary = converted(places.dataset, split)
    if summary is None:
        return []
    if len(summary.missing_ids) < summary.missing:
        raise DataError(
            f"{places.dataset.root}: an earlier mmfw left out {summary.missing} memes of {split} without "
            "recording which, so it is not known what a full submission needs",
            hint=f"convert the same copy again: {_convert(places, '--allow-missing', '--force')}",
        )
    return list(summary.missing_ids)


def _convert(places: Places, *words: str) -> str:
    return as_typed("mmfw", "convert", "--zip", "ARCHIVE", *words, *data_option(places.data_dir))

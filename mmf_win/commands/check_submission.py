"""``mmfw check-submission``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import format_command, print_json, print_status
from mmf_win.dataset.annotations import AnnotationFile, require_split
from mmf_win.dataset.coverage import load_split_summary
from mmf_win.dataset.prediction_file import WRONG_ORDER, find_submission_problems
from mmf_win.errors import DataError
from mmf_win.paths import MmfPaths, data_dir_arguments, expand_home
from mmf_win.runs.lookup import run_containing


@click.command("check-submission", epilog="Example: mmfw check-submission predictions.csv --split test_seen")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@options.split("The split, such as test_seen.", required=True)
@options.data_dir
@options.as_json
def command(file: Path, split: str, data_dir: Path | None, as_json: bool) -> None:
    """Check that the challenge would accept a prediction file for a split.

    Lists what is wrong with ids, probabilities and labels; another order than that of the annotations is only
    a warning. The challenge takes full submissions only: memes left out at conversion count as missing.
    """
    places = MmfPaths.resolve(data_dir)
    annotations = AnnotationFile(require_split(places.dataset, split))
    ids = [row.display_id for row in annotations.rows]
    summary = load_split_summary(places.dataset, annotations)
    left_out = summary.missing_ids if summary else ()
    found = find_submission_problems(file, ids, left_out)
    usable = found in ([], [WRONG_ORDER])
    if as_json:
        print_json({"file": file, "split": split, "usable": usable, "problems": found})
    else:
        for problem in found:
            print_status(f"{'warning' if usable else 'error'}: {problem}")
    if usable:
        print_status(f"{file}: right for {split}")
        return
    where = data_dir_arguments(places.data_dir)
    if left_out:
        convert = format_command("mmfw", "convert", "--zip", "ARCHIVE", "--force", *where)
        lacking = f"{len(left_out)} memes of {split} have no image here"
        hint = f"{lacking}; convert a complete copy of the dataset and predict again: {convert}"
    else:
        run = run_containing(expand_home(file).absolute())
        predict = format_command("mmfw", "predict", *([run.path] if run else []), "--split", split, *where)
        hint = f"a run's prediction is written right by: {predict}"
    raise DataError(f"{file}: it cannot be scored on {split}", hint=hint)

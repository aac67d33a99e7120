"""``mmfw check-submission``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.console import format_command, print_json, print_status
from mmf_win.dataset.annotations import AnnotationFile, require_split
from mmf_win.dataset.coverage import load_split_summary
from mmf_win.dataset.prediction_file import WRONG_ORDER, find_submission_problems
from mmf_win.errors import DataError
from mmf_win.paths import MmfPaths, data_dir_arguments, expand_home
from mmf_win.runs.lookup import find_run_containing


@click.command("check-submission", cls=Command)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@options.split("Split, such as test_seen.", required=True)
@options.data_dir
@options.as_json
def command(file: Path, split: str, data_dir: Path | None, as_json: bool) -> None:
    """Check that the challenge would accept a prediction file for a split.

    Lists problems with ids, probabilities and labels; rows in another order than the annotations are only a
    warning. The challenge accepts only complete submissions: memes excluded at conversion count as missing.

    Examples:
      mmfw check-submission predictions.csv --split test_seen

    Raises:
        DataError: The file is not a valid submission.
    """
    mmf_paths = MmfPaths.resolve(data_dir)
    annotations = AnnotationFile(require_split(mmf_paths.dataset, split))
    ids = [row.display_id for row in annotations.rows]
    summary = load_split_summary(mmf_paths.dataset, annotations)
    excluded_ids = summary.missing_ids if summary else ()
    problems = find_submission_problems(file, ids, excluded_ids)
    usable = problems in ([], [WRONG_ORDER])
    if as_json:
        print_json({"file": file, "split": split, "usable": usable, "problems": problems})
    else:
        for problem in problems:
            print_status(f"{'warning' if usable else 'error'}: {problem}")
    if usable:
        print_status(f"{file}: valid submission for {split}")
        return
    folders = data_dir_arguments(mmf_paths.data_dir)
    if excluded_ids:
        convert = format_command("mmfw", "convert", "--zip", "ARCHIVE", "--force", *folders)
        lacking = f"{len(excluded_ids)} memes of {split} have no image"
        hint = f"{lacking}; convert a complete copy of the dataset with `{convert}`, then predict again"
    else:
        run = find_run_containing(expand_home(file).absolute())
        predict = format_command("mmfw", "predict", *([run.path] if run else []), "--split", split, *folders)
        hint = f"write a valid file with `{predict}`"
    raise DataError(f"{file}: invalid submission for {split}", hint=hint)

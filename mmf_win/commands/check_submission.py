"""``mmfw check-submission``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import as_typed, print_json, say
from mmf_win.errors import DataError


@click.command(
    "check-submission",
    epilog="""\b
Examples:
  mmfw check-submission predictions.csv --split test_seen
  mmfw check-submission predictions.csv --split test_unseen --json""",
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--split", required=True, metavar="SPLIT", help="The annotation file's name, such as test_seen."
)
@options.data_dir
@options.as_json
def command(file: Path, split: str, data_dir: Path | None, as_json: bool) -> None:
    """Check that a prediction file is what the challenge takes for a split.

    Looks at everything: header and separators, missing, repeated, unknown and reordered ids, probabilities
    that are no numbers or not within 0 and 1, labels, encoding and line ends. What cannot be scored is an
    error, the rest a warning.
    """
    from mmf_win.dataset.annotations import read_rows, require_split
    from mmf_win.paths import Places
    from mmf_win.results.submission import check

    annotations = require_split(Places.resolve(data_dir).dataset, split)
    found = check(file, [row.shown_id for row in read_rows(annotations)])
    if as_json:
        problems = [{"text": problem.text, "fatal": problem.fatal} for problem in found.problems]
        print_json({"file": str(file), "split": split, "usable": found.usable, "problems": problems})
    else:
        for problem in found.problems:
            say(f"{'error' if problem.fatal else 'warning'}: {problem.text}")
    if not found.usable:
        count = sum(problem.fatal for problem in found.problems)
        raise DataError(
            f"{file}: {count} thing{'s' * (count > 1)} must be put right before it can be scored on {split}",
            hint=f"a run's prediction is written right by: {as_typed('mmfw', 'predict', '--split', split)}",
        )
    say(f"{file}: {len(found.predictions)} rows, right for {split}")

"""``mmfw check``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.commands.progress import RunDisplay
from mmf_win.console import format_table, print_json, print_result, print_status
from mmf_win.errors import CheckFailedError
from mmf_win.files import write_json
from mmf_win.paths import expand_home, require_new_file
from mmf_win.protocol import Event
from mmf_win.protocol.check_result import Verdict
from mmf_win.records import to_stored
from mmf_win.runs.model_check import check_model
from mmf_win.runs.override_rules import require_trainable, split_arguments
from mmf_win.runs.request import CommandOptions


class _CheckDisplay(RunDisplay):
    """Display that also prints each finished check."""

    def _on_train_started(self, event: Event) -> None:
        print_status(f"checking on {event['device']}: {event['parameters']:,} parameters, batch {event['batch']}")

    def _on_checked(self, event: Event) -> None:
        print_status(f"{event['verdict']}: {event['check']} ({event['seconds']:.1f} s)")


@click.command(cls=Command)
@options.positional_arguments("[PRESET|RUN] [KEY=VALUE ...]", "PRESET", "RUN")
@options.output("New file for the findings, as JSON.", "FILE")
@options.allow_missing
@options.trust
@options.no_retry
@options.stop_timeout
@options.folders_and_json
@options.collect_options(command_options=CommandOptions)
def command(
    arguments: tuple[str, ...],
    command_options: CommandOptions,
    output: Path | None,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
) -> None:
    """Look for mistakes in a model and its data before training.

    Tries the model of a preset, or of a run's configuration at its beginning, with a few memes. Each
    finding explains what it means; the exit code is 9 if one is an error. Checks that would take more than
    a minute are skipped. Nothing is changed or saved.

    Examples:
      mmfw check mmbt_grid                      a preset
      mmfw check my.yaml optimizer.params.lr=1e-4
      mmfw check                                the newest run's configuration, from its beginning
      mmfw check mmbt_grid --json -o findings.json

    Raises:
        CheckFailedError: A finding is an error.
    """
    if output is not None:
        output = expand_home(output).absolute()
        require_new_file(output)
    names, overrides = split_arguments(arguments, max_names=1)
    command_options = replace(command_options, overrides=overrides)
    require_trainable(command_options, resumes=False)
    name, results = check_model(next(iter(names), None), command_options, data_dir, save_dir, display=_CheckDisplay)
    report = {"name": name, "findings": [to_stored(result) for result in results]}
    counts = Counter(result.verdict for result in results)
    if as_json:
        print_json(report)
    else:
        texts = ["; ".join(filter(None, (result.message, result.hint))) for result in results]
        rows = [(result.verdict, result.check, text) for result, text in zip(results, texts, strict=True)]
        print(format_table(("verdict", "check", "finding"), rows))
        print_result(", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict)))
    if output is not None:
        write_json(output, report)
    if counts["error"]:
        message = f"{name}: {counts['error']} of {len(results)} findings are errors"
        raise CheckFailedError(message, hint="fix the errors, then run the same command again")

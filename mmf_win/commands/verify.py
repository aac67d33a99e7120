"""``mmfw verify``, and what it shares with ``mmfw repair`` and ``mmfw features``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.console import (
    format_command,
    format_local_time,
    format_size,
    format_table,
    format_utc_time,
    print_json,
    print_status,
    summarize_lines,
)
from mmf_win.doctor.verify_all import PARTS, verify_parts
from mmf_win.errors import DataError, UsageError
from mmf_win.integrity.verify import VerificationResult
from mmf_win.paths import MmfPaths, data_dir_arguments
from mmf_win.runs.override_rules import split_arguments

#: What to verify or repair.
parts_argument = options.positional_arguments(
    "[dataset|features|runs|mmf|PRESET|RUN ...] [KEY=VALUE ...]", *PARTS, "PRESET", "RUN"
)


@click.command(cls=Command)
@parts_argument
@click.option("--full", is_flag=True, help="Read every file, even if it is unchanged since the last check.")
@options.folders_and_json
def command(
    words: Sequence[str], full: bool, data_dir: Path | None, save_dir: Path | None, as_json: bool
) -> None:
    """Verify what mmfw has written: the dataset, features and weights, checkpoints, MMF.

    A PRESET stands for the features and weights that it reads, with KEY=VALUE overrides as for `mmfw train`.
    A file that was not touched since it was last found intact is not read again; checkpoints are, each time.
    Exits with 3 when something is damaged; `mmfw repair` repairs it.

    Examples:
      mmfw verify
      mmfw verify dataset runs
      mmfw verify visual_bert_coco --full
      mmfw verify mmbt_grid/2026-01-31T12-00-00
      mmfw verify --data-dir D:\\data --json
    """
    names, overrides, places = resolve_arguments(words, data_dir, save_dir)
    found = verify_parts(names, places, overrides, full=full)
    print_results(found, as_json=as_json)
    damaged = [finding for finding in found if finding.state == "damaged"]
    if damaged:
        message = f"{len(damaged)} of {len(found)} are damaged: {', '.join(f.title for f in damaged)}"
        parts = dict.fromkeys(finding.part for finding in damaged if finding.error is None)
        if not parts:
            raise DataError(message)
        where = [*data_dir_arguments(places.data_dir), *(["--save-dir", save_dir] if save_dir else [])]
        raise DataError(message, hint=f"`{format_command('mmfw', 'repair', *(words or parts), *where)}`")


def resolve_arguments(
    arguments: Sequence[str], data_dir: Path | None, save_dir: Path | None
) -> tuple[Sequence[str], Sequence[str], MmfPaths]:
    """The names and overrides among the words, and the folders. Raises UsageError where one is not there."""
    names, overrides = split_arguments(arguments)
    for folder in (data_dir, save_dir if "runs" in names else None):
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder, so there is nothing to verify in it")
    return names, overrides, MmfPaths.resolve(data_dir, save_dir)


def to_json(finding: VerificationResult) -> dict[str, Any]:
    """Plain values, for scripts."""
    named = ("part", "folder", "state", "problems", "repaired")
    return {
        **{name: getattr(finding, name) for name in named},
        "what": finding.title,
        "verified": format_utc_time(finding.verified_at),
        "against": finding.verified_against or None,
        "bytes": finding.size,
        "error": str(finding.error) if finding.error else None,
        "hint": finding.error.hint if finding.error else None,
    }


def print_results(findings: Sequence[VerificationResult], *, as_json: bool = False) -> None:
    """Print what was found, and what is wrong with each file."""
    if as_json:
        print_json([to_json(finding) for finding in findings])
        return
    if not findings:
        print_status("there is nothing to verify yet")
        return
    rows = []
    for f in findings:
        when = f" ({format_local_time(f.verified_at)})" if f.verified_at else ""
        against = f"{f.verified_against}{when}" if f.verified_against else None
        rows.append((f.title, f.state, format_size(f.size) if f.size else None, against, f.folder))
    print(format_table(("what", "state", "size", "verified against", "where"), rows), flush=True)
    for finding in findings:
        what, code = f"{finding.title}:", 31 if finding.state == "damaged" else 32
        for problem in summarize_lines(finding.problems if finding.state == "damaged" else ()):
            print_status(problem, label=what, ansi_code=code)
        for file in summarize_lines(finding.repaired):
            print_status(file, label=f"{what} repaired:", ansi_code=code)
        if finding.error is not None:
            said = finding.error.message_without(what)
            if said != "; ".join(finding.problems):
                print_status(said, label=what, ansi_code=code)
            if finding.error.hint:
                print_status(finding.error.hint, label="hint:", ansi_code=36)

"""``mmfw verify``, and functions that ``mmfw repair`` and ``mmfw features`` use, too."""

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

#: Parts to verify or repair.
parts_argument = options.positional_arguments(
    "[dataset|features|runs|mmf|PRESET|RUN ...] [KEY=VALUE ...]", *PARTS, "PRESET", "RUN"
)


@click.command(cls=Command)
@parts_argument
@click.option("--full", is_flag=True, help="Read every file, even if it is unchanged since the last check.")
@options.folders_and_json
def command(arguments: Sequence[str], full: bool, data_dir: Path | None, save_dir: Path | None, as_json: bool) -> None:
    r"""Verify the files that mmfw has written: the dataset, features and weights, checkpoints, MMF.

    A PRESET stands for the features and weights that it reads, with KEY=VALUE overrides as for `mmfw train`.
    A file that is unchanged since it was last found intact is not read again, except for checkpoints. Exits
    with 3 if something is damaged; `mmfw repair` repairs it.

    Examples:
      mmfw verify
      mmfw verify dataset runs
      mmfw verify visual_bert_coco --full
      mmfw verify mmbt_grid/2026-01-31T12-00-00
      mmfw verify --data-dir D:\data --json

    Raises:
        DataError: Something is damaged.
    """
    names, overrides, mmf_paths = resolve_arguments(arguments, data_dir, save_dir)
    results = verify_parts(names, mmf_paths, overrides, full=full)
    print_results(results, as_json=as_json)
    damaged = [result for result in results if result.state == "damaged"]
    if damaged:
        message = f"damaged: {', '.join(result.title for result in damaged)} ({len(damaged)} of {len(results)} items)"
        parts = dict.fromkeys(result.part for result in damaged if result.error is None)
        if not parts:
            raise DataError(message)
        folders = [*data_dir_arguments(mmf_paths.data_dir), *(["--save-dir", save_dir] if save_dir else [])]
        repair = format_command("mmfw", "repair", *(arguments or parts), *folders)
        raise DataError(message, hint=f"run `{repair}`")


def resolve_arguments(
    arguments: Sequence[str], data_dir: Path | None, save_dir: Path | None
) -> tuple[Sequence[str], Sequence[str], MmfPaths]:
    """Return the names and the overrides among the arguments, and MMF's folders.

    Raises:
        UsageError: A folder does not exist.
    """
    names, overrides = split_arguments(arguments)
    for folder in (data_dir, save_dir if "runs" in names else None):
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{folder}: folder not found", hint="check the path")
    return names, overrides, MmfPaths.resolve(data_dir, save_dir)


def to_json(result: VerificationResult) -> dict[str, Any]:
    """Return the result as JSON values."""
    return {
        "part": result.part,
        "what": result.title,
        "folder": result.folder,
        "state": result.state,
        "problems": result.problems,
        "repaired": result.repaired,
        "verified": format_utc_time(result.verified_at),
        "against": result.verified_against or None,
        "bytes": result.size,
        "error": str(result.error) if result.error else None,
        "hint": result.error.hint if result.error else None,
    }


def print_results(results: Sequence[VerificationResult], *, as_json: bool = False) -> None:
    """Print the results, and the problems of each file."""
    if as_json:
        print_json([to_json(result) for result in results])
        return
    if not results:
        print_status("nothing to verify yet")
        return
    rows = []
    for result in results:
        verified_at = f" ({format_local_time(result.verified_at)})" if result.verified_at else ""
        against = f"{result.verified_against}{verified_at}" if result.verified_against else None
        size = format_size(result.size) if result.size else None
        rows.append((result.title, result.state, size, against, result.folder))
    print(format_table(("item", "state", "size", "verified against", "folder"), rows), flush=True)
    for result in results:
        label, code = f"{result.title}:", 31 if result.state == "damaged" else 32
        for problem in summarize_lines(result.problems if result.state == "damaged" else ()):
            print_status(problem, label=label, ansi_code=code)
        for file in summarize_lines(result.repaired):
            print_status(file, label=f"{label} repaired:", ansi_code=code)
        if result.error is not None:
            message = result.error.message_without(label)
            if message != "; ".join(result.problems):
                print_status(message, label=label, ansi_code=code)
            if result.error.hint:
                print_status(result.error.hint, label="hint:", ansi_code=36)

"""How findings are shown: one table and one JSON for every command that verifies or repairs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click

from mmf_win.commands.completion import completed_by
from mmf_win.console import aligned, colour, moment, print_json, say, size, without_control_characters
from mmf_win.errors import DataError, PasswordError, UsageError
from mmf_win.integrity.finding import Finding

_SHOWN = 10

what = click.argument(
    "what",
    nargs=-1,
    metavar="[dataset|features|runs|mmf|PRESET|RUN ...] [KEY=VALUE ...]",
    shell_complete=completed_by("dataset", "features", "runs", "mmf", "PRESET", "RUN"),
)
"""What to verify or repair."""


def require_folders(*named: Path | None) -> None:
    """Refuse folders that are not there, in which nothing would be found.

    Raises:
        UsageError: a folder that was named is not there.
    """
    for folder in named:
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder, so there is nothing to verify in it")


def to_json(finding: Finding) -> dict[str, Any]:
    """Plain values, for scripts."""
    named = ("part", "what", "folder", "state", "problems", "repaired", "verified")
    return {
        **{name: getattr(finding, name) for name in named},
        "against": finding.against or None,
        "bytes": finding.size,
        "error": str(finding.error) if finding.error else None,
        "hint": finding.error.hint if finding.error else None,
    }


def show(findings: Sequence[Finding], *, as_json: bool = False) -> None:
    """Print what was found, and what is wrong with each file."""
    if as_json:
        print_json([to_json(finding) for finding in findings])
        return
    if not findings:
        say("there is nothing to verify yet")
        return
    rows = [
        (f.what, f.state, size(f.size) if f.size else None, _verified(f), str(f.folder)) for f in findings
    ]
    print(aligned(("what", "state", "size", "verified against", "where"), rows), flush=True)
    for finding in findings:
        what = colour(finding.what, 31 if finding.state == "damaged" else 32)
        _list(what, finding.problems if finding.state == "damaged" else ())
        _list(f"{what}: repaired", finding.repaired)
        if finding.error is not None:
            said = str(finding.error).removeprefix(f"{finding.what}: ")
            if said != "; ".join(finding.problems):
                say(f"{what}: {without_control_characters(said)}")
            if finding.error.hint:
                say(f"{colour('hint:', 36)} {without_control_characters(finding.error.hint)}")


def require_intact(findings: Collection[Finding]) -> None:
    """After a repair, say what is still damaged.

    Raises:
        PasswordError: for want of a password.
        DataError: for another reason.
    """
    kind = PasswordError if any(isinstance(f.error, PasswordError) for f in findings) else DataError
    damaged = [finding.what for finding in findings if finding.state == "damaged"]
    if damaged:
        raise kind(f"{len(damaged)} of {len(findings)} are still damaged: {', '.join(damaged)}")
    failed = [finding.what for finding in findings if finding.error is not None]
    if failed:
        raise kind(f"cannot be repaired: {', '.join(failed)}")
    if findings and not any(finding.repaired for finding in findings):
        unknown = [finding.what for finding in findings if finding.state == "not verified"]
        instead = f"nothing is known to be damaged; not verified: {', '.join(unknown)}"
        say(instead if unknown else "nothing is damaged")


def _list(title: str, problems: Sequence[str]) -> None:
    for problem in problems[:_SHOWN]:
        say(f"{title}: {without_control_characters(problem)}")
    if len(problems) > _SHOWN:
        say(f"{title}: and {len(problems) - _SHOWN} more")


def _verified(finding: Finding) -> str | None:
    when = f" ({moment(finding.verified)})" if finding.verified else ""
    return f"{finding.against}{when}" if finding.against else None

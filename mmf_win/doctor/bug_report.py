"""Bug reports: a zip with information about the machine and the records of a run, without secrets."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmf_win.console import escape_controls
from mmf_win.errors import DataError
from mmf_win.files import atomic_replace, require_no_special_file
from mmf_win.protocol import AttemptFolder
from mmf_win.runs.folder import Run
from mmf_win.scrub import make_scrubber

_MAX_BYTES = 1 << 20  # per file, from its end, where errors are


def write_bug_report(run: Run | None, doctor_report: Mapping[str, Any], path: Path, *, include_logs: bool) -> list[str]:
    """Write the zip of a bug report.

    Args:
        run: Run of the report, if any.
        doctor_report: Result of ``mmfw doctor``.
        path: Path of the zip.
        include_logs: Include the output of the run.

    Returns:
        The names of the members.
    """
    overrides: list[tuple[str, str]] = []  # scrubbed as pairs, because MMF's log separates keys from values
    with suppress(DataError):
        overrides = [(key, str(value)) for key, value in run.request().user_settings.items()] if run else []
    scrub = make_scrubber([*os.environ.items(), *overrides])
    records = {"doctor.json": json.dumps(doctor_report, default=str, indent=2, ensure_ascii=False)}
    records |= {f"run/{name}": _read_end(file) for name, file in _list_run_files(run, include_logs)}
    with atomic_replace(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, escape_controls(scrub(content)).encode("utf-8", "backslashreplace"))
    return list(records)


def _list_run_files(run: Run | None, include_logs: bool) -> Iterator[tuple[str, Path]]:
    if run is None:
        return
    files = [run.request_file, run.events, run.legacy_outcome_file, *([run.log] if include_logs else [])]
    for folder in map(AttemptFolder, sorted(run.path.glob("attempts/*"))):
        files += [folder.request_file, folder.config, folder.outcome_file, folder.helper_outcome_file, folder.events]
        files += [folder.log] if include_logs else []
    yield from ((file.relative_to(run.path).as_posix(), file) for file in files if file.exists())


def _read_end(file: Path) -> str:
    try:
        require_no_special_file(file)
        content = file.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    tail = content[-_MAX_BYTES:].partition(b"\n")[2] if len(content) > _MAX_BYTES else content
    return tail.decode("utf-8", "replace")

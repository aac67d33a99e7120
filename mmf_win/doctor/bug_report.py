"""What helps to find a bug: one zip of what is known of the machine and of a run's records.

Predictions, pages, pictures, checkpoints and MMF's configuration stay out, and what goes in is scrubbed.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmf_win.doctor.scrub import Scrubber
from mmf_win.errors import DataError
from mmf_win.files import replacing, require_end
from mmf_win.paths import Places, new_file
from mmf_win.protocol import AttemptFolder
from mmf_win.runs.folder import Run

_ANNOTATIONS = re.compile(r"[^=,\[\]\"']+\.jsonl")
_MOST = 1 << 20  # of a file; what went wrong is at its end


def write(run: Run | None, about: Mapping[str, Any], places: Places, folder: Path) -> tuple[Path, list[str]]:
    """Write ``mmfw-bug-report-<time>.zip``.

    Args:
        run: whose records go into it.
        about: what is known of the machine and the installation, as JSON.
        places: where the dataset lies whose texts must not be in it.
        folder: where the zip goes.

    Returns:
        The zip and the names of what is in it.
    """
    scrubber = Scrubber(_texts(run, places), [*os.environ.items(), *_overrides(run)])
    with (
        new_file(folder, "mmfw-bug-report-", ".zip") as path,
        replacing(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        archive.writestr("doctor.json", scrubber.file("doctor.json", json.dumps(about, default=str)))
        for name, file in _records(run):
            archive.writestr(f"run/{name}", scrubber.file(name, _end_of(file)))
        names = archive.namelist()
    return path, names


def _records(run: Run | None) -> Iterator[tuple[str, Path]]:
    if run is None:
        return
    files = [run.request_file, run.events, run.exit_file, run.log]
    for folder in sorted(run.path.glob("attempts/*")):
        attempt = AttemptFolder(folder)
        files += [attempt.request, attempt.exit, attempt.helper_exit, attempt.log]
    yield from ((file.relative_to(run.path).as_posix(), file) for file in files if file.exists())


def _end_of(file: Path) -> str:
    try:
        require_end(file)
        content = file.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    cut = content[-_MOST:].partition(b"\n")[2] if len(content) > _MOST else content
    return cut.decode("utf-8", "replace")


def _texts(run: Run | None, places: Places) -> Iterator[str]:
    """Those of the datasets that the run and the command know, and of the user's own memes.

    Own memes whose prediction crashed are nowhere: their annotations were in a temporary folder.
    """
    files = {*places.dataset.annotations.glob("*.jsonl")}
    if run is not None:
        files.update(run.reports.glob("*.jsonl"))
        with suppress(DataError):
            request = run.request()
            data = Places.resolve(Path(request.data_dir)).dataset
            files.update(data.annotations.glob("*.jsonl"))
            named = (name for override in request.overrides for name in _ANNOTATIONS.findall(override))
            files.update(data.data_dir / "datasets" / name.strip() for name in named)  # as MMF does
    for file in files:
        with suppress(OSError):
            for line in file.read_text(encoding="utf-8-sig", errors="replace").split("\n"):
                yield from _text_of(line)


def _overrides(run: Run | None) -> Iterator[tuple[str, str]]:
    """Key and value of what the run was given; MMF's log has them apart."""
    with suppress(DataError):
        for override in run.request().overrides if run else ():
            key, _, value = override.partition("=")
            yield key, value


def _text_of(line: str) -> Iterator[str]:
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
        if isinstance(row, dict) and isinstance(row.get("text"), str):
            yield row["text"]

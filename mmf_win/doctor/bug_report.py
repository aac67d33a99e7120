"""What helps to find a bug: one zip of what is known of the machine and of a run's records, scrubbed."""

from __future__ import annotations

import getpass
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mmf_win.console import SECRET, without_control_characters, without_secrets
from mmf_win.errors import DataError
from mmf_win.files import replacing, require_end
from mmf_win.paths import new_file
from mmf_win.protocol import AttemptFolder
from mmf_win.runs.folder import Run

_MOST = 1 << 20  # of a file; what went wrong is at its end
_SECRET_NAME = re.compile(rf"(?i){SECRET}$")
# To the end of the line, or of a JSON text that ends there: a password may hold blanks and quotation marks.
_NAMED = rf"(?im)({SECRET}[\\\"']*\s*[=:]\s*\"?|--[\w-]{{0,40}}{SECRET}[\"',\s]+).+?(?=\"[\]}},]*$|$)"
_TOKEN = (
    r"(?i:\bbearer)(?:\s|\\t)+\S+"
    r"|\b(?:hf_\w{8,}|gh[a-z]_\w{8,}|github_pat_\w{8,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,})"
)
_SPELLINGS = (repr, ascii, json.dumps, json.JSONEncoder(ensure_ascii=False).encode)
_SHORTEST = 6  # replacing the value of a shorter secret would tear numbers and words


def write(run: Run | None, about: Mapping[str, Any], folder: Path, *, log: bool) -> tuple[Path, list[str]]:
    """Write ``mmfw-bug-report-<time>.zip``; with ``log``, also what the run printed goes into it.

    Returns:
        The zip and the names of what is in it.
    """
    scrub = scrubber([*os.environ.items(), *_overrides(run)])
    records = {"doctor.json": json.dumps(about, default=str, indent=2, ensure_ascii=False)}
    records |= {f"run/{name}": _end_of(file) for name, file in _records(run, log)}
    with (
        new_file(folder, "mmfw-bug-report-", ".zip") as path,
        replacing(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, content in records.items():
            text = without_control_characters(scrub(content))
            archive.writestr(name, text.encode("utf-8", "backslashreplace"))
    return path, list(records)


def _records(run: Run | None, log: bool) -> Iterator[tuple[str, Path]]:
    if run is None:
        return
    files = [run.request_file, run.events, run.exit_file, *([run.log] if log else [])]
    for each in map(AttemptFolder, sorted(run.path.glob("attempts/*"))):
        files += [each.request, each.config, each.exit, each.helper_exit, each.events]
        files += [each.log] if log else []
    yield from ((file.relative_to(run.path).as_posix(), file) for file in files if file.exists())


def _end_of(file: Path) -> str:
    try:
        require_end(file)
        content = file.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    cut = content[-_MOST:].partition(b"\n")[2] if len(content) > _MOST else content
    return cut.decode("utf-8", "replace")


def _overrides(run: Run | None) -> Iterator[tuple[str, str]]:
    """Key and value of what the run was given; MMF's log has them apart."""
    with suppress(DataError):
        for key, value in run.request().chosen.items() if run else ():
            yield key, str(value)


def scrubber(settings: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """A function that scrubs a text, JSON or not.

    Args:
        settings: names and values of variables and overrides; where the name is that of a secret, the value
            is taken out wherever it is.
    """
    secrets = {
        value.strip()
        for name, value in settings
        if _SECRET_NAME.search(name) and name not in ("PWD", "OLDPWD")  # these are folders
    }
    # The longest first, since one may begin as another.
    values = sorted((value for value in secrets if len(value) >= _SHORTEST), key=len, reverse=True)
    patterns = {
        "|".join(map(_spelt, values)) or "(?!)": "<secret>",
        _NAMED: r"\1<secret>",
        _TOKEN: "<secret>",
    }
    home = Path.home()
    if home.parts[1:]:
        folders = "".join(rf"(?:[/\\]|%5C|%2F)+{_spelt(part)}" for part in home.parts[1:])
        patterns[rf"(?i){re.escape(home.drive)}{folders}(?![\w.-])"] = "~"
    with suppress(KeyError, OSError, ImportError):  # a container's user may have no name
        patterns[rf"(?i)(?<=[/\\]){_spelt(getpass.getuser())}(?![\w.-])"] = "<user>"

    def scrub(text: str) -> str:
        for pattern, instead in patterns.items():
            text = re.sub(pattern, instead, text)
        return without_secrets(text)

    return scrub


def _spelt(text: str) -> str:
    """A pattern of a text as it is, and as addresses, Python, JSON and one within the other write it."""
    ways = {text}
    for _ in range(2):
        ways |= {spell(way)[1:-1] for way in ways for spell in _SPELLINGS}
    ways |= {quote(text, safe, errors="surrogateescape") for safe in ("", "/")}
    return f"(?:{'|'.join(map(re.escape, sorted(ways, key=len, reverse=True)))})"

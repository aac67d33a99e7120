"""Console output: messages, progress, tables, sizes and times. Only results go to stdout."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timezone
from difflib import get_close_matches
from io import StringIO
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tqdm import tqdm

_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_CMD_METACHARACTERS = re.compile(r"[&|<>^()%]")
Unit = Literal["B", "file", "update", "image", "task"]
#: Minimum width of a text column on a narrow terminal, in characters.
_MIN_WIDTH = 7


class Timestamp(float):
    """Time in seconds since the epoch."""


class _Stderr:
    """stderr that ignores write errors, so that work continues when the terminal or pipe is gone.

    On Windows, ``sys.stderr`` is None in a program without a console.
    """

    def write(self, text: str) -> int:
        with suppress(OSError):
            if sys.stderr is not None:
                sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            if sys.stderr is not None:
                sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr is not None and sys.stderr.isatty()

    def __getattr__(self, name: str) -> Any:
        """Return attributes such as ``encoding`` and ``fileno``, which tqdm uses to draw a bar."""
        return getattr(sys.stderr, name)


_stderr = _Stderr()
#: The progress bars on the terminal; a line of text must be printed through one of them.
_bars: list[tqdm[Any]] = []
_progress_hidden = ContextVar("_progress_hidden", default=False)


def escape_controls(text: object) -> str:
    """Escape control and bidirectional characters in untrusted text, except line ends."""
    lines = str(text).replace("\r\n", "\n")
    return _CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", lines)  # JSON's notation


def print_status(text: str = "", *, label: str = "", ansi_code: int = 0) -> None:
    """Print a message to stderr; results that a script may read go to stdout by :func:`print_result`.

    Args:
        text: The message; control characters in it are escaped.
        label: Text before the message, such as ``error:``.
        ansi_code: ANSI colour of the label.
    """
    line = escape_controls(text)
    if label:
        line = f"{colour_text(label, ansi_code)} {line}".rstrip(" ")
    if _bars:
        _bars[-1].write(line, file=_stderr)
    else:
        print(line, file=_stderr, flush=True)


def _is_terminal() -> bool:
    """Return whether stdout is a terminal; ``sys.stdout`` is None if it is closed or there is no console."""
    return sys.stdout is not None and sys.stdout.isatty()


def print_result(text: object) -> None:
    """Print a line to stdout; on a terminal, control characters are escaped."""
    print(escape_controls(text) if _is_terminal() else text, flush=True)


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, object]], delimiter: str = ",") -> None:
    """Print a table to stdout as CSV."""
    output = StringIO()
    writer = csv.DictWriter(output, columns, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    print_result(output.getvalue().removesuffix("\n"))


class _StatusHandler(logging.Handler):
    """Log handler that prints records to stderr, warnings with a label."""

    def emit(self, record: logging.LogRecord) -> None:
        label = "warning: " if record.levelno >= logging.WARNING else ""
        print_status(label + record.getMessage())


@contextmanager
def show_log_messages() -> Iterator[None]:
    """Show log messages of mmfw on stderr while the block runs."""
    logger, handler = logging.getLogger("mmf_win"), _StatusHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def format_command(*arguments: object) -> str:
    """Return a command line that can be pasted into a shell of this system."""
    texts = [str(argument) for argument in arguments]
    if os.name != "nt":
        return shlex.join(texts)
    return " ".join(map(_quote_for_cmd, texts))


def _quote_for_cmd(argument: str) -> str:
    if not _CMD_METACHARACTERS.search(argument):
        return subprocess.list2cmdline([argument])
    # list2cmdline quotes only arguments with a space, so add one and remove it again.
    return '"' + subprocess.list2cmdline([f" {argument}"]).removeprefix('" ')


def colour_text(text: str, ansi_code: int) -> str:
    """Return ``text`` in an ANSI colour if stderr is a terminal and NO_COLOR is not set."""
    text = escape_controls(text)
    if os.environ.get("NO_COLOR") or not _stderr.isatty():
        return text
    return f"\x1b[{ansi_code}m{text}\x1b[0m"


def print_json(value: object, *, on_one_line: bool = False) -> None:
    """Print a JSON value to stdout.

    Paths become text, and :func:`format_utc_time` formats each :class:`Timestamp`. The output is ASCII, since
    a Windows pipe may not accept UTF-8.
    """
    print(json.dumps(_format_timestamps(value), indent=None if on_one_line else 2, default=os.fspath), flush=True)


def _format_timestamps(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return format_utc_time(value)
    if isinstance(value, (list, tuple)):
        return [_format_timestamps(entry) for entry in value]
    return {key: _format_timestamps(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value


def print_settings(settings: dict[str, Any], as_json: bool) -> None:
    """Print a settings tree to stdout as JSON or YAML, in ASCII."""
    from yaml import safe_dump

    print(json.dumps(settings, indent=2) if as_json else safe_dump(settings, sort_keys=False).rstrip(), flush=True)


def format_size(byte_count: float) -> str:
    """Return a number of bytes in powers of 1024 for people: ``3.4 GiB``."""
    for unit, digits in {"B": 0, "KiB": 1, "MiB": 1, "GiB": 1}.items():
        if abs(round(byte_count, digits)) < 1024:
            return f"{byte_count:.{digits}f} {unit}"
        byte_count /= 1024
    return f"{byte_count:.1f} TiB"


def summarize_list(names: Sequence[str], max_shown: int = 3) -> str:
    """Return the first names, for people: ``a, b, c …``."""
    return ", ".join(names[:max_shown]) + (" …" if len(names) > max_shown else "")


def summarize_lines(lines: Sequence[str], max_shown: int = 10) -> list[str]:
    """Return the first lines, followed by the number of omitted ones."""
    hidden = len(lines) - max_shown
    return [*lines[:max_shown], *([f"and {hidden} more"] if hidden > 0 else [])]


def suggestion_hint(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``did you mean NAME? `` for the most similar candidate, or an empty string."""
    matches = get_close_matches(word.casefold(), list(candidates), n=1, cutoff=cutoff)
    return f"did you mean {matches[0]}? " if matches else ""


def format_utc_time(seconds: float | None) -> str | None:
    """Return a time since the epoch in ISO 8601, in UTC: ``2026-01-31T12:00:00+00:00``."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def format_local_time(seconds: float | None) -> str:
    """Return a time since the epoch as local time for people, or ``-`` if it is unknown."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def format_duration(seconds: float) -> str:
    """Return a duration for people: ``7 s``, ``3 min 20 s``, ``2 h 5 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = {"h": hours, "min": minutes, "s": 0 if hours else rest}
    return " ".join(f"{amount} {unit}" for unit, amount in parts.items() if amount) or "0 s"


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, optional: Sequence[str] = ()) -> str:
    """Format a table with columns aligned by spaces.

    Numbers are right-aligned, and ``None`` is shown as ``-``. If the terminal is too narrow, optional columns
    are dropped first; then long texts are wrapped, except in the first column, whose names may be copied.

    Args:
        header: Column titles.
        rows: Cell values.
        optional: Titles of the columns that may be dropped, in this order.

    Returns:
        The lines of the table, without a line end after the last one.
    """
    cells = [[_format_cell(name) for name in header], *([_format_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    max_width = shutil.get_terminal_size().columns - 2 * (len(widths) - 1) if _is_terminal() else sum(widths)
    if sum(widths) > max_width and optional:
        kept = [i for i, name in enumerate(header) if name != optional[0]]
        kept_rows = [[row[i] for i in kept] for row in rows]
        return format_table([header[i] for i in kept], kept_rows, optional=optional[1:])
    is_numeric = [any(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]
    min_widths = [max(len(row[i]) for row in cells[1:]) if is_numeric[i] else _MIN_WIDTH for i in range(len(header))]
    min_widths[0] = widths[0]
    while sum(widths) > max_width and (foldable := [i for i, w in enumerate(widths) if w > min_widths[i]]):
        widths[max(foldable, key=lambda i: widths[i])] -= 1
    lines = []
    for row in cells:
        folded = [wrap(cell, w, break_on_hyphens=False) or [""] for cell, w in zip(row, widths, strict=True)]
        for parts in zip_longest(*folded, fillvalue=""):
            columns = zip(parts, widths, is_numeric, strict=True)
            lines.append("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in columns).rstrip())
    return "\n".join(lines)


def _format_cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "-" if value is None else escape_controls(value).replace("\n", "\\n")


@contextmanager
def hide_progress() -> Iterator[None]:
    """Hide progress of this thread while the block runs; for a library, which prints nothing."""
    token = _progress_hidden.set(True)
    try:
        yield
    finally:
        _progress_hidden.reset(token)


class Progress:
    """Progress bar on a terminal; elsewhere a plain line every ten seconds, and none for short work.

    Args:
        title: Text before the bar.
        total: Amount of work in ``unit``, or None if it is unknown.
        unit: Unit of the work; ``B`` is shown in powers of 1024.
        initial: Amount that was done before.
        leave: Keep the finished bar on the terminal.
    """

    _PLAIN_INTERVAL_SECONDS = 10.0

    def __init__(
        self, title: str, total: int | None, unit: Unit = "B", initial: int = 0, *, leave: bool = True
    ) -> None:
        self.done = initial
        self._title, self._leave, self._note = escape_controls(title), leave, ""
        self._bar: tqdm[Any] | None = None
        self._scale: dict[str, Any] = {"total": total, "initial": initial, "unit": unit}
        self._scale |= {"unit_scale": unit == "B", "unit_divisor": 1024}
        self._start = time.monotonic()
        self._next_line = float("inf") if _progress_hidden.get() else self._start + self._PLAIN_INTERVAL_SECONDS

    def __enter__(self) -> Progress:
        if _stderr.isatty() and not _progress_hidden.get():
            from tqdm import tqdm

            self._bar = tqdm(desc=self._title, dynamic_ncols=True, leave=self._leave, file=_stderr, **self._scale)
            _bars.append(self._bar)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            _bars.remove(self._bar)
            self._bar.close()

    def advance(self, amount: int) -> None:
        """Add ``amount`` to the finished work."""
        self.done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif (now := time.monotonic()) >= self._next_line:
            from tqdm import tqdm

            self._next_line = now + self._PLAIN_INTERVAL_SECONDS
            options = {**self._scale, "prefix": self._title, "postfix": self._note}
            print_status(tqdm.format_meter(self.done, elapsed=now - self._start, ncols=0, **options))

    def annotate(self, note: str) -> None:
        """Show ``note`` next to the numbers from now on."""
        self._note = note
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)

"""What the user sees: notes, progress, tables, sizes and times. Everything but results goes to stderr."""

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
#: Letters that a column of text keeps on a narrow terminal.
_MIN_COLUMN_WIDTH = 7


class Timestamp(float):
    """A time in seconds since the epoch."""


class _Stderr:
    """stderr, for as long as there is one: work goes on when the terminal or the pipe is gone.

    On Windows it may be None from the start, as in a program without a console.
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
        """Its encoding and descriptor, from which tqdm learns how to draw a bar and how wide."""
        return getattr(sys.stderr, name)


_stderr = _Stderr()
#: The bars on the terminal, which a line of text must not tear.
_bars: list[tqdm[Any]] = []
_progress_hidden = ContextVar("_progress_hidden", default=False)


def escape_controls(text: object) -> str:
    """What somebody else may have written, without what would steer a terminal or turn a text around.

    Control characters other than ends of lines, and those of writing from right to left, are escaped.
    """
    lines = str(text).replace("\r\n", "\n")
    return _CONTROL_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", lines)  # as JSON may have it


def print_status(text: str = "", *, label: str = "", ansi_code: int = 0) -> None:
    """Tell the user something; results that a script may want go to stdout by :func:`print_result` instead.

    Args:
        text: may hold names from elsewhere: what would steer the terminal is escaped.
        label: stands before it, in the ANSI colour ``code``.
    """
    shown = escape_controls(text)
    if label:
        shown = f"{colour_text(label, ansi_code)} {shown}".rstrip(" ")
    if _bars:
        _bars[-1].write(shown, file=_stderr)
    else:
        print(shown, file=_stderr, flush=True)


def _is_terminal() -> bool:
    """Whether stdout is one; it is None where a shell has closed it, and in a program without a console."""
    return sys.stdout is not None and sys.stdout.isatty()


def print_result(text: object) -> None:
    """A line on stdout: for a script as it is, on a terminal without what would steer it."""
    print(escape_controls(text) if _is_terminal() else text, flush=True)


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, object]], delimiter: str = ",") -> None:
    """A table on stdout, for scripts."""
    table = StringIO()
    writer = csv.DictWriter(table, columns, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    print_result(table.getvalue().removesuffix("\n"))


class _StatusHandler(logging.Handler):
    """Shows what the library logs: information as it is, warnings as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = "note: " if record.levelno >= logging.WARNING else ""
        print_status(kind + record.getMessage())


@contextmanager
def show_log_messages() -> Iterator[None]:
    """Show on stderr what mmfw logs, as long as the context lasts."""
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
    """A command line that can be pasted into a shell of this system."""
    texts = [str(word) for word in arguments]
    if os.name != "nt":
        return shlex.join(texts)
    return " ".join(map(_quote_for_cmd, texts))


def _quote_for_cmd(argument: str) -> str:
    if not _CMD_METACHARACTERS.search(argument):
        return subprocess.list2cmdline([argument])
    # It quotes for the sake of the space alone.
    return '"' + subprocess.list2cmdline([f" {argument}"]).removeprefix('" ')


def colour_text(text: str, ansi_code: int) -> str:
    """``text`` in an ANSI colour, where stderr is a terminal and NO_COLOR is not set."""
    text = escape_controls(text)
    if os.environ.get("NO_COLOR") or not _stderr.isatty():
        return text
    return f"\x1b[{ansi_code}m{text}\x1b[0m"


def print_json(value: object, *, on_one_line: bool = False) -> None:
    """One JSON value on stdout, paths as text, each :class:`Timestamp` as :func:`format_utc_time` writes it.

    ASCII only: a Windows pipe may not speak UTF-8.
    """
    print(
        json.dumps(_format_timestamps(value), indent=None if on_one_line else 2, default=os.fspath),
        flush=True,
    )


def _format_timestamps(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return format_utc_time(value)
    if isinstance(value, (list, tuple)):
        return [_format_timestamps(entry) for entry in value]
    return (
        {key: _format_timestamps(entry) for key, entry in value.items()}
        if isinstance(value, Mapping)
        else value
    )


def print_settings(settings: dict[str, Any], as_json: bool) -> None:
    """A tree of settings on stdout, as JSON or as YAML, in ASCII as well."""
    from yaml import safe_dump

    print(
        json.dumps(settings, indent=2) if as_json else safe_dump(settings, sort_keys=False).rstrip(),
        flush=True,
    )


def format_size(byte_count: float) -> str:
    """A number of bytes for people, in powers of 1024: ``3.4 GiB``."""
    for unit, digits in {"B": 0, "KiB": 1, "MiB": 1, "GiB": 1}.items():
        if abs(round(byte_count, digits)) < 1024:
            return f"{byte_count:.{digits}f} {unit}"
        byte_count /= 1024
    return f"{byte_count:.1f} TiB"


def summarize_list(names: Sequence[str], max_shown: int = 3) -> str:
    """The first of some names, for people: ``a, b, c …``."""
    return ", ".join(names[:max_shown]) + (" …" if len(names) > max_shown else "")


def summarize_lines(lines: Sequence[str], max_shown: int = 10) -> list[str]:
    """The first of some lines, and how many more there are."""
    rest = len(lines) - max_shown
    return [*lines[:max_shown], *([f"and {rest} more"] if rest > 0 else [])]


def suggestion_hint(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """``did you mean NAME? ``, to be followed by more; empty where no known name is near."""
    near = get_close_matches(word.casefold(), list(candidates), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}? " if near else ""


def format_utc_time(seconds: float | None) -> str | None:
    """A time since the epoch for scripts, by ISO 8601 in UTC: ``2026-01-31T12:00:00+00:00``."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def format_local_time(seconds: float | None) -> str:
    """A time since the epoch for people, by the local clock; ``-`` where it is not known."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def format_duration(seconds: float) -> str:
    """A time span for people: ``7 s``, ``3 min 20 s``, ``2 h 5 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = {"h": hours, "min": minutes, "s": 0 if hours else rest}
    return " ".join(f"{amount} {unit}" for unit, amount in parts.items() if amount) or "0 s"


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, optional: Sequence[str] = ()
) -> str:
    """Columns aligned by spaces; numbers to the right, ``None`` as ``-``.

    On a terminal that is too narrow, ``optional`` columns are left out, the first of them first; then texts
    continue on the next line, but for the first column, whose names may be copied.
    """
    cells = [
        [_format_cell(name) for name in header],
        *([_format_cell(value) for value in row] for row in rows),
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1) if _is_terminal() else sum(widths)
    if sum(widths) > room and optional:
        kept = [i for i, name in enumerate(header) if name != optional[0]]
        fewer = [[row[i] for i in kept] for row in rows]
        return format_table([header[i] for i in kept], fewer, optional=optional[1:])
    right = [any(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]
    least = [
        max(len(row[i]) for row in cells[1:]) if right[i] else _MIN_COLUMN_WIDTH for i in range(len(header))
    ]
    least[0] = widths[0]
    while sum(widths) > room and (foldable := [i for i, width in enumerate(widths) if width > least[i]]):
        widths[max(foldable, key=lambda i: widths[i])] -= 1
    lines = []
    for row in cells:
        folded = [wrap(cell, w, break_on_hyphens=False) or [""] for cell, w in zip(row, widths, strict=True)]
        for parts in zip_longest(*folded, fillvalue=""):
            columns = zip(parts, widths, right, strict=True)
            lines.append("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in columns).rstrip())
    return "\n".join(lines)


def _format_cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "-" if value is None else escape_controls(value).replace("\n", "\\n")


@contextmanager
def hide_progress() -> Iterator[None]:
    """Show no progress of what this thread does meanwhile, for a library that prints nothing."""
    token = _progress_hidden.set(True)
    try:
        yield
    finally:
        _progress_hidden.reset(token)


class Progress:
    """One bar on a terminal; elsewhere a plain line every ten seconds, and none for short work.

    Of the ``total``, None where it is not known, ``initial`` was done before. ``B`` is shown in powers of
    1024. With ``leave``, a finished bar stays on the terminal.
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
        self._next_line = (
            float("inf") if _progress_hidden.get() else self._start + self._PLAIN_INTERVAL_SECONDS
        )

    def __enter__(self) -> Progress:
        if _stderr.isatty() and not _progress_hidden.get():
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self._title, dynamic_ncols=True, leave=self._leave, file=_stderr, **self._scale
            )
            _bars.append(self._bar)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            _bars.remove(self._bar)
            self._bar.close()

    def advance(self, amount: int) -> None:
        """``amount`` more is done."""
        self.done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif (now := time.monotonic()) >= self._next_line:
            from tqdm import tqdm

            self._next_line = now + self._PLAIN_INTERVAL_SECONDS
            figures = {**self._scale, "prefix": self._title, "postfix": self._note}
            print_status(tqdm.format_meter(self.done, elapsed=now - self._start, ncols=0, **figures))

    def annotate(self, note: str) -> None:
        """Show ``note`` beside the figures from now on."""
        self._note = note
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)

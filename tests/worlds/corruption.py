"""Damage to the files of a run, as a disk, a crash or a person may do it; the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**40, 1.5, float("nan"), float("inf"), -float("inf"), 1e300, "", "text",
    "\ud800", "\x1b[2J\0",
    [], [1, "a", None], {}, {"a": {"b": 1}}, {"split": 1, "rows": "x"}, "9" * 5000,
)  # fmt: skip
"""What takes the place of a value somewhere in a JSON file."""


def damage(file: Path, random: Random) -> str:
    """Damage a file, and say how."""
    content = file.read_bytes()
    kinds = {
        "empty": lambda: b"",
        "cut": lambda: content[: random.randrange(max(1, len(content)))],
        "zeros": lambda: bytes(len(content)),
        "a byte": lambda: _with_byte(content, random),
        "not UTF-8": lambda: b"\xff\xfe" + content,
        "twice": lambda: content + content,
        "deep list": lambda: b"[" * 100_000 + b"]" * 100_000 + b"\n",
        "deep object": lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
        "another value": lambda: json.dumps(random.choice(VALUES)).encode() + b"\n",
        "huge line": lambda: json.dumps({"kind": "note", "text": "x" * 3_000_000}).encode() + b"\n",
    }
    if file.suffix in (".json", ".jsonl"):
        for _ in range(2 * len(kinds)):
            kinds[f"values {len(kinds)}"] = lambda: _with_other_values(content, random)
    kind = random.choice([*kinds, "folder", "gone"])
    if kind in ("folder", "gone"):
        file.unlink()
        if kind == "folder":
            file.mkdir()
        return kind
    file.write_bytes(kinds[kind]())
    return kind


def _with_byte(content: bytes, random: Random) -> bytes:
    place = random.randrange(max(1, len(content)))
    return content[:place] + bytes([random.randrange(256)]) + content[place + 1 :]


def _with_other_values(content: bytes, random: Random) -> bytes:
    """JSON, or lines of it, with one to three values replaced or left out."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    values = [json.loads(line) for line in lines]
    for _ in range(random.randint(1, 3)):
        row = random.randrange(len(values))
        if isinstance(values[row], (dict, list)):
            _replace_within(values[row], random)
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def _replace_within(value: Any, random: Random) -> None:
    places = list(_places(value))
    if not places:
        return
    holder, key = random.choice(places)
    if random.random() < 0.15:
        del holder[key]
    else:
        holder[key] = deepcopy(random.choice(VALUES))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)

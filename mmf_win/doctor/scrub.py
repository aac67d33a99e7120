"""Takes out of texts what is nobody's business: secrets, the texts of memes, and who the user is."""

from __future__ import annotations

import getpass
import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mmf_win.console import without_secrets
from mmf_win.files import json_bytes

_NAMES = (
    r"(?:pass(?:word|wd|phrase|code)s?|pwd|secrets?|token|credentials?|authorization|cookie|amz-signature"
    r"|(?:api|access|auth|private|secret|wandb)[_-]?key(?:[_-]id|s)?)"
)
_SECRET_NAME = re.compile(rf"(?i){_NAMES}$")
_SECRETS = (
    # To the end of the line: a password may hold blanks and quotation marks.
    (re.compile(rf"(?i)({_NAMES}[\"']?\s*[=:]\s*|--[\w-]{{0,40}}{_NAMES}[\"',\s]+).+"), r"\1<secret>"),
    (re.compile(r"(?i)\bbearer\s+\S+"), "<secret>"),
    (
        re.compile(r"\b(?:hf_\w{8,}|gh[a-z]_\w{8,}|github_pat_\w{8,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,})"),
        "<secret>",
    ),
)
_SECRET_OPTION = re.compile(rf"(?i)--[\w-]*{_NAMES}$")
_WORD = re.compile(r"\w+")
_SHORTEST = 3
_SHORTEST_SECRET = 6  # replacing a shorter value would tear numbers and words


class Scrubber:
    """Scrubs files.

    Args:
        texts: of the memes.
        settings: names and values of variables and overrides; where the name is that of a secret, the value
            is taken out as well.
    """

    def __init__(self, texts: Iterable[str], settings: Iterable[tuple[str, str]]) -> None:
        self._texts: dict[str, set[tuple[str, ...]]] = {}
        for words in (words for text in texts for words in _spellings(text)):
            self._texts.setdefault(words[0], set()).add(words)
        secrets = [
            value.strip()
            for name, value in settings
            if _SECRET_NAME.search(name) and name not in ("PWD", "OLDPWD")  # these are folders
        ]
        values = (value for value in secrets if len(value) >= _SHORTEST_SECRET)
        self._values = _any_of(way for value in values for way in (*_written(value), quote(value, safe="")))
        self._owner = [*_home(), *_names()]

    def file(self, name: str, content: str) -> bytes:
        """The content of a file; its name tells JSON from text."""
        if name.endswith(".json"):
            with suppress(ValueError, RecursionError):
                return json_bytes(_walk(json.loads(content), self._text), indent=2)
        if name.endswith(".jsonl"):
            # splitlines() would also split at U+2028, which JSON does not escape
            lines = content.removesuffix("\n").split("\n")
            return b"".join(_line(line, self._text) for line in lines if line)
        return self._text(content).encode("utf-8", "backslashreplace")

    def _text(self, text: str) -> str:
        text = self._values.sub("<secret>", text)
        for pattern, instead in _SECRETS:
            text = pattern.sub(instead, text)
        text = self._without_memes(without_secrets(text))
        for pattern, instead in self._owner:
            text = pattern.sub(instead, text)
        return text

    def _without_memes(self, text: str) -> str:
        """Word by word, whatever is between them: lines break, and a model's log lists words."""
        found = list(_WORD.finditer(text))
        words = [word[0].lower() for word in found]
        parts, done, at = [], 0, 0
        while at < len(words):
            memes = self._texts.get(words[at], ())
            length = max(
                (len(meme) for meme in memes if tuple(words[at : at + len(meme)]) == meme), default=0
            )
            if length:
                parts += [text[done : found[at].start()], "<text>"]
                done = found[at + length - 1].end()
            at += length or 1
        return "".join([*parts, text[done:]])


def _spellings(text: str) -> Iterator[tuple[str, ...]]:
    """The words of a text as it is, and as Python and JSON write it."""
    for spelt in _written(text):
        words = tuple(word.lower() for word in _WORD.findall(spelt))
        if len("".join(words)) >= _SHORTEST:
            yield words


def _written(text: str) -> set[str]:
    """A text as it is, and as Python and JSON write it."""
    return {text, *(spell(text)[1:-1] for spell in (repr, ascii, json.dumps))}


def _any_of(values: Iterable[str]) -> re.Pattern[str]:
    """Finds the longest of them first, since one may begin as another; without any, it finds nothing."""
    return re.compile("|".join(map(re.escape, sorted(values, key=len, reverse=True))) or "(?!)")


def _home() -> list[tuple[re.Pattern[str], str]]:
    home = Path.home()
    if home == Path(home.anchor):
        return []
    ways = _any_of([*_written(str(home)), *_written(home.as_posix()), quote(home.as_posix(), safe="/:")])
    return [(re.compile(rf"(?i)(?:{ways.pattern})(?![\w.-])"), "~")]


def _names() -> list[tuple[re.Pattern[str], str]]:
    """The names of the user, as parts of paths, and of the machine."""
    patterns = []
    with suppress(KeyError, OSError, ImportError):  # a container's user may have no name
        user = getpass.getuser()
        ways = _any_of([*_written(user), quote(user)])
        patterns.append((re.compile(rf"(?i)(?<=[/\\])(?:{ways.pattern})(?![\w.-])"), "<user>"))
    if len(machine := platform.node()) >= _SHORTEST:
        patterns.append((re.compile(rf"(?<![\w.-]){re.escape(machine)}(?![\w.-])"), "<machine>"))
    return patterns


def _line(line: str, scrub: Callable[[str], str]) -> bytes:
    try:
        return json_bytes(_walk(json.loads(line), scrub))
    except (ValueError, RecursionError):
        return f"{scrub(line)}\n".encode("utf-8", "backslashreplace")


def _walk(value: Any, scrub: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {scrub(str(name)): _member(str(name), inner, scrub) for name, inner in value.items()}
    if isinstance(value, list):
        return [
            "<secret>" if isinstance(option, str) and _SECRET_OPTION.match(option) else _walk(item, scrub)
            for option, item in zip([None, *value], value, strict=False)
        ]
    return scrub(value) if isinstance(value, str) else value


def _member(name: str, value: Any, scrub: Callable[[str], str]) -> Any:
    named = value is not None and not isinstance(value, bool) and _SECRET_NAME.search(name)
    return "<secret>" if named else _walk(value, scrub)

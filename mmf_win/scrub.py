"""Removal of secrets, and of the user's name and home, from text that leaves this machine or is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

# Converted to a path, a URL has only one slash, on Windows a backslash.
_URL = re.compile(r"(?i)((?<=[a-z\d]{2})://|\b(?:https?|ftp):[/\\]+)([^\s\"']+)")
_HOST_AND_PORT = re.compile(r"[\w-]+\.[\w.-]+:\d+/")

#: Pattern for the ends of the names of secrets.
SECRET_NAME_PATTERN = (
    r"(?:pass(?:word|wd|phrase|code)s?|pwd|secrets?|token|credentials?|authorization|cookie|amz-signature"
    r"|(?:api|access|auth|private|secret|wandb)[_-]?key(?:[_-]id|s)?)"
)

_SECRET_NAME = re.compile(rf"(?i){SECRET_NAME_PATTERN}$")
# Up to the end of the line or of a JSON string there, since a password may contain spaces and quotes.
_NAMED_SECRET = (
    rf"(?im)({SECRET_NAME_PATTERN}[\\\"']*\s*[=:]\s*\"?|--[\w-]{{0,40}}{SECRET_NAME_PATTERN}[\"',\s]+)"
    r".+?(?=\"[\]},]*$|$)"
)
_TOKEN = (
    r"(?i:\bbearer)(?:\s|\\t)+\S+"
    r"|\b(?:hf_\w{8,}|gh[a-z]_\w{8,}|github_pat_\w{8,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,})"
)
_SPELLINGS = (repr, ascii, json.dumps, json.JSONEncoder(ensure_ascii=False).encode)
_MIN_SECRET_LENGTH = 6  # replacing a shorter secret would damage numbers and words


def is_secret(name: str) -> bool:
    """Return whether the name of a variable or setting is that of a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_urls(text: str) -> str:
    """Remove user, password and query from the URLs in a text."""
    return _URL.sub(_redact_url, text)


def _redact_url(url: re.Match[str]) -> str:
    user, at, rest = url[2].rpartition("@")
    in_path = "/" in user and (":" not in user or _HOST_AND_PORT.match(user))
    if at and not in_path:
        user = "<secret>"
    base, query, _ = f"{user}{at}{rest}".partition("?")
    return f"{url[1]}{base}{'?<secret>' if query else ''}"


def make_scrubber(settings: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """Return a function that removes secrets, the user's name and the home folder from plain or JSON text.

    Args:
        settings: Names and values of variables and overrides; if a name is that of a secret, its value is
            removed everywhere.

    Returns:
        The function, from text to text.
    """
    import getpass  # only here, since every command imports this module

    secrets = {
        value.strip()
        for name, value in settings
        if is_secret(name) and name not in ("PWD", "OLDPWD")  # folders
    }
    # The longest first, since one may be the start of another.
    values = sorted((value for value in secrets if len(value) >= _MIN_SECRET_LENGTH), key=len, reverse=True)
    patterns = {
        "|".join(map(_spelling_pattern, values)) or "(?!)": "<secret>",
        _NAMED_SECRET: r"\1<secret>",
        _TOKEN: "<secret>",
    }
    home = Path.home()
    if home.parts[1:]:
        folders = "".join(rf"(?:[/\\]|%5C|%2F)+{_spelling_pattern(part)}" for part in home.parts[1:])
        patterns[rf"(?i){re.escape(home.drive)}{folders}(?![\w.-])"] = "~"
    with suppress(KeyError, OSError, ImportError):  # a container's user may have no name
        patterns[rf"(?i)(?<=[/\\]){_spelling_pattern(getpass.getuser())}(?![\w.-])"] = "<user>"

    def scrub(text: str) -> str:
        for pattern, replacement in patterns.items():
            text = re.sub(pattern, replacement, text)
        return redact_urls(text)

    return scrub


def _spelling_pattern(text: str) -> str:
    """Return a pattern for a text and its forms in URLs, Python and JSON strings, also nested."""
    from urllib.parse import quote

    spellings = {text}
    for _ in range(2):
        spellings |= {spell(spelling)[1:-1] for spelling in spellings for spell in _SPELLINGS}
    spellings |= {quote(text, safe, errors="surrogateescape") for safe in ("", "/")}
    return f"(?:{'|'.join(map(re.escape, sorted(spellings, key=len, reverse=True)))})"

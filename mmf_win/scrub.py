"""Takes secrets, and the user's name and home, out of what leaves this machine or is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

# As a path, an address has lost a slash, and on Windows turned the other.
_URL = re.compile(r"(?i)((?<=[a-z\d]{2})://|\b(?:https?|ftp):[/\\]+)([^\s\"']+)")
_HOST_AND_PORT = re.compile(r"[\w-]+\.[\w.-]+:\d+/")

#: The pattern of what names of secrets end in.
SECRET_NAME_PATTERN = (
    r"(?:pass(?:word|wd|phrase|code)s?|pwd|secrets?|token|credentials?|authorization|cookie|amz-signature"
    r"|(?:api|access|auth|private|secret|wandb)[_-]?key(?:[_-]id|s)?)"
)

_SECRET_NAME = re.compile(rf"(?i){SECRET_NAME_PATTERN}$")
# To the end of the line, or of a JSON text that ends there: a password may hold blanks and quotation marks.
_NAMED_SECRET = (
    rf"(?im)({SECRET_NAME_PATTERN}[\\\"']*\s*[=:]\s*\"?|--[\w-]{{0,40}}{SECRET_NAME_PATTERN}[\"',\s]+)"
    r".+?(?=\"[\]},]*$|$)"
)
_TOKEN = (
    r"(?i:\bbearer)(?:\s|\\t)+\S+"
    r"|\b(?:hf_\w{8,}|gh[a-z]_\w{8,}|github_pat_\w{8,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,})"
)
_SPELLINGS = (repr, ascii, json.dumps, json.JSONEncoder(ensure_ascii=False).encode)
_MIN_SECRET_LENGTH = 6  # replacing the value of a shorter secret would tear numbers and words


def is_secret(name: str) -> bool:
    """Whether the name of a variable or setting is that of a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_urls(text: str) -> str:
    """A text without the user, the password and the query of addresses in it."""
    return _URL.sub(_redact_url, text)


def _redact_url(url: re.Match[str]) -> str:
    user, at, rest = url[2].rpartition("@")
    in_path = "/" in user and (":" not in user or _HOST_AND_PORT.match(user))
    if at and not in_path:
        user = "<secret>"
    shown, query, _ = f"{user}{at}{rest}".partition("?")
    return f"{url[1]}{shown}{'?<secret>' if query else ''}"


def make_scrubber(settings: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """A function that scrubs a text, JSON or not.

    ``settings`` are names and values of variables and overrides; where a name is that of a secret, its value
    is taken out wherever it is.
    """
    import getpass  # here, as every command imports this module

    secrets = {
        value.strip()
        for name, value in settings
        if is_secret(name) and name not in ("PWD", "OLDPWD")  # these are folders
    }
    # The longest first, since one may begin as another.
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
        for pattern, instead in patterns.items():
            text = re.sub(pattern, instead, text)
        return redact_urls(text)

    return scrub


def _spelling_pattern(text: str) -> str:
    """A pattern of a text as it is, and as addresses, Python, JSON and one within the other write it."""
    from urllib.parse import quote

    ways = {text}
    for _ in range(2):
        ways |= {spell(way)[1:-1] for way in ways for spell in _SPELLINGS}
    ways |= {quote(text, safe, errors="surrogateescape") for safe in ("", "/")}
    return f"(?:{'|'.join(map(re.escape, sorted(ways, key=len, reverse=True)))})"

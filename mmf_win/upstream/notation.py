"""How a path is written so that MMF's configuration means it, whatever characters it has."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def literal(value: Any) -> Any:
    """A path or text as OmegaConf's, which takes ``${x}`` for the value of a key; of a tree, each in it."""
    if isinstance(value, dict):
        return {key: literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [literal(each) for each in value]
    return _INTERPOLATION.sub(r"\1\1\\${", str(value)) if isinstance(value, (Path, str)) else value


def as_yaml(value: object) -> str:
    """A value as JSON that is read alike as YAML, and of a text as Python.

    YAML refuses some characters that JSON takes, and has other escapes for those beyond 16 bits.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", text)


def parts(text: str, base: Path | str = "") -> list[str]:
    """The paths in a text, which MMF sets apart with commas; they may be in one path's name as well."""
    with suppress(OSError):  # many names in a row are longer than one may be
        if Path(base, text).exists():
            return [text]
    return text.split(",")

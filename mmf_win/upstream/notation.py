"""How a path is written so that MMF's configuration means it, whatever characters it has."""

from __future__ import annotations

import json
import os
import re
from typing import Any

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def literal(path: object) -> str:
    """A path as a value of OmegaConf's, which takes ``${x}`` in a text for the value of a key ``x``."""
    return _INTERPOLATION.sub(r"\1\1\\${", str(path))


def literals(tree: Any) -> Any:
    """The same tree, with each text in it as a value that stands for itself."""
    if isinstance(tree, dict):
        return {key: literals(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [literals(value) for value in tree]
    return literal(tree) if isinstance(tree, str) else tree


def as_yaml(value: object) -> str:
    """A value as JSON that is read alike as YAML, and of a text as Python.

    YAML refuses some characters that JSON takes, and has other escapes for those beyond 16 bits.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", text)


def parts(text: str, base: str = "") -> list[str]:
    """The paths in a text in which MMF sets them apart with commas, which may also stand in their names.

    Each part is as long as something exists under that name, relative to ``base``.
    """
    found, rest = [], text.split(",")
    while rest:
        names = (",".join(rest[:count]) for count in range(len(rest), 0, -1))
        part = next((name for name in names if os.path.exists(os.path.join(base, name))), rest[0])  # noqa: PTH110, PTH118
        found.append(part)
        rest = rest[part.count(",") + 1 :]
    return found

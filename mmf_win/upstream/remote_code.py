"""Keys by which transformers runs code that comes with a model, in a folder or from the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = {"trust_remote_code", "auto_map"}
# Any other resolver, and any whose name is itself put together, can make keys of a text.
_MAKES_NO_KEYS = r"[\w.\[\]-]+\}|(?:(?:oc\.)?env|resolve_dir|resolve_cache_dir|device_count):"
_MAY_MAKE_KEYS = re.compile(rf"\$\{{(?!\s*(?:{_MAKES_NO_KEYS}))")


def remote_code(node: Any, here: str = "") -> Iterator[str]:
    """The keys of a configuration by which such code may run; what is interpolated may be anything then.

    Args:
        node: the tree as plain values, with its interpolations.
        here: what every key begins with.
    """
    if isinstance(node, Mapping):
        for name, value in node.items():
            key = f"{here}.{name}" if here else str(name)
            if name in _NAMES and value:
                yield key
            yield from remote_code(value, key)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from remote_code(value, f"{here}[{number}]")
    elif isinstance(node, str) and _MAY_MAKE_KEYS.search(node):
        yield here

"""Deprecated names of public classes and functions."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def deprecated_aliases(module: str, aliases: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that resolves renamed names with a DeprecationWarning.

    Assign it under ``if not TYPE_CHECKING``; otherwise type checkers accept any attribute of the module.

    Args:
        module: Name of the module.
        aliases: Old name → new name in the same module.

    Returns:
        The function; it raises AttributeError for other names.
    """

    def get_alias(name: str) -> Any:
        if name not in aliases:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.{name} is deprecated, use {module}.{aliases[name]}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], aliases[name])

    return get_alias

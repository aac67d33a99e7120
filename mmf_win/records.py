"""Check that values read from JSON have the types of a dataclass."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_MOST = 2**63


def known_fields(kind: type, values: Any) -> dict[str, Any]:
    """Those of ``values``, read from JSON, that are fields of a dataclass.

    Raises ValueError where it is no object, or a value is not of its field's type.
    """
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    types = {name: hint for name, hint in get_type_hints(kind).items() if name in values}
    for name, hint in types.items():
        if not is_a(values[name], hint):
            raise ValueError(f"{name} cannot be {str(values[name])[:40]!r}")
    return {name: values[name] for name in types}


def is_a(value: Any, hint: Any) -> bool:
    """Whether a value that was read from JSON is of a type, as annotations write it."""
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return value in parts
    if get_origin(hint) in (Union, UnionType):
        return any(is_a(value, part) for part in parts)
    if get_origin(hint) in (list, tuple):
        return isinstance(value, list) and all(is_a(item, parts[0]) for item in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(is_a(item, parts[1]) for item in value.values())
    if hint in (int, float):
        return type(value) in (int, hint) and -_MOST < value < _MOST
    return hint is Any or isinstance(value, hint)

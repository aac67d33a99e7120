"""Read JSON as a dataclass or another type, which msgspec checks.

Fields that the type does not have are skipped, since later versions may write more of them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_type_hints

from mmf_win.files import require_end

T = TypeVar("T")


def read_record(path: Path, kind: type[T]) -> T:
    """Read a JSON file as a type.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no JSON, lacks a field, or has a value of another type, which the message names.
    """
    require_end(path)
    return decode(path.read_bytes(), kind)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode JSON as a type, as :func:`read_record` does."""
    import msgspec

    try:
        return _decoder(kind).decode(data)  # type: ignore[no-any-return, arg-type]
    except msgspec.ValidationError:
        raise
    except (ValueError, RecursionError):
        # msgspec refuses NaN, and names of files that are not UTF-8, both of which have been written.
        try:
            values = json.loads(data, parse_constant=lambda _: None)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        return convert(values, kind)


def convert(values: object, kind: type[T]) -> T:
    """Check values that JSON can hold, and make a type of them. Raises ValueError as :func:`read_record`."""
    import msgspec

    return msgspec.convert(values, kind)


def is_a(value: object, kind: Any) -> bool:
    """Return whether a value that was read from JSON is of a type."""
    try:
        convert(value, kind)
    except ValueError:
        return False
    return True


def optional_fields(**types: Any) -> type[dict[str, Any]]:
    """Return the type of a dictionary that may have these fields; :func:`decode` drops others."""
    return TypedDict("Fields", types, total=False)  # type: ignore[operator, no-any-return]


@cache
def some_fields_of(kind: type) -> type[dict[str, Any]]:
    """Return the type of a dictionary that may have the fields of a dataclass."""
    return optional_fields(**get_type_hints(kind))


@cache
def _decoder(kind: Any) -> Any:
    import msgspec

    return msgspec.json.Decoder(kind)

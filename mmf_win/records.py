"""JSON as dataclasses and other types, validated by msgspec.

Unknown fields are skipped, since later versions may write more of them.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from mmf_win.files import require_no_special_file

T = TypeVar("T")


def read_record(path: Path, kind: type[T]) -> T:
    """Read a JSON file as a type.

    Args:
        path: The file.
        kind: A dataclass or another type.

    Returns:
        A value of this type.

    Raises:
        OSError: The file cannot be read.
        ValueError: It contains no JSON, lacks a field, or has a value of another type; the message names it.
    """
    require_no_special_file(path)
    return decode_json(path.read_bytes(), kind)


def decode_json(data: bytes, kind: type[T]) -> T:
    """Decode JSON as a type, with the errors of :func:`read_record`."""
    import msgspec

    try:
        return _decoder(kind).decode(data)  # type: ignore[no-any-return, arg-type]
    except msgspec.ValidationError:
        raise
    except (ValueError, RecursionError):
        # msgspec refuses NaN and file names that are not UTF-8; existing files contain both.
        try:
            values = json.loads(data, parse_constant=lambda _: None)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return convert_to(values, kind)


def convert_to(values: object, kind: type[T]) -> T:
    """Convert JSON values to a type; raise ValueError with the message of :func:`read_record`."""
    import msgspec

    return msgspec.convert(values, kind)


def stored_as(key: str) -> dict[str, str]:
    """Return the metadata of a dataclass field that is stored under another key than its name."""
    return {"stored": key}


def to_stored(record: Any) -> dict[str, Any]:
    """Return the values of a dataclass by stored key; dataclasses in it, or in its dictionaries, are converted too."""
    return {_stored_key(field): _to_stored_value(getattr(record, field.name)) for field in fields(record)}


def _to_stored_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_stored_value(item) for key, item in value.items()}
    return to_stored(value) if is_dataclass(value) else value


def from_stored(values: object, kind: type[T], /, **converted: Any) -> T:
    """Create a dataclass from values by stored key, the reverse of :func:`to_stored`.

    Types are checked, and unknown keys are skipped. Dataclasses in it are converted if they are fields or values
    of dictionaries; other types must not contain a dataclass with stored keys.

    Args:
        values: The values from a file.
        kind: The dataclass.
        converted: Fields that already have their final value, by name; they are not checked.

    Returns:
        The dataclass.

    Raises:
        ValueError: A key is missing, or its value has another type; the message names the key.
    """
    declared: Any = kind
    checked = convert_to(values, optional_fields_of(declared, *converted))
    arguments, types = dict(converted), _field_types(declared)
    for field in fields(declared):
        key = _stored_key(field)
        if key in checked:
            arguments[field.name] = _from_stored_value(checked[key], types[field.name])
        elif field.name not in converted and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"Object missing required field `{key}`")
    return kind(**arguments)


def has_type(value: object, kind: Any) -> bool:
    """Return whether a value from JSON has a type."""
    try:
        convert_to(value, kind)
    except ValueError:
        return False
    return True


def optional_fields(**types: Any) -> type[dict[str, Any]]:
    """Return a dictionary type with these optional fields; :func:`decode_json` drops others."""
    return TypedDict("Fields", types, total=False)  # type: ignore[operator, no-any-return]


@cache
def optional_fields_of(kind: Any, *excluded: str) -> type[dict[str, Any]]:
    """Return a dictionary type with the stored keys of a dataclass, all optional, without ``excluded`` fields."""
    types, included = _field_types(kind), (field for field in fields(kind) if field.name not in excluded)
    return optional_fields(**{_stored_key(field): _stored_type(types[field.name]) for field in included})


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_dict_of_dataclasses(kind: Any) -> bool:
    return get_origin(kind) is dict and is_dataclass(get_args(kind)[1])


def _stored_type(kind: Any) -> Any:
    if _is_dict_of_dataclasses(kind):
        return dict[str, dict[str, Any]]
    return dict[str, Any] if is_dataclass(kind) else kind


def _from_stored_value(value: Any, kind: Any) -> Any:
    if _is_dict_of_dataclasses(kind):
        return {key: from_stored(item, get_args(kind)[1]) for key, item in value.items()}
    return from_stored(value, kind) if is_dataclass(kind) else value  # type: ignore[arg-type]


def _stored_key(field: Any) -> str:
    return str(field.metadata.get("stored", field.name))


@cache
def _decoder(kind: Any) -> Any:
    import msgspec

    return msgspec.json.Decoder(kind)

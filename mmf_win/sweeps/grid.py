"""Specification text for a sweep given on the command line: a preset, seeds and lists of values."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mmf_win.errors import UsageError
from mmf_win.sweeps.folder import dump_yaml
from mmf_win.sweeps.specification import Specification, Values

SEED_PARAMETER = "seed"
#: Parameters over whose values results are averaged.
SEED_PARAMETERS = (SEED_PARAMETER, "training_seed")

_BRACKET = re.compile(r"[][{}]")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


def preset_specification_text(preset: str, seeds: Sequence[int], overrides: Sequence[str], args: Sequence[str]) -> str:
    """Return the text of a specification that trains a preset with every combination.

    Args:
        preset: Name or file of the preset.
        seeds: Seeds for each combination; if empty, each combination is trained once with a random seed.
        overrides: ``KEY=VALUE,VALUE``; a comma within brackets or quotes is part of a value.
        args: Further arguments of each training.

    Returns:
        YAML text for :func:`mmf_win.sweeps.specification.parse_specification`.

    Raises:
        UsageError: A list has an empty value.
    """
    value_lists = parse_value_lists(overrides)
    default: Values = {}

    def literal(word: str) -> str:
        """Quote a word of the template; a word that looks like a placeholder becomes a default value."""
        if not _BRACKET.search(word):
            return shlex.quote(word)
        default[f"_word{len(default)}"] = word
        return f"{{{list(default)[-1]}}}"

    words = ["mmfw", "train", *map(literal, [preset, *args])]
    values: dict[str, list[Any]] = {}
    for (key, choices), name in zip(value_lists.items(), _short_names(list(value_lists)), strict=True):
        words.append(f"{literal(key)}={{{name}}}")
        values[name] = choices
    if seeds:
        words.append(f"[{SEED_PARAMETER}]")
        values[SEED_PARAMETER] = list(seeds)
    head = {"template": {"train": " ".join(words)}} | ({"default": default} if default else {})
    return dump_yaml(head, values)


def parse_value_lists(overrides: Sequence[str]) -> dict[str, list[Any]]:
    """Parse ``KEY=VALUE,VALUE`` arguments.

    Returns:
        The values by key.

    Raises:
        UsageError: A list has an empty value.
    """
    value_lists = {}
    for key, _, text in (word.partition("=") for word in overrides):
        values = [parse_number_or_text(part) for part in _split_at_commas(text)]
        if "" in values:
            raise UsageError(f"{key}={text}: empty value in the list", hint=f"write {key}=VALUE,VALUE")
        value_lists[key] = values
    return value_lists


def find_equal_numbers(specification: Specification) -> dict[str, list[str]]:
    """Return the parameters with values that are equal as numbers, and those values."""
    equal_by_name = {}
    for name, values in (item for choice in specification.choices for item in choice.values.items()):
        numbers = [parse_number_or_text(str(value)) for value in values]
        counts = Counter(number for number in numbers if not isinstance(number, str))
        if equal := [str(value) for value, number in zip(values, numbers, strict=True) if counts[number] > 1]:
            equal_by_name[name] = equal
    return equal_by_name


def _short_names(keys: Sequence[str]) -> list[str]:
    """Return parameter names made of the last fields of each key, as few as keep the names distinct."""
    plain = [re.sub(r"[^\w.]", "_", key) for key in keys]

    def shorten(key: str) -> str:
        fields = key.split(".")
        endings = (".".join(fields[-n:]) for n in range(1, len(fields) + 1))
        unique = (end for end in endings if sum(f".{other}".endswith(f".{end}") for other in plain) == 1)
        return next((end for end in unique if end != SEED_PARAMETER), key)

    return [shorten(key).replace(".", "_") for key in plain]


def _split_at_commas(text: str) -> list[str]:
    """Split a text at its commas, except those within brackets and quotes."""
    parts, open_delimiters = [""], ""
    for char in text:
        if open_delimiters and char == open_delimiters[-1]:
            open_delimiters = open_delimiters[:-1]
        elif not open_delimiters or open_delimiters[-1] not in "'\"":
            open_delimiters += _CLOSING.get(char, char if char in "'\"" else "")
        if char == "," and not open_delimiters:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def parse_number_or_text(text: str) -> Any:
    """Return the number that MMF would read in a text, or else the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text

"""The file of a sweep that is typed: a preset, seeds, and lists of values."""

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
#: The parameters over whose values results are averaged.
SEED_PARAMETERS = (SEED_PARAMETER, "training_seed")

_BRACKET = re.compile(r"[][{}]")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


def preset_specification_text(
    preset: str, seeds: Sequence[int], overrides: Sequence[str], options: Sequence[str]
) -> str:
    """The text of a file that trains a preset with every combination.

    Raises UsageError where a list has an empty value.

    Args:
        preset: its name or file.
        seeds: one training of each combination with each; without any, one with a random seed.
        overrides: ``KEY=VALUE,VALUE``; a comma within brackets or quotes is part of a value.
        options: more words for each training.
    """
    listed = parse_value_lists(overrides)
    default: Values = {}

    def literal(word: str) -> str:
        """A word of the template; one that looks like a placeholder is the value of one instead."""
        if not _BRACKET.search(word):
            return shlex.quote(word)
        default[f"_word{len(default)}"] = word
        return f"{{{list(default)[-1]}}}"

    words = ["mmfw", "train", *map(literal, [preset, *options])]
    values: dict[str, list[Any]] = {}
    for (key, choices), name in zip(listed.items(), _short_names(list(listed)), strict=True):
        words.append(f"{literal(key)}={{{name}}}")
        values[name] = choices
    if seeds:
        words.append(f"[{SEED_PARAMETER}]")
        values[SEED_PARAMETER] = list(seeds)
    head = {"template": {"train": " ".join(words)}} | ({"default": default} if default else {})
    return dump_yaml(head, values)


def parse_value_lists(overrides: Sequence[str]) -> dict[str, list[Any]]:
    """The keys and values of ``KEY=VALUE,VALUE``. Raises UsageError where a list has an empty value."""
    found = {}
    for key, _, text in (word.partition("=") for word in overrides):
        values = [parse_number_or_text(part) for part in _split_at_commas(text)]
        if "" in values:
            raise UsageError(f"{key}={text}: there is an empty value in the list", hint=f"{key}=VALUE,VALUE")
        found[key] = values
    return found


def find_equal_numbers(specification: Specification) -> dict[str, list[str]]:
    """Return the parameters with a list in which some values are equal as numbers, and those values."""
    found = {}
    for name, values in (item for choice in specification.choices for item in choice.values.items()):
        numbers = [parse_number_or_text(str(value)) for value in values]
        counts = Counter(each for each in numbers if not isinstance(each, str))
        if same := [str(value) for value, each in zip(values, numbers, strict=True) if counts[each] > 1]:
            found[name] = same
    return found


def _short_names(keys: Sequence[str]) -> list[str]:
    """As few of each key's last fields as tell the keys apart, as a parameter's name."""
    plain = [re.sub(r"[^\w.]", "_", key) for key in keys]

    def shorten(key: str) -> str:
        fields = key.split(".")
        endings = (".".join(fields[-n:]) for n in range(1, len(fields) + 1))
        own = (end for end in endings if sum(f".{other}".endswith(f".{end}") for other in plain) == 1)
        return next((end for end in own if end != SEED_PARAMETER), key)

    return [shorten(key).replace(".", "_") for key in plain]


def _split_at_commas(text: str) -> list[str]:
    """The text at its commas, but for those within brackets and quotes."""
    parts, awaited = [""], ""
    for letter in text:
        if awaited and letter == awaited[-1]:
            awaited = awaited[:-1]
        elif not awaited or awaited[-1] not in "'\"":
            awaited += _CLOSING.get(letter, letter if letter in "'\"" else "")
        if letter == "," and not awaited:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parse_number_or_text(text: str) -> Any:
    """A number where MMF would read one, else the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text

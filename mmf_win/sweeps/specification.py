"""What a sweep runs: commands with placeholders, and the values of their parameters to combine.

The file is that of mlrunner 0.5.9 (https://pypi.org/project/mlrunner), with ``shell`` and ``search``;
docs/sweeps.md has its keys, and the placeholders of a command: ``{param}`` and ``[param]``. Without a shell,
a command is split into words as a POSIX shell does it, and then filled, so that a value is always one word.
For a shell, values are quoted.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from mmf_win.console import format_command
from mmf_win.errors import UsageError
from mmf_win.records import has_type
from mmf_win.runs.scores import is_test_split
from mmf_win.scrub import SECRET_NAME_PATTERN

Values = dict[str, Any]
#: The resource that is no GPU.
CPU = "cpu"
#: What to do where there is no such GPU.
OTHER_GPUS_HINT = "-r cpu goes without a GPU, and -r GPU names another"
#: What to do where a folder has the results of another sweep.
OTHER_FOLDER_HINT = "-o chooses another folder"

#: Placeholders that are no parameters.
RESERVED_PLACEHOLDERS = ("_output", "_name", "_time")
#: What an earlier mmfw put among the values of ``param``.
LEGACY_SCRIPTS_KEY = "_scripts"

_PLACEHOLDER = re.compile(r"(?<!\$)\{([\w-]+)\}|\[([\w-]+)\]")  # ${NAME} is the shell's
_GPU = re.compile(r"\d+|(GPU|MIG)-.+")
_KEYS = ("template", "default", "alias", "resource", "shell", "search")


@dataclass(frozen=True)
class Choice:
    """Values of each parameter to combine; ``commands`` are those of the templates, None for all."""

    values: dict[str, list[Any]]
    title: str | None = None
    commands: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Search:
    """What Optuna chooses.

    Attributes:
        parameters: parameter → a list of categories, or ``{low, high}`` with ``log: true`` or a ``step``;
            whole numbers where both ends are whole.
        trials: how many tasks.
        metric: of the best validation, or ``FILE.json:KEY.KEY``, a number in a file of the task's folder.
    """

    parameters: dict[str, Any]
    trials: int
    metric: str = "auroc"
    direction: Literal["maximize", "minimize"] = "maximize"
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["none", "median", "hyperband"] = "none"
    seed: int | None = None


@dataclass(frozen=True)
class Specification:
    """A whole sweep; the attributes are the keys of the file."""

    template: dict[str, str]
    choices: tuple[Choice, ...]
    default: Values = field(default_factory=dict)
    alias: dict[str, dict[Hashable, Values]] = field(default_factory=dict)
    resource: tuple[str, ...] | None = None
    shell: bool = False
    search: Search | None = None


def read_text(path: Path) -> str:
    """A file's text. Raises UsageError where it is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file in UTF-8") from None


def parse_specification(text: str, path: Path) -> Specification:
    """Read the YAML of a file. Raises UsageError with the path and the place where it is no specification."""
    first, *rest = _load_documents(text, path) or [None]
    head = _parse_mapping(first, f"{path}: the first document")
    if unknown := [key for key in head if key not in _KEYS]:
        message = f"{path}: the first document has the unknown key {unknown[0]!r}"
        raise UsageError(message, hint=f"its keys are {', '.join(_KEYS)}")
    template = _parse_mapping(head.get("template"), f"{path}: 'template'")
    if not template or not all(isinstance(command, str) and command.strip() for command in template.values()):
        raise UsageError(f"{path}: 'template' must name at least one command, each a text")
    if odd := next((name for name in template if not re.fullmatch(r"[\w-]+", name)), None):
        hint = "letters, digits, _ and - make a name"
        raise UsageError(f"{path}: a command cannot be named {odd!r}", hint=hint)
    resource = head.get("resource")
    if resource is not None and not (has_type(resource, list[int | str]) and resource and "" not in resource):
        raise UsageError(f"{path}: 'resource' must be a list, such as [0, 1], ['0,1', '2,3'] or [cpu]")
    for entry in resource or ():
        require_resource(str(entry), f"{path}: 'resource': ")
    alias: dict[str, dict[Hashable, Values]] = {}
    for name, document in _parse_mapping(head.get("alias") or {}, f"{path}: 'alias'").items():
        cases = _require_mapping(document, f"{path}: 'alias' {name}").items()
        where = f"{path}: 'alias', case"
        alias[name] = {
            case: _parse_values(v, f"{where} {case!r} of {name}", allow_empty=False) for case, v in cases
        }
    shell, search = head.get("shell", False), head.get("search")
    if not isinstance(shell, bool):
        raise UsageError(f"{path}: 'shell' must be true or false")
    choices = tuple(_parse_choice(document, n, template, path) for n, document in enumerate(rest, 2))
    if not choices and search is None:
        hint = "a second document after a line with --- says which values to combine"
        raise UsageError(f"{path}: there is nothing to combine", hint=hint)
    return Specification(
        template=template,
        choices=choices,
        default=_parse_values(head.get("default") or {}, f"{path}: 'default'"),
        alias=alias,
        resource=None if resource is None else tuple(map(str, resource)),
        shell=shell,
        search=None if search is None else _parse_search(search, path),
    )


def require_resource(resource: str, location: str = "") -> None:
    """Raise UsageError for what is neither GPUs, by their numbers or UUIDs, nor ``cpu``."""
    if resource != CPU and not all(_GPU.fullmatch(gpu.strip()) for gpu in resource.split(",")):
        hint = "a slot is one GPU, such as 0, several GPUs, such as 0,1, or cpu"
        raise UsageError(f"{location}{resource!r} names no GPU", hint=hint)


def find_surprising_readings(text: str) -> dict[str, Any]:
    """Return the words of a valid file that YAML 1.1 takes for other numbers or for true or false."""
    import yaml

    plain = (token.value for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken) and token.plain)
    loader: Any = yaml.SafeLoader("")
    tags = {word: loader.resolve(yaml.ScalarNode, word, (True, False)) for word in plain}
    readings = {word: yaml.safe_load(word) for word, tag in tags.items() if tag.endswith((":int", ":bool"))}
    return {word: value for word, value in readings.items() if str(value).lower() != word.lower().lstrip("+")}


def _load_documents(text: str, path: Path) -> list[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is there twice, of which YAML's own keeps the last."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            for key in keys:
                if isinstance(key, str) and keys.count(key) > 1:
                    mark = node.start_mark
                    raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", mark)
            return super().construct_mapping(node, deep)

    try:
        return [document for document in yaml.load_all(text, Loader) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        hint = "YAML is indented by spaces" if "\t" in text and "\\t" in problem else None
        raise UsageError(f"{path}{where}: {problem}", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None


def _parse_choice(document: Any, number: int, template: Mapping[str, Any], path: Path) -> Choice:
    where = f"{path}: document {number}"
    values = _parse_mapping(document, where)
    commands = values.pop("_cmd", None)
    if commands is not None:
        commands = tuple(str(name) for name in (commands if isinstance(commands, list) else [commands]))
        unknown = [name for name in commands if name not in template]
        if unknown or not commands:
            named = unknown[0] if unknown else "no command"
            raise UsageError(f"{where}: _cmd names {named}", hint=f"the templates are {', '.join(template)}")
    title = values.pop("_title", None)
    lists = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    for name, choices in lists.items():
        if not choices:
            raise UsageError(f"{where}: {name} has no value")
        for value in choices:
            _require_parameter(name, value, where)
    return Choice(lists, None if title is None else str(title), commands)


def _parse_search(document: Any, path: Path) -> Search:
    where = f"{path}: 'search'"
    values = _parse_mapping(document, where)
    values["parameters"] = _parse_mapping(
        values.get("parameters"), f"{where}: 'parameters'", allow_empty=False
    )
    hints = get_type_hints(Search)
    for key, value in values.items():
        if key not in hints:
            raise UsageError(f"{where} has the unknown key {key!r}", hint=f"it has {', '.join(hints)}")
        if not has_type(value, hints[key]):
            known = ", ".join(part for part in get_args(hints[key]) if isinstance(part, str))
            hint = known and f"it is one of {known}"
            raise UsageError(f"{where}: '{key}' cannot be {value!r:.40}", hint=hint)
    require_validation_metric(values.get("metric", ""), f"{where}: ")
    if values.get("trials", 0) < 1:
        raise UsageError(f"{where}: 'trials' must be a number above 0")
    for name, domain in values["parameters"].items():
        _require_domain(name, domain, where)
    return Search(**values)


def require_validation_metric(metric: str, location: str = "") -> None:
    """Raise UsageError for a metric that nothing is ranked by."""
    if is_test_split(metric):
        message = f"{location}{metric} is measured on a test set, which must not choose a model"
        raise UsageError(message, hint="rank by a validation metric")


def _require_domain(name: str, domain: Any, location: str) -> None:
    for value in domain if isinstance(domain, list) else [""]:
        _require_parameter(name, value, location)
    if isinstance(domain, list) and domain:
        return
    location = f"{location}: {name}"
    ends = [domain.get("low"), domain.get("high")] if isinstance(domain, dict) else []
    numbers = [end for end in ends if isinstance(end, (int, float)) and not isinstance(end, bool)]
    if len(numbers) != 2 or not set(domain) <= {"low", "high", "log", "step"}:
        example = "{low: 1.0e-6, high: 1.0e-3, log: true}"
        hint = f"for example {example}; YAML takes 1e-6, without a dot, for a text"
        raise UsageError(f"{location} must be a list of values or a range of numbers", hint=hint)
    low, high = numbers
    if not (math.isfinite(low) and math.isfinite(high)) or low > high or (domain.get("log") and low <= 0):
        raise UsageError(f"{location}: low must be below high, and above 0 for log")
    step = domain.get("step")
    if step is not None and (domain.get("log") or type(step) not in (int, float) or not 0 < step < math.inf):
        raise UsageError(f"{location}: step must be a number above 0, and excludes log")


def _parse_values(value: Any, location: str, *, allow_empty: bool = True) -> Values:
    values = _parse_mapping(value, location, allow_empty=allow_empty)
    for name, entry in values.items():
        _require_parameter(name, entry, location)
    return values


def _require_parameter(name: str, value: Any, location: str) -> None:
    location = f"{location}: {name}"
    if name in (*RESERVED_PLACEHOLDERS, LEGACY_SCRIPTS_KEY):
        raise UsageError(f"{location} is set by mmfw")
    if re.search(f"{SECRET_NAME_PATTERN}$", name.lower()):
        hint = "its values would be in names of folders and in logs; let the command read a variable"
        raise UsageError(f"{location} is named like a secret", hint=hint)
    if not isinstance(value, (str, int, float)):
        hint = "quote it, for a text" if value is not None else "'' is an empty text"
        raise UsageError(f"{location}: {value!r:.40} is no text, number, true or false", hint=hint)


def _parse_mapping(value: Any, location: str, *, allow_empty: bool = True) -> dict[str, Any]:
    return {
        str(key): entry for key, entry in _require_mapping(value, location, allow_empty=allow_empty).items()
    }


def _require_mapping(value: Any, location: str, *, allow_empty: bool = False) -> dict[Hashable, Any]:
    if not isinstance(value, dict) or not (value or allow_empty):
        raise UsageError(f"{location} must be a mapping of keys")
    return value


@cache
def placeholders(template: str) -> frozenset[str]:
    """The names that a template needs values for, those of :data:`RESERVED_PLACEHOLDERS` among them.

    Raises UsageError where one stands in both forms, or the template cannot be split into words.
    """
    _split_template(template)
    braces, brackets = ({found[n] for found in _PLACEHOLDER.finditer(template) if found[n]} for n in (1, 2))
    if both := braces & brackets:
        raise UsageError(f"{template}: {min(both)} stands in braces and in brackets; use one of them")
    return frozenset(braces | brackets)


def render_argv(template: str, values: Mapping[str, Any]) -> list[str]:
    """The words of a command; ``values`` has one for each of its :func:`placeholders`."""
    filled: list[str] = []
    for word in _split_template(template):
        if alone := _PLACEHOLDER.fullmatch(word):
            filled += _placeholder_arguments(alone, values)
        else:
            filled.append(
                _PLACEHOLDER.sub(lambda found: " ".join(_placeholder_arguments(found, values)), word)
            )
    return filled


def render_shell_line(template: str, values: Mapping[str, Any]) -> str:
    """The line for a shell, of the same."""
    joined = re.sub(r"\s*\n\s*", " ", template)
    return _PLACEHOLDER.sub(
        lambda found: format_command(*_placeholder_arguments(found, values)), joined
    ).strip()


def _placeholder_arguments(match: re.Match[str], values: Mapping[str, Any]) -> list[str]:
    """The words that take the place of a placeholder."""
    value = values[match[1] or match[2]]
    if match[1]:
        return [str(value)]
    if isinstance(value, bool):
        return [f"--{match[2]}"] if value else []
    return [f"--{match[2]}", str(value)]


@cache
def _split_template(template: str) -> list[str]:
    try:
        return shlex.split(template)
    except ValueError as error:
        raise UsageError(f"{template.strip()}: {error}", hint="quote as a POSIX shell does") from None

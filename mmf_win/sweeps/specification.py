"""Specification of a sweep: command templates with placeholders, and the values of their parameters.

The file format is that of mlrunner 0.5.9 (https://pypi.org/project/mlrunner), plus the keys ``shell`` and
``search``; docs/sweeps.md lists all keys and the placeholders ``{param}`` and ``[param]``. Without a shell, a
command is split into words like in a POSIX shell before placeholders are replaced, so a value is always one
word. For a shell, values are quoted.
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
#: Name of the resource without a GPU.
CPU = "cpu"
#: Hint for a GPU that does not exist.
OTHER_GPUS_HINT = "select another GPU with `-r GPU`, or use `-r cpu`"
#: Hint for a folder that contains another sweep.
OTHER_FOLDER_HINT = "choose another folder with -o"

#: Placeholders that are set by mmfw.
RESERVED_PLACEHOLDERS = ("_output", "_name", "_time")
#: Key that earlier versions of mmfw stored among the values of ``param``.
LEGACY_SCRIPTS_KEY = "_scripts"

_PLACEHOLDER = re.compile(r"(?<!\$)\{([\w-]+)\}|\[([\w-]+)\]")  # ${NAME} belongs to the shell
_GPU = re.compile(r"\d+|(GPU|MIG)-.+")
_KEYS = ("template", "default", "alias", "resource", "shell", "search")


@dataclass(frozen=True)
class Choice:
    """Lists of values to combine.

    Attributes:
        values: Values by parameter.
        title: Name of the choice for ``--title``.
        commands: Names of the templates to run; ``None`` for all.
    """

    values: dict[str, list[Any]]
    title: str | None = None
    commands: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Search:
    """Search by Optuna.

    Attributes:
        parameters: Per parameter, a list of categories, or a range ``{low, high}`` with ``log: true`` or a
            ``step``; a range is integer if both ends are.
        trials: Number of tasks.
        metric: Metric of the best validation, or ``FILE.json:KEY.KEY`` for a number in a file of the task.
        direction: Whether a larger or a smaller value is better.
        sampler: Optuna's sampler.
        pruner: Optuna's pruner.
        seed: Seed of the sampler.
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
    """Specification of a sweep; the attributes are the keys of the file."""

    template: dict[str, str]
    choices: tuple[Choice, ...]
    default: Values = field(default_factory=dict)
    alias: dict[str, dict[Hashable, Values]] = field(default_factory=dict)
    resource: tuple[str, ...] | None = None
    shell: bool = False
    search: Search | None = None


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        UsageError: The file is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a UTF-8 text file") from None


def parse_specification(text: str, path: Path) -> Specification:
    """Parse the YAML text of a specification.

    Args:
        text: Contents of the file.
        path: File to name in errors.

    Returns:
        The specification.

    Raises:
        UsageError: The text is not a valid specification; the message names the file and the location.
    """
    first, *rest = _load_documents(text, path) or [None]
    header = _parse_mapping(first, f"{path}: the first document")
    if unknown := [key for key in header if key not in _KEYS]:
        message = f"{path}: unknown key {unknown[0]!r} in the first document"
        raise UsageError(message, hint=f"choose one of the keys {', '.join(_KEYS)}")
    template = _parse_mapping(header.get("template"), f"{path}: 'template'")
    if not template or not all(isinstance(command, str) and command.strip() for command in template.values()):
        raise UsageError(f"{path}: 'template' must contain at least one command, and commands must be strings")
    if invalid_name := next((name for name in template if not re.fullmatch(r"[\w-]+", name)), None):
        hint = "use letters, digits, _ and -"
        raise UsageError(f"{path}: invalid command name {invalid_name!r}", hint=hint)
    resource = header.get("resource")
    if resource is not None and not (has_type(resource, list[int | str]) and resource and "" not in resource):
        raise UsageError(f"{path}: 'resource' must be a list, such as [0, 1], ['0,1', '2,3'] or [cpu]")
    for entry in resource or ():
        require_resource(str(entry), f"{path}: 'resource': ")
    alias: dict[str, dict[Hashable, Values]] = {}
    for name, document in _parse_mapping(header.get("alias") or {}, f"{path}: 'alias'").items():
        cases = _require_mapping(document, f"{path}: 'alias' {name}").items()
        location = f"{path}: 'alias', case"
        alias[name] = {case: _parse_values(v, f"{location} {case!r} of {name}", allow_empty=False) for case, v in cases}
    shell, search = header.get("shell", False), header.get("search")
    if not isinstance(shell, bool):
        raise UsageError(f"{path}: 'shell' must be true or false")
    choices = tuple(_parse_choice(document, n, template, path) for n, document in enumerate(rest, 2))
    if not choices and search is None:
        hint = "add a second document with the values, after a line with ---"
        raise UsageError(f"{path}: no values to combine", hint=hint)
    return Specification(
        template=template,
        choices=choices,
        default=_parse_values(header.get("default") or {}, f"{path}: 'default'"),
        alias=alias,
        resource=None if resource is None else tuple(map(str, resource)),
        shell=shell,
        search=None if search is None else _parse_search(search, path),
    )


def require_resource(resource: str, location: str = "") -> None:
    """Check that a resource is ``cpu`` or a list of GPU numbers or UUIDs.

    Args:
        resource: Resource of a slot.
        location: Prefix of the error message.

    Raises:
        UsageError: The resource is neither.
    """
    if resource != CPU and not all(_GPU.fullmatch(gpu.strip()) for gpu in resource.split(",")):
        hint = "use one GPU, such as 0, several GPUs, such as 0,1, or cpu"
        raise UsageError(f"{location}{resource!r} is not a GPU", hint=hint)


def find_surprising_readings(text: str) -> dict[str, Any]:
    """Return the words that YAML 1.1 reads as a different number or as true or false, in a valid file."""
    import yaml

    words = (token.value for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken) and token.plain)
    loader: Any = yaml.SafeLoader("")
    tags = {word: loader.resolve(yaml.ScalarNode, word, (True, False)) for word in words}
    readings = {word: yaml.safe_load(word) for word, tag in tags.items() if tag.endswith((":int", ":bool"))}
    return {word: value for word, value in readings.items() if str(value).lower() != word.lower().lstrip("+")}


def _load_documents(text: str, path: Path) -> list[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML loader that rejects duplicate keys; YAML's own loader keeps the last one."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            for key in keys:
                if isinstance(key, str) and keys.count(key) > 1:
                    mark = node.start_mark
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", mark)
            return super().construct_mapping(node, deep)

    try:
        return [document for document in yaml.load_all(text, Loader) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        location = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        hint = "indent YAML with spaces" if "\t" in text and "\\t" in problem else None
        raise UsageError(f"{path}{location}: {problem}", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None


def _parse_choice(document: Any, number: int, template: Mapping[str, Any], path: Path) -> Choice:
    location = f"{path}: document {number}"
    values = _parse_mapping(document, location)
    commands = values.pop("_cmd", None)
    if commands is not None:
        commands = tuple(str(name) for name in (commands if isinstance(commands, list) else [commands]))
        unknown = [name for name in commands if name not in template]
        if unknown or not commands:
            problem = f"unknown command {unknown[0]} in _cmd" if unknown else "no command in _cmd"
            raise UsageError(f"{location}: {problem}", hint=f"choose one of {', '.join(template)}")
    title = values.pop("_title", None)
    lists = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    for name, choices in lists.items():
        if not choices:
            raise UsageError(f"{location}: {name} has no value", hint="add a value, or remove the key")
        for value in choices:
            _require_parameter(name, value, location)
    return Choice(lists, None if title is None else str(title), commands)


def _parse_search(document: Any, path: Path) -> Search:
    location = f"{path}: 'search'"
    values = _parse_mapping(document, location)
    values["parameters"] = _parse_mapping(values.get("parameters"), f"{location}: 'parameters'", allow_empty=False)
    hints = get_type_hints(Search)
    for key, value in values.items():
        if key not in hints:
            message = f"{location}: unknown key {key!r}"
            raise UsageError(message, hint=f"choose one of the keys {', '.join(hints)}")
        if not has_type(value, hints[key]):
            allowed = ", ".join(part for part in get_args(hints[key]) if isinstance(part, str))
            hint = allowed and f"choose one of {allowed}"
            raise UsageError(f"{location}: invalid value {value!r:.40} for '{key}'", hint=hint)
    require_validation_metric(values.get("metric", ""), f"{location}: ")
    if values.get("trials", 0) < 1:
        raise UsageError(f"{location}: 'trials' must be a number above 0")
    for name, domain in values["parameters"].items():
        _require_domain(name, domain, location)
    return Search(**values)


def require_validation_metric(metric: str, location: str = "") -> None:
    """Check that a metric may be used for ranking, which excludes those of test sets.

    Args:
        metric: Name of the metric.
        location: Prefix of the error message.

    Raises:
        UsageError: The metric belongs to a test set.
    """
    if is_test_split(metric):
        message = f"{location}{metric} is measured on a test set, which must not be used to choose a model"
        raise UsageError(message, hint="rank by a validation metric")


def _require_domain(name: str, domain: Any, location: str) -> None:
    for value in domain if isinstance(domain, list) else [""]:
        _require_parameter(name, value, location)
    if isinstance(domain, list) and domain:
        return
    location = f"{location}: {name}"
    bounds = [domain.get("low"), domain.get("high")] if isinstance(domain, dict) else []
    numbers = [bound for bound in bounds if isinstance(bound, (int, float)) and not isinstance(bound, bool)]
    if len(numbers) != 2 or not set(domain) <= {"low", "high", "log", "step"}:
        example = "{low: 1.0e-6, high: 1.0e-3, log: true}"
        hint = f"write for example {example}; YAML reads 1e-6, without a dot, as text"
        raise UsageError(f"{location} must be a list of values or a range of numbers", hint=hint)
    low, high = numbers
    if not (math.isfinite(low) and math.isfinite(high)) or low > high or (domain.get("log") and low <= 0):
        raise UsageError(f"{location}: low must not be above high, and must be above 0 with log")
    step = domain.get("step")
    if step is not None and (domain.get("log") or type(step) not in (int, float) or not 0 < step < math.inf):
        raise UsageError(f"{location}: step must be a number above 0, and cannot be combined with log")


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
        hint = "pass secrets in an environment variable; values appear in folder names and logs"
        raise UsageError(f"{location} is named like a secret", hint=hint)
    if not isinstance(value, (str, int, float)):
        hint = "quote the value" if value is not None else "write '' for an empty text"
        raise UsageError(f"{location}: {value!r:.40} is not a text, number, true or false", hint=hint)


def _parse_mapping(value: Any, location: str, *, allow_empty: bool = True) -> dict[str, Any]:
    return {str(key): entry for key, entry in _require_mapping(value, location, allow_empty=allow_empty).items()}


def _require_mapping(value: Any, location: str, *, allow_empty: bool = False) -> dict[Hashable, Any]:
    if not isinstance(value, dict) or not (value or allow_empty):
        raise UsageError(f"{location} must be a mapping of keys to values")
    return value


@cache
def placeholders(template: str) -> frozenset[str]:
    """Return the names in the placeholders of a template, including :data:`RESERVED_PLACEHOLDERS`.

    Args:
        template: Command with placeholders.

    Returns:
        The names.

    Raises:
        UsageError: A name is used in both forms, or the template cannot be split into words.
    """
    _split_template(template)
    braces, brackets = ({match[n] for match in _PLACEHOLDER.finditer(template) if match[n]} for n in (1, 2))
    if both := braces & brackets:
        raise UsageError(f"{template}: {min(both)} is used both in braces and in brackets")
    return frozenset(braces | brackets)


def render_argv(template: str, values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command; ``values`` must cover its :func:`placeholders`."""
    argv: list[str] = []
    for word in _split_template(template):
        if whole_word := _PLACEHOLDER.fullmatch(word):
            argv += _placeholder_arguments(whole_word, values)
        else:
            argv.append(_PLACEHOLDER.sub(lambda match: " ".join(_placeholder_arguments(match, values)), word))
    return argv


def render_shell_line(template: str, values: Mapping[str, Any]) -> str:
    """Return the command line for a shell; ``values`` must cover the template's :func:`placeholders`."""
    joined = re.sub(r"\s*\n\s*", " ", template)
    return _PLACEHOLDER.sub(lambda match: format_command(*_placeholder_arguments(match, values)), joined).strip()


def _placeholder_arguments(match: re.Match[str], values: Mapping[str, Any]) -> list[str]:
    """Return the words that replace a placeholder."""
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
        raise UsageError(f"{template.strip()}: {error}", hint="quote it like in a POSIX shell") from None

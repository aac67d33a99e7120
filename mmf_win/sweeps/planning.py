"""The tasks of a sweep: the combinations of its choices, and what their folders are called."""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mmf_win.errors import UsageError
from mmf_win.paths import portable_name
from mmf_win.sweeps.folder import (
    MAX_NAME_BYTES,
    SweepFolder,
    Task,
    load_specification,
    load_started_tasks,
    merge_tasks,
)
from mmf_win.sweeps.specification import RESERVED_PLACEHOLDERS, Choice, Specification, Values, placeholders

#: Tasks of a sweep, each of which has a folder.
MAX_TASKS = 100_000
_MAX_VALUE_CHARS = 100


@dataclass(frozen=True)
class TaskPlan:
    """What a specification comes to.

    Attributes:
        tasks: in the order of the choices, and within one in that of its values, the last changing fastest.
        orphans: parameters that no template uses; they only name the folder.
    """

    tasks: tuple[Task, ...]
    unused_parameters: tuple[str, ...]


def plan_tasks(
    specification: Specification,
    *,
    title: str | None = None,
    commands: Collection[str] = (),
    sample: int | None = None,
) -> TaskPlan:
    """Combine the choices. Raises UsageError for what is not known, and where nothing sets a parameter.

    Args:
        title: only choices of this title.
        commands: only these commands, instead of those that the choices name.
        sample: only so many of each choice, drawn at random, always the same ones.
    """
    for name in commands:
        if name not in specification.template:
            known = ", ".join(specification.template)
            raise UsageError(f"there is no command {name}", hint=f"the templates are {known}")
    choices = [choice for choice in specification.choices if title in (None, choice.title)]
    if title is not None and not choices:
        titles = list(dict.fromkeys(choice.title for choice in specification.choices if choice.title))
        hint = f"the titles are {', '.join(titles)}" if titles else "no choice has a _title"
        raise UsageError(f"there is no choice with the title {title}", hint=hint)
    if (count := _count_combinations(choices, sample)) > MAX_TASKS:
        hint = "combine fewer values, or draw some of each choice with --sample N"
        raise UsageError(f"{count:,} combinations are more than a sweep's {MAX_TASKS:,} tasks", hint=hint)
    tasks: dict[str, Task] = {}
    for choice in choices:
        for parameters in _combinations(choice, sample):
            task = make_task(specification, parameters, commands or choice.commands)
            same = tasks.get(task.key, replace(task, order=len(tasks)))
            in_order = (name for name in specification.template if name in same.commands + task.commands)
            tasks[task.key] = replace(same, commands=tuple(in_order))
    every = [*tasks.values()]
    if specification.search is not None and title is None:
        domains = specification.search.parameters.items()
        first = {name: domain[0] if isinstance(domain, list) else domain["low"] for name, domain in domains}
        every.append(make_task(specification, first))
    used = {name for task in every for name in _used_parameters(specification, task)}
    given = {name for task in every for name in task.values}
    return TaskPlan(tuple(tasks.values()), tuple(sorted(given - used)))


def list_tasks(sweep: SweepFolder) -> list[Task]:
    """The tasks of a sweep: those that it was asked for last, in their order, then others that have begun.

    Of a grid that is too large for a sweep, of which samples ran, only those that have begun.
    Raises UsageError where the specification in its folder is invalid.
    """
    last, before = load_specification(sweep), load_started_tasks(sweep)
    asked = (
        merge_tasks(plan_tasks(last).tasks, before)
        if last and _count_combinations(last.choices) <= MAX_TASKS
        else []
    )
    keys = {task.key for task in asked}
    return [*asked, *(task for task in before if task.key not in keys)]


def make_task(
    specification: Specification, parameters: Values, commands: Collection[str] | None = None
) -> Task:
    """The task of one combination; ``commands`` None for all. Raises UsageError for an unknown case."""
    values: Values = {}
    for name, value in parameters.items():
        cases = specification.alias.get(name, {value: {name: value}})
        if value not in cases:
            hint = f"its cases are {', '.join(map(str, cases))}"
            raise UsageError(f"the alias {name} has no case {value}", hint=hint)
        values |= cases[value]
    values |= {name: value for name, value in specification.default.items() if name not in values}
    name = (
        "-".join(f"{_abbreviate_name(key)}_{_format_value(value)}" for key, value in parameters.items())
        or "default"
    )
    chosen = tuple(name for name in specification.template if commands is None or name in commands)
    return Task(portable_name(name, MAX_NAME_BYTES), values, chosen)


def _count_combinations(choices: Sequence[Choice], sample: int | None = None) -> int:
    """Return how many combinations choices have, or how many of them a sample of each has."""
    counts = [math.prod(map(len, choice.values.values())) for choice in choices]
    return sum(counts if sample is None else (min(count, sample) for count in counts))


def _combinations(choice: Choice, sample: int | None) -> Iterator[Values]:
    count, drawn, rng = _count_combinations([choice]), _count_combinations([choice], sample), random.Random(0)
    numbers: Iterable[int] = range(count)
    if drawn < count:  # Python's own samples are of sequences, which end at sys.maxsize
        huge = count > sys.maxsize
        numbers = {rng.randrange(count) for _ in range(drawn)} if huge else rng.sample(range(count), drawn)
    for number in sorted(numbers):
        values: Values = {}
        for name, listed in reversed(choice.values.items()):
            number, position = divmod(number, len(listed))
            values[name] = listed[position]
        yield {name: values[name] for name in choice.values}


def _used_parameters(specification: Specification, task: Task) -> set[str]:
    """The parameters that the task's templates use. Raises UsageError where one has no value."""
    used: set[str] = set()
    for command in task.commands:
        for name in placeholders(specification.template[command]):
            if name in specification.alias:
                raise UsageError(f"template {command}: {name} is an alias; use the parameters that it sets")
            if name not in task.values and name not in RESERVED_PLACEHOLDERS:
                message = f"template {command}: nothing sets {name}"
                hint = "set it in 'default' or in each choice, where a path with brackets can stand, too"
                raise UsageError(message, hint=hint)
            used.add(name)
    return used


def _abbreviate_name(name: str) -> str:
    """A parameter in a folder's name, as mlrunner writes it: ``batch_size`` is ``BaSize``."""
    *first, last = name.split("-") if "-" in name else name.split("_")
    return "".join(part[:2].title() if len(part) > 2 else part for part in first) + last.title()


def _format_value(value: str | float) -> str:
    """A value in a folder's name, as mlrunner writes it."""
    if isinstance(value, bool):
        return "T" if value else "F"
    if not isinstance(value, str):
        try:
            return f"{value:g}"
        except OverflowError:
            return str(value)
    with suppress(OSError):  # a longer text than a path can be, or one of a folder of others
        if "/" in value and Path(value).exists():
            return Path(value).name
    return re.sub("^[/.]*", "", value).replace("/", "_")[-_MAX_VALUE_CHARS:]

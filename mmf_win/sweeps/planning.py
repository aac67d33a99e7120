"""Tasks of a sweep: the combinations of its choices and their folder names."""

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
from mmf_win.sweeps.folder import MAX_NAME_BYTES, SweepFolder, Task, load_specification, load_started_tasks, merge_tasks
from mmf_win.sweeps.specification import RESERVED_PLACEHOLDERS, Choice, Specification, Values, placeholders

#: Maximum number of tasks in a sweep; each has a folder.
MAX_TASKS = 100_000
_MAX_VALUE_CHARS = 100


@dataclass(frozen=True)
class TaskPlan:
    """Tasks of a specification.

    Attributes:
        tasks: In the order of the choices; within a choice, the last parameter changes fastest.
        unused_parameters: Parameters that no template uses; they only appear in folder names.
    """

    tasks: tuple[Task, ...]
    unused_parameters: tuple[str, ...]


def plan_tasks(
    specification: Specification, *, title: str | None = None, commands: Collection[str] = (), sample: int | None = None
) -> TaskPlan:
    """Combine the values of the choices.

    Args:
        specification: The parsed specification.
        title: Use only the choices with this title.
        commands: Run only these commands, whatever the choices name.
        sample: Maximum number of combinations per choice, drawn at random with a fixed seed.

    Returns:
        The tasks and the unused parameters.

    Raises:
        UsageError: A name is unknown, a parameter has no value, or there are too many tasks.
    """
    for name in commands:
        if name not in specification.template:
            names = ", ".join(specification.template)
            raise UsageError(f"unknown command {name}", hint=f"choose one of {names}")
    choices = [choice for choice in specification.choices if title in (None, choice.title)]
    if title is not None and not choices:
        titles = list(dict.fromkeys(choice.title for choice in specification.choices if choice.title))
        hint = f"choose one of {', '.join(titles)}" if titles else "add a _title to a choice"
        raise UsageError(f"no choice has the title {title}", hint=hint)
    if (count := _count_combinations(choices, sample)) > MAX_TASKS:
        hint = "combine fewer values, or draw a sample of each choice with --sample N"
        raise UsageError(f"{count:,} combinations exceed the limit of {MAX_TASKS:,} tasks", hint=hint)
    tasks: dict[str, Task] = {}
    for choice in choices:
        for parameters in _combinations(choice, sample):
            task = make_task(specification, parameters, commands or choice.commands)
            merged = tasks.get(task.key, replace(task, order=len(tasks)))
            ordered = (name for name in specification.template if name in merged.commands + task.commands)
            tasks[task.key] = replace(merged, commands=tuple(ordered))
    all_tasks = [*tasks.values()]
    if specification.search is not None and title is None:
        domains = specification.search.parameters.items()
        first = {name: domain[0] if isinstance(domain, list) else domain["low"] for name, domain in domains}
        all_tasks.append(make_task(specification, first))
    used_names = {name for task in all_tasks for name in _used_parameters(specification, task)}
    set_names = {name for task in all_tasks for name in task.values}
    return TaskPlan(tuple(tasks.values()), tuple(sorted(set_names - used_names)))


def list_tasks(sweep: SweepFolder) -> list[Task]:
    """List the tasks of a sweep.

    If the grid is larger than a sweep can be, only samples of it have run, and only started tasks are listed.

    Returns:
        The tasks of the current specification in their order, then other tasks that have started.

    Raises:
        UsageError: The specification is invalid.
    """
    spec, started = load_specification(sweep), load_started_tasks(sweep)
    tasks = (
        merge_tasks(plan_tasks(spec).tasks, started) if spec and _count_combinations(spec.choices) <= MAX_TASKS else []
    )
    keys = {task.key for task in tasks}
    return [*tasks, *(task for task in started if task.key not in keys)]


def make_task(specification: Specification, parameters: Values, commands: Collection[str] | None = None) -> Task:
    """Create the task of one combination.

    Args:
        specification: The parsed specification.
        parameters: Values of a choice, with aliases.
        commands: Names of the commands to run; ``None`` for all.

    Returns:
        The queued task.

    Raises:
        UsageError: A value is not a case of its alias.
    """
    values: Values = {}
    for name, value in parameters.items():
        cases = specification.alias.get(name, {value: {name: value}})
        if value not in cases:
            hint = f"choose one of {', '.join(map(str, cases))}"
            raise UsageError(f"alias {name} has no case {value}", hint=hint)
        values |= cases[value]
    values |= {name: value for name, value in specification.default.items() if name not in values}
    name = "-".join(f"{_abbreviate_name(key)}_{_format_value(value)}" for key, value in parameters.items()) or "default"
    selected_commands = tuple(name for name in specification.template if commands is None or name in commands)
    return Task(portable_name(name, MAX_NAME_BYTES), values, selected_commands)


def _count_combinations(choices: Sequence[Choice], sample: int | None = None) -> int:
    """Return the number of combinations of choices, or of those in a sample of each."""
    counts = [math.prod(map(len, choice.values.values())) for choice in choices]
    return sum(counts if sample is None else (min(count, sample) for count in counts))


def _combinations(choice: Choice, sample: int | None) -> Iterator[Values]:
    count, drawn = _count_combinations([choice]), _count_combinations([choice], sample)
    rng = random.Random(0)
    numbers: Iterable[int] = range(count)
    if drawn < count:  # random.sample needs a sequence, whose length is limited to sys.maxsize
        huge = count > sys.maxsize
        numbers = {rng.randrange(count) for _ in range(drawn)} if huge else rng.sample(range(count), drawn)
    for number in sorted(numbers):
        values: Values = {}
        for name, choices in reversed(choice.values.items()):
            number, position = divmod(number, len(choices))
            values[name] = choices[position]
        yield {name: values[name] for name in choice.values}


def _used_parameters(specification: Specification, task: Task) -> set[str]:
    """Return the parameters that the task's templates use.

    Raises:
        UsageError: A parameter has no value, or is an alias.
    """
    used: set[str] = set()
    for command in task.commands:
        for name in placeholders(specification.template[command]):
            if name in specification.alias:
                raise UsageError(f"template {command}: {name} is an alias; use its parameters instead")
            if name not in task.values and name not in RESERVED_PLACEHOLDERS:
                message = f"template {command}: {name} has no value"
                hint = "set it in 'default' or in each choice; a path that contains brackets must be a value, too"
                raise UsageError(message, hint=hint)
            used.add(name)
    return used


def _abbreviate_name(name: str) -> str:
    """Abbreviate a parameter's name for a folder, like mlrunner: ``batch_size`` becomes ``BaSize``."""
    *first, last = name.split("-") if "-" in name else name.split("_")
    return "".join(part[:2].title() if len(part) > 2 else part for part in first) + last.title()


def _format_value(value: str | float) -> str:
    """Format a value for a folder's name, like mlrunner."""
    if isinstance(value, bool):
        return "T" if value else "F"
    if not isinstance(value, str):
        try:
            return f"{value:g}"
        except OverflowError:
            return str(value)
    with suppress(OSError):  # the text is too long for a path, or names a folder without access
        if "/" in value and Path(value).exists():
            return Path(value).name
    return re.sub("^[/.]*", "", value).replace("/", "_")[-_MAX_VALUE_CHARS:]

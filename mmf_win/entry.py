"""``python -m mmf_win.entry preset=mmbt_grid seed=1`` is ``mmfw train``, as queues start a program.

They hand on named arguments alone, and many start a file; this one can be started so, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

if not __package__:  # as a file: the modules beside it must not stand in for others of their names
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmf_win.cli import main
from mmf_win.commands.train import command
from mmf_win.errors import UsageError
from mmf_win.tracking import clearml_datasets


def mmfw_arguments(arguments: Sequence[str]) -> list[str]:
    """What ``mmfw`` is called with; without arguments, those of the task that an agent of ClearML's runs.

    Raises:
        UsageError: an argument has no name, or one that is unknown.
        MmfError: ClearML cannot be asked.
    """
    task = os.environ.pop("CLEARML_TASK_ID", "")  # where it is, importing clearml takes over click's parsing
    try:
        return _parse_arguments(arguments, task)
    finally:
        os.environ.update({"CLEARML_TASK_ID": task} if task else {})


def _parse_arguments(arguments: Sequence[str], task_id: str) -> list[str]:
    known = [option for option in command.params if isinstance(option, click.Option)]
    options = {opt[2:].replace("-", "_"): option for option in known for opt in option.opts}
    own, said = {"preset": "", "dataset_id": ""}, list[str]()
    for argument in arguments or (_clearml_task_arguments(task_id) if task_id else ()):
        key, equals, value = argument.lstrip("-").partition("=")
        name = key.replace("-", "_")
        if equals and "." in key:
            said.append(f"{key}={value}")
        elif equals and name in own:
            own[name] = value
        elif equals and name in options:
            option = options[name]
            flags = {"true": option.opts, "false": option.secondary_opts} if option.is_flag else {}
            each = value.split(",") if option.multiple else [value]
            said += flags.get(value.lower(), [f"{option.opts[0]}={one}" for one in each])
        else:
            near = get_close_matches(name, [*options, *own], n=1)
            hint = f"did you mean {near[0]}=…?" if near else "for example preset=mmbt_grid seed=1"
            raise UsageError(f"{argument}: not a NAME=VALUE of a training", hint=hint)
    if own["dataset_id"]:
        said.append(f"--data-dir={clearml_datasets.download_dataset(own['dataset_id'])}")
    return ["train", *filter(None, [own["preset"]]), *said]


def _clearml_task_arguments(task_id: str) -> list[str]:
    with clearml_datasets.open_connection() as to:
        given = to.call_api("tasks.get_by_id", task=task_id)["task"].get("hyperparams", {}).get("Args", {})
    return [f"{name}={parameter['value']}" for name, parameter in given.items()]


if __name__ == "__main__":
    sys.exit(main(lambda: mmfw_arguments(sys.argv[1:])))

"""Entry point for job queues: ``python -m mmf_win.entry preset=mmbt_grid seed=1`` is ``mmfw train``.

Queues pass only named arguments, and many of them start a file; this file can be started directly, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

if not __package__:  # started as a file: the modules next to it must not shadow others with their names
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmf_win.cli import main
from mmf_win.commands.train import command
from mmf_win.errors import UsageError
from mmf_win.tracking import clearml_datasets


def convert_arguments(arguments: Sequence[str]) -> list[str]:
    """Convert ``NAME=VALUE`` arguments to those of ``mmfw``.

    Args:
        arguments: The arguments; if there are none, those of the ClearML task that an agent runs.

    Returns:
        The arguments of ``mmfw``, beginning with ``train``.

    Raises:
        UsageError: An argument has no name or an unknown one.
        MmfEnvironmentError: The ClearML server cannot be reached.
    """
    task_id = os.environ.pop("CLEARML_TASK_ID", "")  # if it is set, importing clearml patches click's parser
    try:
        return _parse_arguments(arguments, task_id)
    finally:
        os.environ.update({"CLEARML_TASK_ID": task_id} if task_id else {})


def _parse_arguments(arguments: Sequence[str], task_id: str) -> list[str]:
    click_options = [option for option in command.params if isinstance(option, click.Option)]
    options = {opt[2:].replace("-", "_"): option for option in click_options for opt in option.opts}
    special, result = {"preset": "", "dataset_id": ""}, list[str]()
    for argument in arguments or (_clearml_task_arguments(task_id) if task_id else ()):
        key, equals, value = argument.lstrip("-").partition("=")
        name = key.replace("-", "_")
        if equals and "." in key:
            result.append(f"{key}={value}")
        elif equals and name in special:
            special[name] = value
        elif equals and name in options:
            option = options[name]
            flags = {"true": option.opts, "false": option.secondary_opts} if option.is_flag else {}
            values = value.split(",") if option.multiple else [value]
            result += flags.get(value.lower(), [f"{option.opts[0]}={one}" for one in values])
        else:
            matches = get_close_matches(name, [*options, *special], n=1)
            hint = f"did you mean {matches[0]}=…?" if matches else "for example preset=mmbt_grid seed=1"
            raise UsageError(f"{argument}: not a NAME=VALUE argument", hint=hint)
    if special["dataset_id"]:
        result.append(f"--data-dir={clearml_datasets.download_dataset(special['dataset_id'])}")
    return ["train", *filter(None, [special["preset"]]), *result]


def _clearml_task_arguments(task_id: str) -> list[str]:
    with clearml_datasets.open_connection() as connection:
        task = connection.call_api("tasks.get_by_id", task=task_id)["task"]
    parameters = task.get("hyperparams", {}).get("Args", {})
    return [f"{name}={parameter['value']}" for name, parameter in parameters.items()]


if __name__ == "__main__":
    sys.exit(main(lambda: convert_arguments(sys.argv[1:])))

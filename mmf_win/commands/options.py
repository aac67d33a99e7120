"""Arguments and options that several commands share, with their shell completion."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from mmf_win.archives import PasswordCallback
from mmf_win.dataset.annotations import list_splits
from mmf_win.errors import UsageError
from mmf_win.inputs.input_files import Mirror
from mmf_win.paths import MmfPaths
from mmf_win.protocol import Precision
from mmf_win.runs.request import CommandOptions

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: A folder that must exist.
EXISTING_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
#: A file that must exist.
EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def _completions(candidate: str, mmf_paths: MmfPaths) -> Iterable[str]:
    """Return the words that a candidate of :func:`make_completer` stands for.

    Unreadable runs are included.
    """
    # Imported only for completion: no other command needs all of these modules.
    if candidate == "PRESET":
        from mmf_win.runs import presets

        return presets.list_presets()
    if candidate == "RUN":
        from mmf_win.runs.lookup import list_runs_with_sweeps

        runs = list_runs_with_sweeps(mmf_paths.save_dir)
        return [*(run.path.parent.name for run in runs), *(run.id for run in runs)]
    return list_splits(mmf_paths.dataset) if candidate == "SPLIT" else [candidate]


def make_completer(*candidates: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a ``shell_complete`` callback that offers candidates, or files if none matches.

    Args:
        candidates: Words to offer. ``PRESET``, ``RUN`` and ``SPLIT`` stand for the names of all presets, runs
            or splits. Runs and splits are searched for in the folders given by ``--save-dir`` and ``--data-dir``,
            or in the default folders if these options do not precede the incomplete word.
    """

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        mmf_paths = MmfPaths.resolve(ctx.params.get("data_dir"), ctx.params.get("save_dir"))
        completions: dict[str, None] = {}
        for text in candidates:
            with suppress(OSError):  # a message would break up the line that the user is typing
                completions.update(dict.fromkeys(_completions(text, mmf_paths)))
        items = [CompletionItem(text) for text in completions if text.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type="file")]

    return complete


def positional_arguments(metavar: str, *candidates: str) -> _Decorator:
    """Add the positional arguments of a command."""
    return click.argument("arguments", nargs=-1, metavar=metavar, shell_complete=make_completer(*candidates))


def number(*names: str, help_text: str, minimum: int = 1, **attrs: Any) -> _Decorator:
    """Add an option that takes an integer of at least ``minimum``."""
    return click.option(*names, type=click.IntRange(minimum), metavar="N", help=help_text, **attrs)


def split(help_text: str, **attrs: Any) -> _Decorator:
    """Add ``--split``."""
    complete = make_completer("SPLIT")
    return click.option("--split", metavar="SPLIT", shell_complete=complete, help=help_text, **attrs)


def _folder_option(name: str, help_text: str, **attrs: Any) -> _Decorator:
    path_type = click.Path(path_type=Path, file_okay=False)
    return click.option(name, type=path_type, metavar="DIR", help=help_text, **attrs)


data_dir = _folder_option("--data-dir", "MMF's data folder.  [default: MMF_DATA_DIR, else MMF's default]")

_SAVE_DIR_OPTION = ("--save-dir", "Folder of the runs.  [default: MMF_SAVE_DIR, else ./save]")
#: ``--save-dir``, or ``None`` if it is not given.
save_dir = _folder_option(*_SAVE_DIR_OPTION)

#: ``--save-dir``, or its default if it is not given.
save_dir_or_default = _folder_option(
    *_SAVE_DIR_OPTION, callback=lambda _ctx, _param, chosen: MmfPaths.resolve(None, chosen).save_dir
)


class NumberRange(click.FloatRange):
    """Range of numbers that excludes NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; click alone accepts NaN because it is neither below nor above the range."""
        if math.isnan(number := super().convert(value, param, ctx)):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


stop_timeout = click.option(
    "--stop-timeout",
    type=NumberRange(0, 86_400, min_open=True),
    envvar="MMFW_STOP_TIMEOUT",
    show_envvar=True,
    default=CommandOptions.stop_timeout,
    show_default=True,
    metavar="SECONDS",
    help="Seconds without progress after Ctrl+C before the worker is killed.",
)

source = click.option(
    "--source",
    metavar="URL_OR_FOLDER",
    help="Look for archives here first: a mirror's URL, a folder such as a USB stick, or a file.",
)

keep_archives = click.option(
    "--keep-archives/--no-keep-archives",
    default=True,
    show_default=True,
    help="Keep downloaded archives so that repairs need no download.",
)

trust = click.option(
    "--trust",
    is_flag=True,
    help="Run code that comes with files: classes in a checkpoint other than tensors and plain values, a "
    "model's own code (trust_remote_code), and the code folder of a preset (env.user_dir), which stays "
    "trusted. Use it only if you trust the source of the files.",
)

precision = click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    help="Mixed precision: bf16, or fp16 on older GPUs. fp32 is full precision.  [default: the run's, else fp32]",
)

fast = click.option(
    "--fast/--no-fast",
    default=None,
    help="Pad texts to the longest in the batch instead of to 128 tokens, and run convolutions in "
    "channels-last format. Dropout then draws different numbers.  [default: the run's, else --no-fast]",
)


def output(help_text: str, metavar: str = "DIR", **attrs: Any) -> _Decorator:
    """Add ``-o``, which takes a folder, or a file if ``metavar`` is ``FILE``."""
    is_file = metavar == "FILE"
    path_type = click.Path(path_type=Path, dir_okay=not is_file, file_okay=is_file)
    return click.option("-o", "--output", type=path_type, metavar=metavar, help=help_text, **attrs)


def output_format(*other_formats: str, help_text: str) -> _Decorator:
    """Add ``--format``: text, or one of ``other_formats``."""
    choice = click.Choice(["text", *other_formats])
    return click.option("--format", "form", type=choice, default="text", show_default=True, help=help_text)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")

allow_missing = click.option("--allow-missing", is_flag=True, help="Exclude rows with missing features or images.")

no_retry = click.option(
    "--no-retry",
    "retry",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Do not retry with smaller batches or fewer workers after running out of memory.",
)


def _parse_number_or_auto(value: str) -> Any:
    """Return a positive integer, or ``auto``."""
    return value if value == "auto" else click.IntRange(1)(value)


def number_or_auto(name: str, help_text: str, **attrs: Any) -> _Decorator:
    """Add an option that takes a positive integer or ``auto``."""
    return click.option(name, type=_parse_number_or_auto, metavar="N|auto", help=help_text, **attrs)


def process_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the number of training processes and their machines."""
    nproc_help = "Training processes on this machine, each on its own GPU. auto uses all GPUs."
    nproc_attrs: dict[str, Any] = {"envvar": "MMFW_NPROC", "show_envvar": True}
    nproc = number_or_auto("--nproc", f"{nproc_help}  [default: 1]", **nproc_attrs)
    cpu = click.option("--cpu", is_flag=True, help="Train on the CPU even if there are GPUs.")
    nnodes = number("--nnodes", help_text="Number of nodes (machines); start the same command on each.", default=1)
    rank = number("--node-rank", help_text="Node rank of this machine, from 0. The run is saved on node 0.", minimum=0)
    rdzv = click.option("--rdzv", metavar="HOST:PORT", help="Address of node 0, and a free port on it.")
    return nproc(cpu(nnodes(rank(rdzv(function)))))


def confirm(question: str, assume_yes: bool) -> bool:
    """Return whether the user confirms the question, which ``assume_yes`` answers without asking.

    Raises:
        UsageError: Standard input has no answer.
        click.Abort: The user pressed Ctrl+C.
    """
    try:
        return assume_yes or click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise UsageError("confirmation required, but there is no input", hint="pass --yes") from None
        raise


def password_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--password`` and ``--password-file``.

    The command receives ``ask``, a callback that returns the password from an option or from MMFW_PASSWORD.
    If none is set, each call prompts for it. ``ask`` is ``None`` if there is neither a password nor a
    terminal.

    Returns:
        The decorated command.
    """

    @click.option(
        "--password",
        metavar="P",
        envvar="MMFW_PASSWORD",
        help="The archive's password. It is visible in the process list and stays in the shell's history; to "
        "avoid that, use --password-file, the variable MMFW_PASSWORD or the hidden prompt.",
    )
    @click.option("--password-file", type=EXISTING_FILE, metavar="F", help="File whose first line is the password.")
    @wraps(function)
    def command(*, password: str | None, password_file: Path | None, **arguments: Any) -> None:
        if password_file is not None:
            if click.get_current_context().get_parameter_source("password") is ParameterSource.COMMANDLINE:
                raise UsageError("--password and --password-file both set the password; use one")
            password = _read_password(password_file)
        function(ask=_password_callback(password), **arguments)

    return command


def archive_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the source of archives; the command receives a :class:`Mirror` as ``mirror``."""

    @source
    @password_options
    @keep_archives
    @wraps(function)
    def command(*, source: str | None, ask: PasswordCallback | None, keep_archives: bool, **arguments: object) -> None:
        function(mirror=replace(Mirror.from_source(source), keep_archives=keep_archives, ask=ask), **arguments)

    return command


def collect_options(**classes: type[Any]) -> _Decorator:
    """Return a decorator that collects options of a command into dataclass objects.

    Args:
        classes: Parameter of the command → dataclass whose fields are the names of the options.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(**values: Any) -> Any:
            for name, options_class in classes.items():
                field_names = [field.name for field in fields(options_class) if field.name in values]
                values[name] = options_class(**{field: values.pop(field) for field in field_names})
            return function(**values)

        return command

    return decorate


def folders_and_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--data-dir`` and ``--save-dir``, which are ``None`` if not given, and ``--json``."""
    return data_dir(save_dir(as_json(function)))


def save_dir_and_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--save-dir``, which has its default if not given, and ``--json``."""
    return save_dir_or_default(as_json(function))


def _password_callback(password: str | None) -> Callable[[], str] | None:
    if password is not None:
        return lambda: password
    if sys.stdin.isatty():
        return lambda: str(click.prompt("Password", hide_input=True, err=True))
    return None


def _read_password(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the password file is not UTF-8 text", hint="save it as UTF-8") from None
    # A password may contain other characters that Python treats as ends of lines, such as U+2028.
    line = text.partition("\n")[0].removesuffix("\r")
    if not line:
        raise UsageError(f"{path}: the password file is empty", hint="write the password in its first line")
    return line

"""Arguments and options that several commands share, and what the shell completes of them."""

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
from mmf_win.dataset.annotations import splits_on_disk
from mmf_win.errors import UsageError
from mmf_win.inputs.input_files import Mirror
from mmf_win.paths import MmfPaths
from mmf_win.protocol import Precision
from mmf_win.runs.request import CommandOptions

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: A folder that is there.
EXISTING_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
#: A file that is there.
EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def _completions(candidate: str, places: MmfPaths) -> Iterable[str]:
    """What a word of :func:`make_completer` stands for; of runs also unreadable ones, the newest first."""
    # Imported when the shell asks: no other command needs all of them.
    if candidate == "PRESET":
        from mmf_win.runs import presets

        return presets.names()
    if candidate == "RUN":
        from mmf_win.runs.lookup import list_runs_with_sweeps

        runs = list_runs_with_sweeps(places.save_dir)
        return [*(run.path.parent.name for run in runs), *(run.id for run in runs)]
    return splits_on_disk(places.dataset) if candidate == "SPLIT" else [candidate]


def make_completer(*candidates: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """The ``shell_complete`` of a parameter, where these words may stand, else files.

    ``PRESET``, ``RUN`` and ``SPLIT`` are all of these, in the folders that were named before or the default.
    """

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        places = MmfPaths.resolve(ctx.params.get("data_dir"), ctx.params.get("save_dir"))
        known: dict[str, None] = {}
        for word in candidates:
            with suppress(OSError):  # a message would stand in the middle of the command
                known.update(dict.fromkeys(_completions(word, places)))
        found = [CompletionItem(word) for word in known if word.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]

    return complete


def positional_arguments(metavar: str, *candidates: str) -> _Decorator:
    """The words of a command that belong to no option."""
    return click.argument("words", nargs=-1, metavar=metavar, shell_complete=make_completer(*candidates))


def number(*names: str, help_text: str, minimum: int = 1, **attrs: Any) -> _Decorator:
    """An option that takes a whole number."""
    return click.option(*names, type=click.IntRange(minimum), metavar="N", help=help_text, **attrs)


def split(help_text: str, **attrs: Any) -> _Decorator:
    """``--split``."""
    complete = make_completer("SPLIT")
    return click.option("--split", metavar="SPLIT", shell_complete=complete, help=help_text, **attrs)


def _folder_option(name: str, help_text: str, **attrs: Any) -> _Decorator:
    folder = click.Path(path_type=Path, file_okay=False)
    return click.option(name, type=folder, metavar="DIR", help=help_text, **attrs)


data_dir = _folder_option("--data-dir", "MMF's data folder.  [default: MMF_DATA_DIR, else MMF's own]")

_SAVE_DIR_OPTION = ("--save-dir", "Where runs are kept.  [default: MMF_SAVE_DIR, else ./save]")
#: The folder that was named, if any.
save_dir = _folder_option(*_SAVE_DIR_OPTION)

#: The folder that was named, or else its default.
save_dir_or_default = _folder_option(
    *_SAVE_DIR_OPTION, callback=lambda _ctx, _param, chosen: MmfPaths.resolve(None, chosen).save_dir
)


class NumberRange(click.FloatRange):
    """A number in a range, in which NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; click's own takes NaN, which compares with none, for one in range."""
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
    help="How long to wait for a sign of life after Ctrl+C.",
)

source = click.option(
    "--source",
    metavar="URL_OR_FOLDER",
    help="Look for the archives here first: a mirror, a folder such as a USB stick, or a file.",
)

keep_archives = click.option(
    "--keep-archives/--no-keep-archives",
    default=True,
    show_default=True,
    help="Keep downloaded archives, so that repairs need no download.",
)

trust = click.option(
    "--trust",
    is_flag=True,
    help="Run code that comes with files: a checkpoint's classes besides tensors and plain values, a model's "
    "own code (trust_remote_code), and the folder of code that a preset names (env.user_dir), which is "
    "trusted from then on. Use it only if you trust where the files come from.",
)

precision = click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    help="Mixed precision: bf16, or fp16 on older GPUs. fp32 is full precision.  [default: the run's, "
    "else fp32]",
)

fast = click.option(
    "--fast/--no-fast",
    default=None,
    help="Pad texts to the longest of the batch instead of to 128 tokens, and run convolutions in "
    "channels-last format. Dropout then draws other random numbers.  [default: the run's, else --no-fast]",
)


def output(help_text: str, metavar: str = "DIR", **attrs: Any) -> _Decorator:
    """``-o``, which names a folder, or a file where ``metavar`` is ``EXISTING_FILE``."""
    is_file = metavar == "FILE"
    path = click.Path(path_type=Path, dir_okay=not is_file, file_okay=is_file)
    return click.option("-o", "--output", type=path, metavar=metavar, help=help_text, **attrs)


def output_format(*other_formats: str, help_text: str) -> _Decorator:
    """``--format``: text, or one of ``others``."""
    choice = click.Choice(["text", *other_formats])
    return click.option("--format", "form", type=choice, default="text", show_default=True, help=help_text)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")

allow_missing = click.option(
    "--allow-missing", is_flag=True, help="Leave out rows whose features or image are missing."
)

no_retry = click.option(
    "--no-retry",
    "retry",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Fail at once when memory runs out, instead of retrying with smaller batches or fewer workers.",
)


def _parse_number_or_auto(value: str) -> Any:
    """A positive number, or ``auto``."""
    return value if value == "auto" else click.IntRange(1)(value)


def number_or_auto(name: str, help_text: str, **attrs: Any) -> _Decorator:
    """An option that takes a positive whole number or ``auto``."""
    return click.option(name, type=_parse_number_or_auto, metavar="N|auto", help=help_text, **attrs)


def process_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of how many processes train together, and where."""
    on_gpus = "Processes of this machine that train together, each on a GPU of its own. auto takes all GPUs."
    env: dict[str, Any] = {"envvar": "MMFW_NPROC", "show_envvar": True}
    nproc = number_or_auto("--nproc", f"{on_gpus}  [default: 1]", **env)
    cpu = click.option("--cpu", is_flag=True, help="Train on the CPU, whatever GPUs there are.")
    nnodes = number("--nnodes", help_text="On how many machines; start the same command on each.", default=1)
    node = number(
        "--node-rank", help_text="Which of them this is, from 0. The first keeps the run.", minimum=0
    )
    meeting = "Where they meet: the first one, and a free port of it."
    rdzv = click.option("--rdzv", metavar="HOST:PORT", help=meeting)
    return nproc(cpu(nnodes(node(rdzv(function)))))


def confirm(question: str, assume_yes: bool) -> bool:
    """Whether the user says yes, or has said so before. Raises UsageError where nobody answers."""
    try:
        return assume_yes or click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise UsageError("nobody is there to answer", hint="--yes goes on without asking") from None
        raise


def password_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--password`` and ``--password-file``.

    Its argument ``ask`` answers with the password: that of an option or of MMFW_PASSWORD, else what the user
    types, who is asked only when ``ask`` is called. It is None without a password and a terminal.
    """

    @click.option(
        "--password",
        metavar="P",
        envvar="MMFW_PASSWORD",
        help="The archive's password. It can be seen in the list of processes and stays in the shell's "
        "history; --password-file, the variable MMFW_PASSWORD and the hidden prompt avoid that.",
    )
    @click.option(
        "--password-file", type=EXISTING_FILE, metavar="F", help="A file whose first line is the password."
    )
    @wraps(function)
    def command(*, password: str | None, password_file: Path | None, **arguments: Any) -> None:
        if password_file is not None:
            if click.get_current_context().get_parameter_source("password") is ParameterSource.COMMANDLINE:
                raise UsageError("--password and --password-file both name the password; give one of them")
            password = _read_password(password_file)
        function(ask=_password_callback(password), **arguments)

    return command


def archive_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of where archives come from, as a :class:`Mirror`, ``mirror``."""

    @source
    @password_options
    @keep_archives
    @wraps(function)
    def command(
        *, source: str | None, ask: PasswordCallback | None, keep_archives: bool, **arguments: object
    ) -> None:
        function(
            mirror=replace(Mirror.from_source(source), keep_archives=keep_archives, ask=ask), **arguments
        )

    return command


def collect_options(**classes: type[Any]) -> _Decorator:
    """Hand a command, by each name, an object of a dataclass, made of those options that are its fields."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(**values: Any) -> Any:
            for name, kind in classes.items():
                given = [field.name for field in fields(kind) if field.name in values]
                values[name] = kind(**{field: values.pop(field) for field in given})
            return function(**values)

        return command

    return decorate


def folders_and_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--data-dir`` and ``--save-dir``, each None where it is not named, and ``--json``."""
    return data_dir(save_dir(as_json(function)))


def save_dir_and_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--save-dir``, which is never None, and ``--json``."""
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
        raise UsageError(f"{path}: the password file is not UTF-8 text") from None
    # A password may hold what Python counts as an end of line besides, such as U+2028.
    line = text.partition("\n")[0].removesuffix("\r")
    if not line:
        raise UsageError(f"{path}: the password file is empty")
    return line

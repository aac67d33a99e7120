"""Command line: finds the command, runs it, and turns errors into messages and exit codes."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from types import FrameType

import click
from click.shell_completion import CompletionItem

from mmf_win.console import print_json, print_status, show_log_messages
from mmf_win.errors import MmfwError, StoppedByUserError, UsageError
from mmf_win.files import to_mmfw_error
from mmf_win.scrub import redact_urls
from mmf_win.signals import STOP_SIGNALS, StopRequests
from mmf_win.version import __version__

_STOP_FILE_POLL_SECONDS = 0.2
# Raised for the stop file; nothing else sends it, so the stop file works even if other signals are ignored.
_STOP_FILE_SIGNAL = getattr(signal, "SIGUSR2", signal.SIGINT)

# Command → its line in the overview; the command itself is `command` in mmf_win.commands.<name>.
COMMANDS = {
    "setup": "Install MMF and verify it.",
    "doctor": "Show versions and paths, and how to install what is missing.",
    "convert": "Convert the dataset's archive to MMF's layout.",
    "features": "Show, download, unpack and add region features and pretrained weights.",
    "verify": "Verify the files that mmfw has written.",
    "repair": "Repair the files that verify finds damaged.",
    "train": "Train a preset, or resume a run.",
    "predict": "Predict splits with trained runs, alone or blended.",
    "export": "Export a trained run as ONNX, with a script that runs it.",
    "check-submission": "Check a prediction file against a split.",
    "check": "Look for mistakes in a model and its data before training.",
    "report": "Write a page about one run, or a page that compares several.",
    "sweep": "Run many experiments: grids, seeds and searches.",
    "runs": "List, show, compare and remove runs.",
    "track": "Upload runs to MLflow, ClearML or Weights & Biases.",
    "demo": "Run the complete workflow on a small synthetic dataset, on a CPU.",
}

#: Removed command → the command that replaces it.
REPLACED_COMMANDS = {"profile": "mmfw train --profile N", "bug-report": "mmfw doctor --report FILE.zip"}


class _LazyGroup(click.Group):
    """Group that imports a command only when it runs, so that ``--help`` is fast."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in REPLACED_COMMANDS and not ctx.resilient_parsing:
            raise UsageError(f"`mmfw {cmd_name}` was replaced by `{REPLACED_COMMANDS[cmd_name]}`")
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"mmf_win.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = [CompletionItem(name, help=line) for name, line in COMMANDS.items()]
        matches = [item for item in items if item.value.startswith(incomplete)]
        return matches + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from mmf_win.doctor.survey import read_installed_version
    from mmf_win.upstream.install import find_mmf

    try:
        mmf_version = find_mmf().version
    except MmfwError:
        mmf_version = "not installed"
    versions = [f"{name} {read_installed_version(name) or 'not installed'}" for name in ("torch", "transformers")]
    click.echo(f"mmfw {__version__}")
    click.echo(f"Python {sys.version.split()[0]}, MMF {mmf_version}, {', '.join(versions)}")
    ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: mmfw setup, then mmfw demo. Each command has its own --help with examples.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the versions of mmfw, Python, MMF, torch and transformers, and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run Facebook's MMF on the Hateful Memes challenge."""
    ctx.with_resource(show_log_messages())


def main(arguments: Sequence[str] | Callable[[], Sequence[str]] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Command-line arguments, or a function that returns them; by default, those of the process.

    Returns:
        The exit code (see :mod:`mmf_win.errors`).
    """
    for stream in (sys.stdout, sys.stderr):
        # The encoding of a Windows pipe may lack some characters; escaping them is better than failing.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    argv: Sequence[str] = ()

    def print_error(error: MmfwError) -> int:
        # After a usage error there is no parsed option, so look for --json in the arguments.
        return _print_error(error, as_json="--json" in argv)

    try:
        with _signals_as_interrupts():
            argv = arguments() if callable(arguments) else sys.argv[1:] if arguments is None else arguments
            if stop_file := os.environ.get("MMFW_STOP_FILE"):
                _interrupt_on_stop_file(Path(stop_file))
            result = cli.main(args=argv, prog_name="mmfw", standalone_mode=False, obj=argv)
        return result if isinstance(result, int) else 0
    except MmfwError as error:
        return print_error(error)
    except click.ClickException as error:
        return print_error(_usage_error(error))
    except (KeyboardInterrupt, click.Abort):
        return print_error(StoppedByUserError("interrupted"))
    except SystemExit as exit_:
        *_, (frame, _) = traceback.walk_tb(exit_.__traceback__)
        # click itself exits when the reader of a pipe has closed it.
        if not exit_.code or frame.f_globals["__name__"] == "click.core":
            return 0
        return print_error(MmfwError(f"a library called sys.exit({exit_.code!r})"))
    except (OSError, MemoryError) as error:
        return print_error(to_mmfw_error(error))
    except Exception as error:
        print_status(redact_urls(traceback.format_exc()))
        hint = "report it with the lines above, the command and the file of `mmfw doctor --report FILE.zip`"
        message = f"bug in mmfw {__version__}: {type(error).__name__}: {error}"
        return print_error(MmfwError(message, hint=hint))


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Handle every stop signal like Ctrl+C while the block runs; ignored signals (nohup) stay ignored.

    A second Ctrl+C ends the process immediately, even if cleanup is blocked.
    """
    requests = StopRequests()

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        is_first = not requests.count
        requests.add(signum)
        if requests.count > 1:
            os._exit(StoppedByUserError.exit_code)
        if is_first:
            raise KeyboardInterrupt

    previous = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    handled = [n for n, h in previous.items() if h in (signal.SIG_DFL, signal.default_int_handler)]
    if "MMFW_STOP_FILE" in os.environ and _STOP_FILE_SIGNAL not in handled:
        handled.append(_STOP_FILE_SIGNAL)
    for signum in handled:
        signal.signal(signum, interrupt)
    try:
        yield
    finally:
        for signum in handled:
            signal.signal(signum, previous[signum])


def _interrupt_on_stop_file(stop_file: Path) -> None:
    """Act as on Ctrl+C as soon as the file exists; for callers that cannot send signals."""
    from threading import Thread, main_thread

    def watch() -> None:
        while not stop_file.exists():
            time.sleep(_STOP_FILE_POLL_SECONDS)
        if sys.platform == "win32":
            signal.raise_signal(_STOP_FILE_SIGNAL)
        else:  # raising the signal in this thread would not wake the main thread
            signal.pthread_kill(main_thread().ident or 0, _STOP_FILE_SIGNAL)

    Thread(target=watch, daemon=True).start()


def _print_error(error: MmfwError, *, as_json: bool) -> int:
    message, hint = redact_urls(str(error)), redact_urls(error.hint or "")
    stopped = isinstance(error, StoppedByUserError)  # requested by the user, so not shown as an error
    if message:
        print_status(message, label="" if stopped else "error:", ansi_code=31)
    if hint:
        print_status(hint, label="" if stopped else "hint:", ansi_code=36)
    if as_json:
        details = {"code": error.exit_code, "message": message, "hint": hint or None}
        with suppress(OSError):  # the reader of the pipe may have closed it
            print_json({"error": details}, on_one_line=True)
    return error.exit_code


def _usage_error(error: click.ClickException) -> MmfwError:
    """Return a click error as an error of mmfw."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    path = ctx.command_path if ctx else "mmfw"
    hint = f"run `{path} --help`" if ctx else None
    message = error.format_message().rstrip(".").replace("a valid integer range", "a whole number")
    unknown = re.match("No such command '(.*?)'", message)
    if unknown and ctx is not None and isinstance(ctx.command, click.Group):
        message = f"{path} has no command {unknown[1]}"
        if similar := get_close_matches(unknown[1], ctx.command.list_commands(ctx), n=1):
            hint = f"did you mean `{path} {similar[0]}`?"
        elif "run" in ctx.command.commands:
            from mmf_win.runs import presets

            if unknown[1] in presets.list_presets() or Path(unknown[1]).exists():
                hint = f"did you mean `{path} run {unknown[1]}`?"
            else:
                hint = f"choose one of {', '.join(ctx.command.commands)}, or {hint}"
        elif ctx.command.invoke_without_command:
            hint = f"run `{path}` for the list, or `{path} --help`"
    if isinstance(error, click.NoSuchOption):
        message = f"{path} has no option {error.option_name}"
        if path == "mmfw":
            hint = f"put options after the command: `mmfw COMMAND {error.option_name} ...`"
        elif error.possibilities:
            hint = f"did you mean {' or '.join(sorted(error.possibilities))}?"
    return UsageError(message[:1].lower() + message[1:], hint=hint)

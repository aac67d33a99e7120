"""``mmfw demo``."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.console import format_command, format_duration, print_json, print_status
from mmf_win.demo.folder import DEMO_PRESETS, PASSWORD, DemoFolder
from mmf_win.errors import StoppedByUserError, TrainingError
from mmf_win.files import atomic_replace
from mmf_win.paths import expand_home, reserve_file
from mmf_win.results import metrics_file
from mmf_win.upstream.install import require_mmf, require_packages

_SEED = 1
_MIN_AUROC = 0.8


@click.command(cls=Command)
@click.option(
    "--dir",
    "chosen",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where everything is kept.  [default: a temporary folder, or mmfw-demo with --keep]",
)
@click.option("--keep", is_flag=True, help="Keep everything, to continue with it.")
@click.option(
    "--model",
    type=click.Choice([*DEMO_PRESETS]),
    default="vilbert",
    show_default=True,
    help="What is trained: a ViLBERT on region features, or a CLIP on pixels.",
)
@options.as_json
def command(chosen: Path | None, keep: bool, model: str, as_json: bool) -> None:
    """Run the whole workflow on a small synthetic dataset, on a CPU.

    Makes an encrypted archive in the format of Hateful Memes, whose labels depend on words and picture
    together, and then does with the real commands what one does with the real archive: convert it, put region
    features in their place, train a tiny model, predict the test set and make the report.

    Examples:
      mmfw demo                     only the predictions and the report stay, as mmfw-demo-TIME
      mmfw demo --keep              everything stays, in the folder mmfw-demo
      mmfw demo --dir D:\\demo       ... in another one, which may be an earlier demo's
      mmfw demo --model clip        a model that reads pixels, and so predicts memes of your own, too
    """
    require_mmf()
    require_packages("pillow", "lmdb", "numpy", "jinja2", "matplotlib")
    start = time.monotonic()
    if keep and chosen is None:
        chosen = Path("mmfw-demo")
    with _working_folder(chosen) as path, redirect_stdout(sys.stderr) if as_json else nullcontext():
        result = _run_workflow(path, model)
        if chosen is None:
            result |= _copy_results(result) | {"data_dir": None, "save_dir": None}
    result["seconds"] = round(time.monotonic() - start, 1)
    _print_summary(result)
    if as_json:
        print_json(result)
    if result["auroc"] < _MIN_AUROC:
        message = (
            f"an AUROC of {result['auroc']:.4f} is less than the {_MIN_AUROC} that this demo has to reach"
        )
        raise TrainingError(message, hint="`mmfw doctor` may show why")


@contextmanager
def _working_folder(path: Path | None) -> Iterator[Path]:
    """The chosen folder; without one a temporary one, which stays only when something in it went wrong."""
    if path is not None:
        yield expand_home(path).absolute()
        return
    temporary = Path(tempfile.mkdtemp(prefix="mmfw-demo-"))
    try:
        yield temporary
    except (StoppedByUserError, KeyboardInterrupt, click.Abort):
        shutil.rmtree(temporary, ignore_errors=True)
        message = f"interrupted; {temporary} is removed"
        raise StoppedByUserError(message, hint="with --keep it stays, and training can be resumed") from None
    except Exception:
        print_status(f"{temporary} stays, so that you can look into it")
        raise
    shutil.rmtree(temporary, ignore_errors=True)


def _run_workflow(path: Path, model: str) -> dict[str, Any]:
    """Run all commands; return what they led to."""
    folder = DemoFolder(path)
    folder.claim()
    folder.generate_files(_SEED, model)
    data_dir, save_dir = str(folder.data_dir), str(folder.save_dir)
    data, save = ("--data-dir", data_dir), ("--save-dir", save_dir)
    _run_command("convert", "--zip", str(folder.archive), "--password", PASSWORD, *data)
    if model == "vilbert":
        _run_command("features", "extract", str(folder.features), *data)
    run = _run_command("train", DEMO_PRESETS[model], "--seed", str(_SEED), *data, *save)
    _run_command("predict", run.id, *data, *save)
    csv = max(run.reports.glob("*.csv"))
    metrics = metrics_file.read_metrics(csv)
    scores = {name: metrics[name] for name in ("auroc", "accuracy")}
    files = {"csv": str(csv), "report": str(csv.with_suffix(".html"))}
    return {**scores, **files, "run": run.id, "data_dir": data_dir, "save_dir": save_dir}


def _copy_results(result: dict[str, Any]) -> dict[str, str | None]:
    """Copies of the predictions and the report in the current folder; None for what cannot be written."""
    copies: dict[str, str | None] = {"csv": None, "report": None}
    try:
        with reserve_file(Path.cwd(), "mmfw-demo-", ".csv") as csv:
            for key in copies:
                kept = csv.with_suffix(Path(result[key]).suffix)
                with atomic_replace(kept) as temporary:
                    shutil.copyfile(result[key], temporary)
                copies[key] = str(kept)
    except OSError as error:
        print_status(f"the results cannot be written here ({error.strerror})")
    return copies


def _run_command(*argv: str) -> Any:
    """Run a command of mmfw, and show it as one would type it; return what its function does."""
    print_status()
    print_status(label=f"$ {format_command('mmfw', *argv)}", ansi_code=1)
    name, *arguments = argv
    command = import_module(f"mmf_win.commands.{name}").command
    return command.main(arguments, prog_name=f"mmfw {name}", standalone_mode=False)


def _print_summary(result: dict[str, Any]) -> None:
    print_status(
        f"\nThe demo took {format_duration(result['seconds'])}. "
        f"The test set's AUROC is {result['auroc']:.4f}, its accuracy {result['accuracy']:.4f}."
    )
    for key, what in (("csv", "predictions"), ("report", "report")):
        if result[key] is not None:
            print_status(f"{what}: {result[key]}")
    if result["data_dir"] is None:
        print_status(
            "next: mmfw demo --keep, to continue with it, or mmfw convert --zip ARCHIVE for the real dataset"
        )
        return
    places = ("--data-dir", result["data_dir"], "--save-dir", result["save_dir"])
    print_status("next, to continue with it:")
    print_status(f"  {format_command('mmfw', 'train', result['run'].partition('/')[0], *places)}")
    print_status(f"  {format_command('mmfw', 'predict', *places)}")

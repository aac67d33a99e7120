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
    help="Folder for all files.  [default: a temporary folder, or mmfw-demo with --keep]",
)
@click.option("--keep", is_flag=True, help="Keep all files, to continue with them.")
@click.option(
    "--model",
    type=click.Choice([*DEMO_PRESETS]),
    default="vilbert",
    show_default=True,
    help="Model to train: ViLBERT on region features, or CLIP on pixels.",
)
@options.as_json
def command(chosen: Path | None, keep: bool, model: str, as_json: bool) -> None:
    r"""Run the whole workflow on a small synthetic dataset, on a CPU.

    Creates an encrypted archive in the format of Hateful Memes, whose labels depend on text and image
    together. Then the same commands as for the real archive convert it, unpack region features, train a tiny
    model, predict the test set and write the report.

    Examples:
      mmfw demo                     keep only the predictions and the report, as mmfw-demo-TIME
      mmfw demo --keep              keep all files, in the folder mmfw-demo
      mmfw demo --dir D:\demo       ... in another folder, which may be that of an earlier demo
      mmfw demo --model clip        a model that reads pixels, and so can predict your own memes, too

    Raises:
        TrainingError: The model is worse than it must be on this dataset.
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
        message = f"AUROC {result['auroc']:.4f} is below {_MIN_AUROC}, the minimum for this demo"
        raise TrainingError(message, hint="run `mmfw doctor` to check the installation")


@contextmanager
def _working_folder(path: Path | None) -> Iterator[Path]:
    """Yield the chosen folder, or a temporary one that is removed unless an error occurs."""
    if path is not None:
        yield expand_home(path).absolute()
        return
    temporary = Path(tempfile.mkdtemp(prefix="mmfw-demo-"))
    try:
        yield temporary
    except (StoppedByUserError, KeyboardInterrupt, click.Abort):
        shutil.rmtree(temporary, ignore_errors=True)
        message = f"interrupted; removed {temporary}"
        raise StoppedByUserError(message, hint="use --keep to keep the files and resume the training") from None
    except Exception:
        print_status(f"kept for inspection: {temporary}")
        raise
    shutil.rmtree(temporary, ignore_errors=True)


def _run_workflow(path: Path, model: str) -> dict[str, Any]:
    """Run all commands; return the scores, the files and the folders."""
    folder = DemoFolder(path)
    folder.claim()
    folder.generate_files(_SEED, model)
    data_dir, save_dir = str(folder.data_dir), str(folder.save_dir)
    data_arguments, save_arguments = ("--data-dir", data_dir), ("--save-dir", save_dir)
    _run_command("convert", "--zip", str(folder.archive), "--password", PASSWORD, *data_arguments)
    if model == "vilbert":
        _run_command("features", "extract", str(folder.features), *data_arguments)
    run = _run_command("train", DEMO_PRESETS[model], "--seed", str(_SEED), *data_arguments, *save_arguments)
    _run_command("predict", run.id, *data_arguments, *save_arguments)
    csv = max(run.reports.glob("*.csv"))
    metrics = metrics_file.read_metrics(csv)
    scores = {name: metrics[name] for name in ("auroc", "accuracy")}
    files = {"csv": str(csv), "report": str(csv.with_suffix(".html"))}
    return {**scores, **files, "run": run.id, "data_dir": data_dir, "save_dir": save_dir}


def _copy_results(result: dict[str, Any]) -> dict[str, str | None]:
    """Copy predictions and report to the current folder; return the paths, ``None`` if not written."""
    copies: dict[str, str | None] = {"csv": None, "report": None}
    try:
        with reserve_file(Path.cwd(), "mmfw-demo-", ".csv") as csv:
            for key in copies:
                copy = csv.with_suffix(Path(result[key]).suffix)
                with atomic_replace(copy) as temporary:
                    shutil.copyfile(result[key], temporary)
                copies[key] = str(copy)
    except OSError as error:
        print_status(f"warning: cannot write the results to the current folder ({error.strerror})")
    return copies


def _run_command(*argv: str) -> Any:
    """Print a command of mmfw as a user would type it, run it, and return its function's result."""
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
    for key, title in (("csv", "predictions"), ("report", "report")):
        if result[key] is not None:
            print_status(f"{title}: {result[key]}")
    if result["data_dir"] is None:
        print_status("next: `mmfw demo --keep` to continue with it, or `mmfw convert ARCHIVE` for the real dataset")
        return
    folder_arguments = ("--data-dir", result["data_dir"], "--save-dir", result["save_dir"])
    print_status("next:")
    print_status(f"  {format_command('mmfw', 'train', result['run'].partition('/')[0], *folder_arguments)}")
    print_status(f"  {format_command('mmfw', 'predict', *folder_arguments)}")

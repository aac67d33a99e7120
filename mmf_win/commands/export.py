"""``mmfw export``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.commands.progress import RunDisplay
from mmf_win.console import format_size, format_table, print_json, print_result, print_status
from mmf_win.errors import UsageError
from mmf_win.export.exporter import ExportOptions, export_checkpoint
from mmf_win.paths import MmfPaths
from mmf_win.results.evaluation import select_checkpoints
from mmf_win.runs.override_rules import require_predictable, split_arguments
from mmf_win.runs.request import CommandOptions
from mmf_win.upstream.install import require_packages


@click.command(cls=Command)
@options.positional_arguments("[RUN] [KEY=VALUE ...]", "RUN")
@options.output("New folder for the exported model.", required=True)
@click.option(
    "--checkpoint",
    default="best",
    show_default=True,
    metavar="best|last|PATH",
    shell_complete=options.make_completer("best", "last"),
    help="Checkpoint to export.",
)
@options.split("Split on which to compare the exported model.  [default: the run's validation split]")
@click.option(
    "--tolerance",
    type=options.NumberRange(min=0),
    default=1e-4,
    show_default=True,
    metavar="P",
    help="Maximum absolute difference from the probabilities of `mmfw predict`; the export fails above it.",
)
@click.option("--int8", is_flag=True, help="Quantize the weights to 8 bits, and compare again.")
@click.option(
    "--max-loss",
    "max_auroc_drop",
    type=options.NumberRange(-1, 1),
    metavar="AUROC",
    help="Maximum AUROC drop with --int8; the export fails above it.  [default: 0.005]",
)
@options.trust
@options.stop_timeout
@options.data_dir
@options.save_dir_and_json
@options.collect_options(command_options=CommandOptions, export_options=ExportOptions)
def command(
    arguments: tuple[str, ...],
    command_options: CommandOptions,
    export_options: ExportOptions,
    checkpoint: str,
    data_dir: Path | None,
    save_dir: Path,
    as_json: bool,
) -> None:
    """Export a trained run to a folder that needs neither PyTorch nor MMF nor mmfw.

    The folder contains model.onnx, tokenizer.json, model.json and run.py, which needs only onnxruntime,
    tokenizers, pillow and numpy: `python DIR/run.py --image cat.png --text "look at this cat"`, or with a
    table of memes. It predicts probabilities from texts and images of any size. The folder is created only
    after run.py has predicted a split with the same probabilities as `mmfw predict`. A model that needs
    region features can be exported, too, but another program must extract them.

    Examples:
      mmfw export -o model                      the newest run's best checkpoint
      mmfw export mmbt_grid -o model
      mmfw export mmbt_grid -o small --int8     with weights of 8 bits
      mmfw export mmbt_grid -o model --checkpoint last --split test_seen
      python model/run.py --image cat.jpg --text "look at this cat"
      mmfw predict --with model --split dev_seen

    Raises:
        UsageError: Options cannot be combined.
    """
    if export_options.max_auroc_drop is not None and not export_options.int8:
        raise UsageError("--max-loss requires --int8", hint="add --int8")
    require_packages("onnx", "onnxscript", "onnxruntime", extra="[export]")
    runs, overrides = split_arguments(arguments, max_names=1)
    command_options = replace(command_options, overrides=overrides)
    require_predictable(command_options)
    [member] = select_checkpoints(save_dir, runs, [checkpoint])
    mmf_paths = MmfPaths.resolve(data_dir or Path(member.run.request().data_dir), save_dir)
    # The exported model computes with 32 bits on the CPU, and so must the model that it is compared with.
    command_options = replace(command_options, precision="fp32", fast=False, cpu=True)
    metadata = export_checkpoint(member.run, member.checkpoint, mmf_paths, command_options, RunDisplay, export_options)
    if as_json:
        print_json(metadata)
        return
    parity = metadata["parity"]
    print_status(
        f"{parity['rows']:,} memes of {parity['split']}: probabilities differ by at most "
        f"{parity['largest_difference']:.1g} from those of `mmfw predict`"
    )
    if export_options.int8:
        _print_int8_comparison(metadata["int8"])
    print_result(export_options.output)


def _print_int8_comparison(comparison: dict[str, Any]) -> None:
    rows, auroc = [], comparison["auroc"]
    for name, key in (("float32", "before"), ("int8", "after")):
        p50, p99 = (f"{comparison[key][percentile]:.1f}" for percentile in ("p50_ms", "p99_ms"))
        rows.append((name, format_size(comparison[key]["bytes"]), p50, p99, f"{auroc[key]:.4f}"))
    print(format_table(("weights", "size", "p50 ms", "p99 ms", "AUROC"), rows))
    print_status(f"probabilities differ by at most {comparison['largest_difference']:.2g} from those of float32")
    if interval := auroc["interval"]:
        print_status("AUROC change: {:+.4f} (95% CI: {:+.4f} to {:+.4f})".format(auroc["difference"], *interval))
    print_status("warning: int8 results and timings depend on the CPU (VNNI, ARM dot product)")

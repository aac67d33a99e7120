"""``mmfw doctor``: show versions, paths, the machine, and how to install what is missing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mmf_win.commands import options
from mmf_win.commands.help_examples import Command
from mmf_win.console import (
    colour_text,
    escape_controls,
    format_size,
    format_table,
    print_json,
    print_result,
    print_status,
    summarize_lines,
)
from mmf_win.doctor import bug_report
from mmf_win.doctor.survey import MmfState, survey_environment
from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.paths import MmfPaths, expand_home, module_command, require_new_file
from mmf_win.runs.lookup import find_run, list_runs
from mmf_win.upstream.install import find_mmf


@click.command(cls=Command)
@options.folders_and_json
@click.option("--compat", is_flag=True, help="List only the patches of MMF for current libraries.")
@click.option("--report", type=Path, metavar="FILE.zip", help="Write a bug report to this new file instead.")
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=options.make_completer("RUN"),
    help="Run to include in the report.  [default: the newest]",
)
@click.option("--log", is_flag=True, help="Include the run's logs, which may contain texts of memes.")
def command(
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
    compat: bool,
    report: Path | None,
    run: str | None,
    log: bool,
) -> None:
    """Show versions and every resolved path, and the commands that install what is missing.

    Exits with 6 if the installed MMF is damaged, or if --compat finds no MMF; otherwise with 0, because you
    may not need what is missing.

    A report contains the output of this command and the run's requests, configurations, events and outcomes,
    with --log also the last megabyte of each log. Passwords, tokens, your user name and your home folder are
    replaced. mmfw cannot recognize every secret, and an error may quote a meme, so check the zip before you
    share it.

    Examples:
      mmfw doctor
      mmfw doctor --data-dir D:/data --json
      mmfw doctor --compat
      mmfw doctor --report bug.zip
      mmfw doctor --report bug.zip --run mmbt_grid --log

    Raises:
        UsageError: Options cannot be combined.
    """
    if report is None and (run or log):
        raise UsageError("--run and --log require --report", hint="add --report FILE.zip")
    if report is not None and compat:
        raise UsageError("--report and --compat cannot be combined", hint="use one of them")
    if compat:
        _print_patches(as_json)
        return
    mmf_paths = MmfPaths.resolve(data_dir, save_dir)
    if report is not None:
        _write_report(mmf_paths, expand_home(report).absolute(), run, log, as_json)
        return
    result = survey_environment(mmf_paths)
    if as_json:
        print_json(_survey_to_json(result))
    else:
        print("\n\n".join([*map(escape_controls, _survey_sections(result)), *_missing_lines(result)]), flush=True)
    if result["mmf"].problems and result["mmf"].error is not None:
        raise result["mmf"].error


def _write_report(mmf_paths: MmfPaths, path: Path, run_spec: str | None, log: bool, as_json: bool) -> None:
    require_new_file(path)  # before the survey, which is slow
    newest = next(iter(list_runs(mmf_paths.save_dir)), None)
    run = newest if run_spec is None else find_run(mmf_paths.save_dir, run_spec)
    names = bug_report.write_bug_report(run, _survey_to_json(survey_environment(mmf_paths)), path, include_logs=log)
    if as_json:
        print_json({"report": path, "run": run and run.id, "files": names})
        return
    print_status("doctor.json: versions, folders, the machine")
    print_status(f"run/: {len(names) - 1} files of run {run.id}" if run else "no run included: there are no runs yet")
    print_status("Passwords, tokens and your home folder are replaced; check the files before you share them.")
    print_result(path)


def _survey_to_json(survey_data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a survey as JSON values, with its errors as messages and hints."""
    mmf, torch = survey_data["mmf"], survey_data["torch"]
    mmf_values = {"installed": mmf.installed and asdict(mmf.installed), "problems": mmf.problems}
    mmf_values |= {"message": mmf.error and str(mmf.error), "hint": mmf.error and mmf.error.hint}
    missing = [{"what": str(error), "hint": error.hint} for error in survey_data["missing"]]
    return {**survey_data, "mmf": mmf_values, "torch": torch and asdict(torch), "missing": missing}


def _survey_sections(survey_data: Mapping[str, Any]) -> Iterator[str]:
    yield format_table(("package", "version"), list(survey_data["versions"].items()))
    yield "\n".join(_mmf_lines(survey_data["mmf"]))
    folders = []
    for folder in survey_data["folders"]:
        free = None if folder["free"] is None else format_size(folder["free"])
        exists = "yes" if folder["exists"] else "not yet"
        folders.append((folder["name"], folder["path"], folder["named_by"], exists, free))
    yield format_table(("folder", "path", "set by", "exists", "free"), folders)
    dataset = survey_data["dataset"]
    splits = ", ".join(dataset["splits"]) or "no splits"
    features = "with" if dataset["features"] else "without"
    yield f"Dataset: {splits}; {dataset['images']} images; {features} region features"
    yield "\n".join([*_machine_lines(survey_data), f"Decryption: {survey_data['decryption']}"])
    if survey_data["fits"]:
        known_micro_batches = [(rows, kind) for kind, rows in survey_data["fits"].items()]
        yield format_table(("known micro-batch", "for"), known_micro_batches)


def _missing_lines(survey_data: Mapping[str, Any]) -> Iterator[str]:
    if not survey_data["missing"]:
        yield colour_text("All checks passed.", 32)
    for error in survey_data["missing"]:
        message, fix = map(escape_controls, (error, error.hint))
        yield f"{colour_text('missing:', 33)} {message}\n{colour_text('fix:', 36)}     {fix}"


def _mmf_lines(mmf: MmfState) -> Iterator[str]:
    if mmf.installed is None:
        yield f"MMF: {mmf.error}"
        return
    origin: str = mmf.installed.source
    if mmf.installed.commit:
        origin += f", commit {mmf.installed.commit[:12]}"
    state = "not verified" if mmf.problems is None else "intact"
    yield f"MMF {mmf.installed.version} ({origin}): {mmf.error or state}"
    yield from (f"  {problem}" for problem in summarize_lines(mmf.problems or ()))


def _machine_lines(survey_data: Mapping[str, Any]) -> Iterator[str]:
    machine, cuda = survey_data["machine"], survey_data["cuda"]
    memory = f", {format_size(machine['memory'])} of memory" if machine["memory"] else ""
    yield f"Machine: {machine['cpus']} processors{memory}"
    newest = ", CUDA {}.{}".format(*cuda["newest"]) if cuda else ""
    for gpu in machine["gpus"]:
        yield f"GPU: {gpu['name']}, {format_size(gpu['memory'])}, driver {gpu['driver']}{newest}"
    if not machine["gpus"]:
        yield "GPU: none found by NVIDIA's driver"
    if survey_data["torch"] is not None:
        yield f"torch: built for {survey_data['torch'].target}"
    for setting in survey_data["settings"]:
        yield f"{setting['name']}: {setting['value']}" + (f" ({setting['hint']})" if setting["hint"] else "")


def _print_patches(as_json: bool) -> None:
    installed = find_mmf()
    completed = subprocess.run(  # in a child process, because this one must not import those libraries
        module_command("mmf_win.compat", str(installed.root), installed.version),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if completed.returncode:
        reason = (completed.stderr.strip().splitlines() or ["no output"])[-1]
        raise MmfEnvironmentError(f"cannot list the patches: {reason}", hint="run `mmfw doctor` to see what is missing")
    patches: list[dict[str, Any]] = json.loads(completed.stdout)
    if as_json:
        print_json(patches)
        return
    states = {True: "active", False: "not needed"}
    rows = [(patch["name"], states[patch["active"]], patch["library"], patch["problem"]) for patch in patches]
    print(format_table(("patch", "state", "for", "problem it fixes"), rows), flush=True)

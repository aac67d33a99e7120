"""``mmfw doctor``: versions, paths, the machine, and how to get what is missing."""

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
from mmf_win.doctor.survey import MmfState, survey
from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.paths import MmfPaths, expand_home, module_command, require_new_file
from mmf_win.runs.lookup import find_run, list_runs
from mmf_win.upstream.install import find_mmf


@click.command(cls=Command)
@options.folders_and_json
@click.option("--compat", is_flag=True, help="List only the patches to MMF for today's libraries.")
@click.option("--report", type=Path, metavar="FILE.zip", help="Write a bug report to this new file instead.")
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=options.make_completer("RUN"),
    help="The run of the report.  [default: newest]",
)
@click.option("--log", is_flag=True, help="Report the run's logs, too, which may hold texts of memes.")
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

    Exits with 6 if the installed MMF is broken, or if --compat finds none; otherwise with 0, since what is
    missing may not be needed.

    A report holds what this command shows and the run's requests, configurations, events and exits, with
    --log also its logs, of each the last megabyte. Passwords, tokens, your user name and your home folder are
    replaced. mmfw cannot know every secret, and an error may quote a meme, so look through the zip before you
    give it away.

    Examples:
      mmfw doctor
      mmfw doctor --data-dir D:/data --json
      mmfw doctor --compat
      mmfw doctor --report bug.zip
      mmfw doctor --report bug.zip --run mmbt_grid --log
    """
    if report is None and (run or log):
        raise UsageError(
            "--run and --log belong to --report", hint="add --report FILE.zip, or leave them out"
        )
    if report is not None and compat:
        raise UsageError("--report and --compat cannot be combined", hint="leave one of the two out")
    if compat:
        _print_patches(as_json)
        return
    places = MmfPaths.resolve(data_dir, save_dir)
    if report is not None:
        _write_report(places, expand_home(report).absolute(), run, log, as_json)
        return
    found = survey(places)
    if as_json:
        print_json(_survey_to_json(found))
    else:
        print(
            "\n\n".join([*map(escape_controls, _survey_sections(found)), *_missing_lines(found)]), flush=True
        )
    if found["mmf"].problems and found["mmf"].error is not None:
        raise found["mmf"].error


def _write_report(places: MmfPaths, path: Path, run_spec: str | None, log: bool, as_json: bool) -> None:
    require_new_file(path)  # before the survey, which takes a while
    newest = next(iter(list_runs(places.save_dir)), None)
    run = newest if run_spec is None else find_run(places.save_dir, run_spec)
    names = bug_report.write(run, _survey_to_json(survey(places)), path, include_logs=log)
    if as_json:
        print_json({"report": path, "run": run and run.id, "files": names})
        return
    print_status("doctor.json: versions, folders, the machine")
    print_status(f"run/: {len(names) - 1} files of run {run.id}" if run else "no run: there is none yet")
    print_status("Passwords, tokens and your home folder are replaced; look through it all the same.")
    print_result(path)


def _survey_to_json(survey_data: Mapping[str, Any]) -> dict[str, Any]:
    """A survey with its errors as messages and hints."""
    mmf, torch = survey_data["mmf"], survey_data["torch"]
    told = {"installed": mmf.installed and asdict(mmf.installed), "problems": mmf.problems}
    told |= {"message": mmf.error and str(mmf.error), "hint": mmf.error and mmf.error.hint}
    missing = [{"what": str(error), "hint": error.hint} for error in survey_data["missing"]]
    return {**survey_data, "mmf": told, "torch": torch and asdict(torch), "missing": missing}


def _survey_sections(survey_data: Mapping[str, Any]) -> Iterator[str]:
    yield format_table(("package", "version"), list(survey_data["versions"].items()))
    yield "\n".join(_mmf_lines(survey_data["mmf"]))
    folders = []
    for folder in survey_data["folders"]:
        free = None if folder["free"] is None else format_size(folder["free"])
        exists = "yes" if folder["exists"] else "not yet"
        folders.append((folder["name"], folder["path"], folder["named_by"], exists, free))
    yield format_table(("folder", "path", "named by", "exists", "free"), folders)
    dataset = survey_data["dataset"]
    splits = ", ".join(dataset["splits"]) or "no splits"
    features = "with" if dataset["features"] else "without"
    yield f"Dataset: {splits}; {dataset['images']} images; {features} region features"
    yield "\n".join([*_machine_lines(survey_data), f"Decryption: {survey_data['decryption']}"])
    if survey_data["fits"]:
        fits = [(rows, kind) for kind, rows in survey_data["fits"].items()]
        yield format_table(("micro-batch", "that fitted, for"), fits)


def _missing_lines(survey_data: Mapping[str, Any]) -> Iterator[str]:
    if not survey_data["missing"]:
        yield colour_text("Everything is in place.", 32)
    for error in survey_data["missing"]:
        what, fix = map(escape_controls, (error, error.hint))
        yield f"{colour_text('missing:', 33)} {what}\n{colour_text('fix:', 36)}     {fix}"


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
        yield "GPU: none that NVIDIA's driver knows"
    if survey_data["torch"] is not None:
        yield f"torch: built for {survey_data['torch'].target}"
    for setting in survey_data["settings"]:
        yield f"{setting['name']}: {setting['value']}" + (f" ({setting['hint']})" if setting["hint"] else "")


def _print_patches(as_json: bool) -> None:
    installed = find_mmf()
    done = subprocess.run(  # in a child, which may import what the parent must not
        module_command("mmf_win.compat", str(installed.root), installed.version),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MmfEnvironmentError(
            f"the patches cannot be listed: {last}", hint="`mmfw doctor` shows what is missing"
        )
    patches: list[dict[str, Any]] = json.loads(done.stdout)
    if as_json:
        print_json(patches)
        return
    state = {True: "active", False: "not needed"}
    rows = [(patch["name"], state[patch["active"]], patch["library"], patch["problem"]) for patch in patches]
    print(format_table(("patch", "state", "for", "what goes wrong without it"), rows), flush=True)

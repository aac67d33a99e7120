"""``mmfw train --profile``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from mmf_win.commands.progress import RunDisplay
from mmf_win.console import format_table, print_json, print_result
from mmf_win.errors import UsageError
from mmf_win.paths import MmfPaths, expand_home
from mmf_win.runs import lookup, presets
from mmf_win.runs.plan import RunJob
from mmf_win.runs.profiling import make_job_from_run, run_profile
from mmf_win.runs.request import CommandOptions

_REFUSED_OPTIONS = {"name", "keep", "trackers", "models", "pages", "nproc", "nnodes", "node_rank", "rdzv", "dry_run"}


def require_profilable(context: click.Context) -> None:
    """Reject options that have no effect with ``--profile``.

    Raises:
        UsageError: Such an option is on the command line.
    """
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.name in _REFUSED_OPTIONS:
            message = f"{option.opts[0]} cannot be combined with --profile, which saves no run"
            raise UsageError(message, hint="use one of them")


def find_profile_job(
    resume: str, preset: str | None, options: CommandOptions, data_dir: Path | None, save_dir: Path | None
) -> RunJob:
    """Return the job that trains the run given by ``--resume`` from its beginning.

    Raises:
        UsageError: There is no such run, or ``resume`` is a checkpoint.
    """
    if expand_home(resume).is_file():
        hint = "pass its run, or its preset with --init PATH"
        raise UsageError(f"{resume}: --profile starts at update 0, not at a checkpoint", hint=hint)
    run_spec = None if resume in ("best", "last") else resume
    preset_name = None if preset is None else presets.load_preset(preset).name
    mmf_paths = MmfPaths.resolve(data_dir, save_dir)
    run = lookup.find_first_usable_run(mmf_paths.save_dir, run_spec, lambda run: run, preset_name)
    return make_job_from_run(run, options, data_dir, save_dir)


def profile_training(job: RunJob, updates: int, *, as_json: bool) -> None:
    """Train some updates and print where the time goes."""
    job = replace(job, options=replace(job.options, nproc=None))  # MMFW_NPROC may have set it
    profile, trace = run_profile(job, updates, display=RunDisplay)
    seconds, shares = profile.seconds_by_phase(), profile.shares_by_phase()
    if as_json:
        values = {"shares": shares, "largest_cost": profile.largest_cost(), "trace": trace}
        print_json({**values, **vars(profile), "waiting": vars(profile.waiting)})
        return
    rows = [(phase, f"{1000 * seconds[phase]:.1f}", f"{100 * share:.0f}") for phase, share in shares.items()]
    print(format_table(("phase", "ms per update", "%"), rows))
    for line in (profile.largest_cost(), f"\n{profile.table}", trace):
        print_result(line)

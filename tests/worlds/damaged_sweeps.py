"""Commands that read sweeps, run on a sweep of two tasks in which one file is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from mmf_win.sweeps.folder import SweepFolder
from mmf_win.sweeps.planning import plan_tasks
from tests.worlds.damaged_runs import damage_file, run_command
from tests.worlds.memes import read_tree
from tests.worlds.small_sweeps import make_specification, write_ended_task, write_finished_run

_SPECIFICATION = "template: {train: 'mmfw train demo --seed {seed}'}\n---\nseed: [1, 2]\n"
# Inserted into files: a name in a file must not lead to a file outside the sweep.
_OUTSIDE_PATHS = (b"../../../victim", b"/victim", b"..", b"C:\\victim", b"%")


class DamagedSweeps:
    """Sweep of two runs, and a user file outside it, of which copies are damaged repeatedly."""

    def __init__(self, folder: Path) -> None:
        self._intact, self._copy = folder / "intact", folder / "copy"
        sweep = SweepFolder(self._intact / "save/sweeps/s")
        sweep.path.mkdir(parents=True)
        sweep.specification.write_text(_SPECIFICATION, encoding="utf-8")
        for task in plan_tasks(make_specification(_SPECIFICATION)).tasks:
            write_finished_run(sweep.task_folder(write_ended_task(sweep, task).name), 0.7)
        (self._intact / "victim").mkdir()
        (self._intact / "victim/mine.txt").write_text("mine", encoding="utf-8")
        files = sorted(path for path in sweep.path.rglob("*") if path.is_file())
        self._names = [path.relative_to(self._intact) for path in files]

    def find_failures(self, random: Random) -> list[str]:
        """Damage a random file of the sweep and return the failures of all commands.

        A failure is neither success nor one clear error, or it has changed a file outside the sweep.
        """
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._intact, self._copy)
        name = random.choice(self._names)
        file = self._copy / name
        damage = damage_file(file, random)
        if file.is_file() and random.random() < 0.3:
            content = file.read_bytes()
            offset = random.randrange(len(content) + 1)
            file.write_bytes(content[:offset] + random.choice(_OUTSIDE_PATHS) + content[offset:])
            damage += " and another path"
        sweep = str(self._copy / "save/sweeps/s")
        failures = []
        for arguments in (
            ["sweep", "status", sweep],
            ["sweep", "status", sweep, "--json"],
            ["sweep", "table", sweep],
            ["sweep", "table", sweep, "--format", "csv"],
            ["sweep", "run", sweep, "--dry-run"],
            ["runs"],
            ["runs", "--sweep", "s"],
            ["verify", "runs"],
            ["predict", "--best-of", "s", "--no-report", "--data-dir", str(self._copy / "nothing")],
            ["sweep", "rm", "s", "--yes"],
        ):
            save_options = [] if arguments[:2] == ["sweep", "run"] else ["--save-dir", str(self._copy / "save")]
            code, _, errors = run_command([*arguments, *save_options])
            if code not in (0, 2, 3) or errors.count("error:") != (code != 0):
                failures.append(f"{name}: {damage}: {' '.join(arguments)}: {code}\n{errors[-1500:]}")
        if read_tree(self._copy / "victim") != {"mine.txt": b"mine"}:
            failures.append(f"{name}: {damage}: a file outside the sweep has changed")
        return failures

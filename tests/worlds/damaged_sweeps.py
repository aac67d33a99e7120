"""Every command that reads sweeps, on one of two tasks of which one has a damaged file."""

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
# What names in its files may lead to.
_OUTSIDE_PATHS = (b"../../../victim", b"/victim", b"..", b"C:\\victim", b"%")


class DamagedSweeps:
    """A sweep of two trainings, and a file of the user's beside it, to be damaged again and again."""

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
        """Damage a file at random; what then was neither well nor one clear error, or changed others."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._intact, self._copy)
        name = random.choice(self._names)
        file = self._copy / name
        told = damage_file(file, random)
        if file.is_file() and random.random() < 0.3:
            content = file.read_bytes()
            place = random.randrange(len(content) + 1)
            file.write_bytes(content[:place] + random.choice(_OUTSIDE_PATHS) + content[place:])
            told += " and another path"
        sweep = str(self._copy / "save/sweeps/s")
        wrong = []
        for words in (
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
            save = [] if words[:2] == ["sweep", "run"] else ["--save-dir", str(self._copy / "save")]
            code, _, errors = run_command([*words, *save])
            if code not in (0, 2, 3) or errors.count("error:") != (code != 0):
                wrong.append(f"{name}: {told}: {' '.join(words)}: {code}\n{errors[-1500:]}")
        if read_tree(self._copy / "victim") != {"mine.txt": b"mine"}:
            wrong.append(f"{name}: {told}: a file outside the sweep is gone")
        return wrong

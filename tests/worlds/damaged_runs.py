"""Every command that reads runs, on two runs of which one has a damaged file."""

from __future__ import annotations

import csv
import io
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from mmf_win.cli import main
from mmf_win.files import write_json
from mmf_win.runs.folder import Run
from tests.worlds import corruption, report_world
from tests.worlds.torch_files import checkpoint

_REPORTED = ("metrics.json", "events.jsonl", "request.json", ".csv", "exit.json")


class DamagedRuns:
    """Two runs that have one of everything, to be damaged again and again.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self._intact, self._copy, self._nothing = folder / "intact", folder / "copy", folder / "nothing"
        self._first, self._second = _make(self._intact)
        files = (path for path in self._first.path.rglob("*") if path.is_file())
        self._names = sorted(path.relative_to(self._intact) for path in files)

    def wrong(self, random: Random, *, reports: bool) -> list[str]:
        """Damage a file at random; what then was neither well nor one clear error.

        Args:
            random: of the damage.
            reports: whether to make pages too, which takes seconds and the extra `report`.
        """
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._intact, self._copy)
        file = random.choice(self._names)
        damage = corruption.damage(self._copy / file, random)
        first, second = self._first.id, self._second.id
        data = ["--data-dir", str(self._nothing)]
        listing = ["runs", "--format", "csv"]
        commands = [
            listing,
            ["runs"],
            ["runs", "--json"],
            ["runs", "show", first],
            ["runs", "show", first, "--json"],
            ["runs", "show", "--verify", first],
            ["runs", "compare", first, second],
            ["verify", "runs", *data],
            ["predict", first, "--no-report", *data],
            ["train", "--resume", first, *data],
        ]
        if reports and file.name.endswith(_REPORTED):
            commands += [["report", first, "--no-images"], ["report", first, second]]
        wrong = []
        for words in (*commands, ["runs", "rm", first, "--yes"]):
            code, output, errors = _run([*words, "--save-dir", str(self._copy / "save")])
            is_well = code in (0, 2, 3) and errors.count("error:") == (code != 0)
            if words == listing:
                listed = {line["id"]: line for line in csv.DictReader(io.StringIO(output))}
                is_well &= code == 0 and listed[second]["state"] == "done"
                is_well &= first in listed or (file.name, damage) == ("request.json", "gone")
            if not is_well:
                wrong.append(f"{file.name}: {damage}: {' '.join(words)}: {code}\n{errors[-1500:]}")
        return wrong


def _run(words: list[str]) -> tuple[int, str, str]:
    """A command's exit code, its output and what it says."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(words)
    return code, output.getvalue(), errors.getvalue()


def _make(folder: Path) -> tuple[Run, Run]:
    world = report_world.make(folder, groups=2, drawn=False)
    runs = world.run("a"), world.run("b", config="other.yaml")
    for run in runs:
        record = {
            "auroc": 0.75,
            "accuracy": 0.5,
            "intervals": {"auroc": [0.5, 0.9], "accuracy": [0.3, 0.7]},
            "rows": 8,
            "labelled": 8,
            "hateful": 4,
            "full_rows": 10,
            "threshold": 0.5,
            "threshold_from": "default",
            "split": report_world.SPLIT,
            "annotations": str(world.dataset.split(report_world.SPLIT)),
            "ensemble": None,
            "members": [{"run": run.id, "checkpoint": "best.ckpt", "checkpoint_sha256": "00"}],
            "versions": {"mmfw": "1", "torch": "2"},
            "created": 1e9,
        }
        write_json(world.predict(run).with_suffix(".metrics.json"), record)
        checkpoint(run.checkpoints / "best.ckpt", 10)
        checkpoint(run.checkpoints / "current.ckpt", 20)
        (run.checkpoints / "config.yaml").write_text("training:\n  seed: 1\n", encoding="utf-8")
        write_json(run.new_attempt().request, {"action": "train"})
        run.lock.touch()
        run.log.touch()
    return runs

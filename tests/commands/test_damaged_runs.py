"""Every command that reads runs, on a run with a damaged file: one clear error, and no harm to others.

``MMFW_TEST_ROUNDS`` says how often, beginning with the seed ``MMFW_TEST_SEED``.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from random import Random

import pytest

from mmf_win.cli import main
from mmf_win.files import write_json
from mmf_win.runs.folder import Run
from tests.worlds import corruption, report_world
from tests.worlds.torch_files import checkpoint

ROUNDS = int(os.environ.get("MMFW_TEST_ROUNDS", "120"))
SEED = int(os.environ.get("MMFW_TEST_SEED", "0"))
REPORTED = ("metrics.json", "events.jsonl", "request.json", ".csv", "exit.json")


def make(folder: Path) -> tuple[Run, Run]:
    """Two runs that have one of everything."""
    world = report_world.make(folder, groups=2)
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


@pytest.mark.parametrize("part", range(4))
def test_a_damaged_file_of_a_run_is_one_clear_error(
    user_dir: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    intact, copy = user_dir / "intact", user_dir / "copy"
    first, second = make(intact)
    names = sorted(path.relative_to(intact) for path in first.path.rglob("*") if path.is_file())
    data = ["--data-dir", str(user_dir / "nothing")]
    wrong: list[str] = []
    for seed in range(SEED + part, SEED + ROUNDS, 4):
        random = Random(seed)
        corruption.restore(intact, copy)
        file = random.choice(names)
        damage = corruption.damage(copy / file, random)
        commands = [
            ["runs", "--csv"],
            ["runs"],
            ["runs", "--json"],
            ["runs", "show", first.id],
            ["runs", "show", first.id, "--json"],
            ["runs", "checkpoints", first.id],
            ["runs", "compare", first.id, second.id],
            ["verify", "runs", *data],
            ["predict", first.id, "--no-report", *data],
            ["train", "--resume", first.id, *data],
        ]
        if file.name.endswith(REPORTED) and seed % 3 == part % 3:
            commands += [["report", first.id, "--no-images"], ["report", first.id, second.id]]
        for words in (*commands, ["runs", "rm", first.id, "--yes"]):
            code = main([*words, "--save-dir", str(copy / "save")])
            output, errors = capsys.readouterr()
            listed = (
                {line["id"]: line for line in csv.DictReader(io.StringIO(output))} if "--csv" in words else {}
            )
            is_well = code in (0, 2, 3) and errors.count("error:") == (code != 0)
            if words == commands[0]:
                is_well &= code == 0 and listed[second.id]["state"] == "done"
                is_well &= first.id in listed or (file.name, damage) == ("request.json", "gone")
            if not is_well:
                wrong.append(
                    f"seed {seed}, {file.name}: {damage}: {' '.join(words)}: {code}\n{errors[-1500:]}"
                )
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:20])

"""``mmfw runs show --verify``; the files are laid out as torch lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmf_win.console import size
from mmf_win.files import share
from mmf_win.protocol import EventLog
from mmf_win.runs.folder import Run
from tests.commands.test_runs import make
from tests.worlds.tools import Mmfw
from tests.worlds.torch_files import checkpoint, laid_out_as_by_torch


@pytest.fixture
def run(user_dir: Path) -> Run:
    """A run that was best at update 4 and came to update 6, whose last checkpoint has two names."""
    run = make(user_dir, "a/2026-01-01T00-00-00")
    log = EventLog(run.events, "1")
    for update, auroc in ((4, 0.8), (6, 0.6)):
        log.write("val", update=update, metrics={"hateful_memes/roc_auc": auroc})
    log.write("val", update=6, metrics={"hateful_memes/roc_auc": 0.8}, final=True)
    checkpoint(run.checkpoints / "best.ckpt", 4)
    share(
        checkpoint(run.checkpoints / "models" / "model_6.ckpt", 6, epoch=2), run.checkpoints / "current.ckpt"
    )
    laid_out_as_by_torch(run.checkpoints / "mmbt_final.pth", {"weight": None})
    return run


def told(mmfw: Mmfw, run: Run, name: str) -> tuple[str, str]:
    mmfw("runs", "show", name, "--verify", "--save-dir", run.path.parents[1])
    return mmfw.out, mmfw.err


def listed(mmfw: Mmfw, run: Run) -> dict[str, Any]:
    found = mmfw.json("runs", "show", run.path.parent.name, "--verify", "--save-dir", run.path.parents[1])
    return {entry["name"]: entry for entry in found["checkpoints"]}


def test_each_checkpoint_is_told_with_what_is_in_it(mmfw: Mmfw, run: Run) -> None:
    found = listed(mmfw, run)
    assert list(found) == ["best.ckpt", "current.ckpt", "models/model_6.ckpt", "mmbt_final.pth"]
    figures = {name: [c["update"], c["epoch"], c["auroc"]] for name, c in found.items()}
    assert figures["best.ckpt"] == [4, 1, 0.8]
    assert figures["current.ckpt"] == figures["models/model_6.ckpt"] == [6, 2, 0.6]
    assert figures["mmbt_final.pth"] == [None, None, None], "it holds weights alone"
    assert all(found[name]["problem"] is None for name in figures)
    assert found["best.ckpt"]["written"] == (run.checkpoints / "best.ckpt").stat().st_mtime
    table, note = told(mmfw, run, "a")
    *_, header, best, _, _, _ = table.splitlines()
    assert header.split()[:5] == ["checkpoint", "update", "epoch", "AUROC", "size"]
    assert best.split()[:4] == ["best.ckpt", "4", "1", "0.8000"] and best.endswith("intact")
    assert "on disk" in note and "what is intact" not in note


def test_bytes_with_two_names_are_counted_once(mmfw: Mmfw, run: Run) -> None:
    found = listed(mmfw, run)
    assert found["current.ckpt"]["same_as"] == ["models/model_6.ckpt"]
    assert found["best.ckpt"]["same_as"] == []
    names = ("best.ckpt", "current.ckpt", "mmbt_final.pth")
    total = sum((run.checkpoints / name).stat().st_size for name in names)
    assert f"{size(total)} on disk" in told(mmfw, run, "a")[1]


def test_a_damaged_one_is_shown_with_the_reason(mmfw: Mmfw, run: Run) -> None:
    best = run.checkpoints / "best.ckpt"
    content = bytearray(best.read_bytes())
    content[len(content) // 2] ^= 1
    best.write_bytes(content)
    found = listed(mmfw, run)
    assert found["best.ckpt"]["problem"] == "it is damaged at model/data/0"
    assert found["current.ckpt"]["problem"] is None
    table, note = told(mmfw, run, "a")
    assert next(line for line in table.splitlines() if line.startswith("best.ckpt")).endswith("damaged")
    assert "best.ckpt: it is damaged at model/data/0" in note
    assert "mmfw predict a/2026-01-01T00-00-00 --save-dir" in note, "it is at its end"
    later = make(run.path.parents[1], "b/2026-01-02T00-00-00")
    (later.checkpoints / "best.ckpt").write_bytes(b"cut off")
    assert "what is intact" not in told(mmfw, later, "b")[1], "nothing is"


def test_a_run_without_checkpoints_is_no_error(mmfw: Mmfw, user_dir: Path) -> None:
    run = make(user_dir, "b/2026-01-02T00-00-00")
    assert "has no checkpoint yet" in told(mmfw, run, "b")[1]
    assert listed(mmfw, run) == {}

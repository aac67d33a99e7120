"""What mmfw does about its followers when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from mmf_win.tracking import follower
from mmf_win.tracking.sending import What
from mmf_win.tracking.tracker import tracker
from tests.worlds.report_world import World

_FOR_EVER = "import threading; threading.Event().wait()"
_UNTIL_THERE = "import sys, pathlib, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)"


def test_a_tracker_that_does_not_answer_takes_no_time_from_another_by_fake_followers(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, file = world.run(), tmp_path / "the first has ended"
    dead, well = tracker("clearml"), tracker("wandb")
    dead.answers = False
    stuck, busy = (
        subprocess.Popen([sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE)
        for code in (_FOR_EVER, _UNTIL_THERE)
    )

    def then() -> None:
        stuck.wait()
        file.touch()

    Thread(target=then).start()
    monkeypatch.setattr(follower, "_AFTER_CTRL_C", 0.0)
    follower._end([(run, dead, stuck), (run, well, busy)], What(), float("inf"))
    assert busy.returncode == 0 and stuck.returncode != 0
    assert caplog.text.count("lacks some") == 1

"""Behaviour of followers when mmfw ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mmf_win.tracking import follower
from mmf_win.tracking.tracker import create_tracker
from mmf_win.tracking.upload import UploadOptions, load_upload_states
from tests.worlds.liveness import HOLD_CONNECTION_CODE, liveness_monitor
from tests.worlds.report_world import ReportWorld

_RUN_UNTIL_KILLED = f"import sys, threading; port = sys.argv[1]\n{HOLD_CONNECTION_CODE}\nthreading.Event().wait()"
_RUN_UNTIL_FILE_EXISTS = "import sys, pathlib, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)"
_HANGING_FOLLOWER = """\
import sys, threading
import msgspec  # imported before the short timeout starts
from pathlib import Path
from mmf_win.runs.folder import Run
from mmf_win.tracking import follower, tracker
from mmf_win.tracking.upload import UploadOptions
follower.UPLOAD_TIMEOUT_S = 0.1
fake = tracker.create_tracker("clearml")
fake.open_run = lambda run_info: threading.Event().wait()
sys.exit(follower.follow_run(Run(Path(sys.argv[1])), fake, UploadOptions()))
"""
# A follower of a run; the recording tracker fails in the methods that follow as arguments.
_RECORDING_FOLLOWER = """\
import json, sys
from pathlib import Path
from mmf_win.runs.folder import Run
from mmf_win.tracking import follower
from mmf_win.tracking.upload import UploadOptions
from tests.worlds.recording_tracker import BufferingTracker
tracker = BufferingTracker()
tracker.failing_methods = {*sys.argv[2:]}
code = follower.follow_run(Run(Path(sys.argv[1])), tracker, UploadOptions())
print(json.dumps([tracker.steps("train/loss"), tracker.states]))
sys.exit(code)
"""


def test_unreachable_tracker_does_not_delay_another_with_fake_followers(
    world: ReportWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, file = world.add_run(), tmp_path / "the first has ended"
    dead, healthy = create_tracker("clearml"), create_tracker("wandb")
    dead.is_reachable = False
    monkeypatch.setattr(follower, "CTRL_C_TIMEOUT_S", 0.0)
    with liveness_monitor() as first_monitor:
        scripts = {
            dead.name: (_RUN_UNTIL_KILLED, first_monitor.port),
            healthy.name: (_RUN_UNTIL_FILE_EXISTS, str(file)),
        }
        monkeypatch.setattr(
            follower, "module_command", lambda _module, name, *_: [sys.executable, "-c", *scripts[name]]
        )

        def wait_and_create_file() -> None:
            assert first_monitor.wait_until_all_exited()
            file.touch()

        thread = Thread(target=wait_and_create_file)
        with follower.manage_followers([dead, healthy], UploadOptions(), lambda _run: None) as follow:
            follow(run)
            first_monitor.wait_for_processes()
            thread.start()
        thread.join()
    assert file.exists(), "the second follower must not be killed before its end"
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert dead.name in warning and run.id in warning


def test_follower_of_a_hanging_fake_tracker_ends_and_logs_the_location(world: ReportWorld) -> None:
    command = [sys.executable, "-c", _HANGING_FOLLOWER, str(world.add_run().path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        log = process.stderr.read().decode()  # the input stays open, like while mmfw is running
    assert process.returncode and "in wait" in log and "in upload_new" in log


def test_failed_upload_is_recorded_and_completed_by_the_next_follower(world: ReportWorld) -> None:
    run = world.add_run()
    run.tracking.mkdir()

    def follow(*failing_methods: str) -> tuple[int, list[Any]]:
        command, root = (
            [sys.executable, "-c", _RECORDING_FOLLOWER, str(run.path), *failing_methods],
            Path(__file__).parents[2],
        )
        process = subprocess.run(command, input=b".", stdout=subprocess.PIPE, cwd=root, timeout=300)
        return process.returncode, json.loads(process.stdout)

    code, (steps, _) = follow("close")
    assert code and steps, "closing must fail after all data was passed to the tracker"
    [sent] = load_upload_states(run)
    assert sent.error and not sent.events, "data that may not have arrived must not be recorded"
    assert follow() == (0, [list(range(10, 121, 10)), ["running", "done"]])
    [sent] = load_upload_states(run)
    assert sent.error is None and sent.state == "done"

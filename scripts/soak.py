"""Interrupt a training again and again, and see whether anything is lost; needs Linux and MMF.

python scripts/soak.py                                     50 interruptions, a table on standard output
python scripts/soak.py --interruptions 5 --updates 200     a short one
python scripts/soak.py --seed 7                            other moments

The demo's tiny model trains, with dropout. It is interrupted at random moments in random ways, and goes on
with `mmfw train --resume last` each time. In the end its losses are compared with those of a run that nobody
interrupted, and with what an MLflow server has of them, to which all is sent meanwhile. Which MMF is used is
for `mmfw setup` and MMFW_HOME to say.

The exit code is 1 when something was lost: an update, a checkpoint, an equal loss, a point in MLflow, or
control over a process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from _bench import MMFW, make_parser, print_table
from _demo_set import make_demo_dataset
from _mlflow_server import run_mlflow_server

from mmf_win.console import print_status
from mmf_win.demo.folder import DemoFolder
from mmf_win.protocol import Event, read_events
from mmf_win.runs import history, lookup
from mmf_win.runs.checkpoints import list_checkpoints
from mmf_win.runs.folder import Run
from mmf_win.signals import FORCE_STOP_AFTER_SECONDS
from mmf_win.upstream.install import require_mmf

_TIMEOUT_SECONDS = 600.0
_CHECKPOINT_INTERVAL = 10
_TRAIN_ARGUMENTS = (
    "training.log_interval=1",
    f"training.checkpoint_interval={_CHECKPOINT_INTERVAL}",
    "training.evaluation_interval=50",
    "model_config.vilbert.hidden_dropout_prob=0.1",
    "--seed=1",
)
_MOMENTS = ("while starting", "while training", "while saving")


class TrainCommand:
    """``mmfw train`` as somebody typed it, whose processes can be told from all others.

    Args:
        words: after ``train``.
        folder: the demo's.
        number: of this attempt.
    """

    def __init__(self, arguments: Sequence[str], folder: DemoFolder, number: int) -> None:
        places = ("--data-dir", str(folder.data_dir), "--save-dir", str(folder.save_dir))
        mark = f"{os.getpid()}-{number}"
        self._mark = f"MMFW_SOAK={mark}".encode()
        self._output = folder.path / f"attempt-{number}.txt"
        self.start_time = time.time()
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*MMFW, "train", *arguments, *places],
                env={**os.environ, "MMFW_SOAK": mark, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl+C that shall end the soak is not one of the soak
            )

    @property
    def has_ended(self) -> bool:
        """Whether the prompt is back."""
        return self.process.poll() is not None

    @property
    def output(self) -> str:
        """What the user read."""
        return self._output.read_text(encoding="utf-8")

    def list_processes(self) -> list[int]:
        """All processes of this attempt, whoever their parents are."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has ended, or is somebody else's
                continue
        return found

    def kill_processes(self) -> None:
        """End what is left of it."""
        for pid in self.list_processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def _ctrl_c_twice(attempt: TrainCommand, worker: int) -> None:
    """Press the second one when the first has been answered, and not so early that it counts as the same."""
    attempt.process.send_signal(signal.SIGINT)
    _wait_until(lambda: attempt.has_ended or "Ctrl+C again" in attempt.output)
    time.sleep(FORCE_STOP_AFTER_SECONDS)
    attempt.process.send_signal(signal.SIGINT)


def _signal_all(attempt: TrainCommand, worker: int) -> None:
    """Signal every process, as schedulers and containers do."""
    for pid in attempt.list_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _hang_up_twice(attempt: TrainCommand, worker: int) -> None:
    """Do what a closed terminal of an interactive shell does."""
    attempt.process.send_signal(signal.SIGHUP)
    attempt.process.send_signal(signal.SIGHUP)


INTERRUPTIONS: dict[str, Callable[[TrainCommand, int], None]] = {
    "Ctrl+C": lambda attempt, worker: attempt.process.send_signal(signal.SIGINT),
    "Ctrl+C twice": _ctrl_c_twice,
    "SIGTERM": lambda attempt, worker: attempt.process.terminate(),
    "SIGTERM to all processes": _signal_all,
    "SIGHUP twice": _hang_up_twice,
    "kill -9 of mmfw": lambda attempt, worker: attempt.process.kill(),
    "kill -9 of its worker": lambda attempt, worker: os.kill(worker, signal.SIGKILL),
}
"""Each gets the attempt and the id of its worker."""
_GRACEFUL_KINDS = {"Ctrl+C", "SIGTERM", "SIGTERM to all processes", "SIGHUP twice"}


@dataclass
class InterruptionStats:
    """About one kind of interruption.

    Attributes:
        moments: what was going on, and how often.
        again: updates that had to be made again, each time.
        prompt: seconds from the last signal to the prompt, each time.
    """

    moments: Counter[str] = field(default_factory=Counter)
    repeated_updates: list[int] = field(default_factory=list)
    stop_seconds: list[float] = field(default_factory=list)


class Soak:
    """One training and its interruptions.

    Args:
        folder: the demo's.
        updates: of the training.
        random: decides when and how.

    Attributes:
        told: about each kind of interruption.
        faults: what was lost.
    """

    def __init__(self, folder: DemoFolder, updates: int, random: Random) -> None:
        self._folder, self._updates, self._random = folder, updates, random
        self._attempts = 0
        self.stats: defaultdict[str, InterruptionStats] = defaultdict(InterruptionStats)
        self.faults: list[str] = []

    def run(self, interruptions: int) -> None:
        """Train with so many interruptions, and without any, and compare."""
        words = ["demo", "--updates", str(self._updates), *_TRAIN_ARGUMENTS, "--name"]
        self._train_to_end([*words, "whole"])
        resuming = [*words, "soak"]
        for left in range(interruptions, 0, -1):
            self._interrupt(resuming, left)
            resuming = ["--resume", "last"]
        self._train_to_end(resuming)
        self._compare_losses(self._find_run("soak"), self._find_run("whole"))

    def _interrupt(self, arguments: list[str], remaining: int) -> None:
        """Begin an attempt, interrupt it, and look at what is left."""
        reached = max(_logged_updates(self._read_events()), default=0) if "--resume" in arguments else 0
        # Not so late that it ends before the other interruptions; the first not before there is a checkpoint.
        most = (self._updates - reached) // (remaining + 1)
        updates = self._random.randint(0, most) if reached else _CHECKPOINT_INTERVAL + 1
        kind = self._random.choice(list(INTERRUPTIONS))
        attempt = self._start_command([*arguments, f"training.num_workers={self._random.choice((0, 0, 2))}"])
        try:
            self._wait_for_updates(updates, attempt)
            events = self._read_events(attempt)
            pid = next((event["pid"] for event in events if event["kind"] == "run_started"), None)
            if pid is None and kind == "kill -9 of its worker":
                kind = "kill -9 of mmfw"  # there is no worker yet
            INTERRUPTIONS[kind](attempt, pid or 0)
            signalled = time.monotonic()
            _wait_until(lambda: attempt.has_ended)
            self.stats[kind].stop_seconds.append(time.monotonic() - signalled)
            if kind == "kill -9 of mmfw":
                _wait_until(lambda: not attempt.list_processes())
            if attempt.list_processes():
                self.faults.append(f"{kind}: a process survived")
        except TimeoutError:
            log = self._find_run("soak").log.read_text(encoding="utf-8")
            sys.exit(f"{log[-4000:]}\n{attempt.output}\nthen nothing happened for {_TIMEOUT_SECONDS:g} s")
        finally:
            attempt.kill_processes()
        last = events[-1]["kind"] if events else "run_started"
        moment = {"run_started": _MOMENTS[0], "saving": _MOMENTS[2]}.get(last, _MOMENTS[1])
        self.stats[kind].moments[moment] += 1
        self._check_checkpoints(kind, attempt)
        faults = f", {len(self.faults)} faults" if self.faults else ""
        update = max(_logged_updates(self._read_events()))
        print_status(f"{remaining - 1:3} left: {kind} {moment}, at update {update}{faults}")

    def _wait_for_updates(self, updates: int, attempt: TrainCommand) -> None:
        """Wait until it has made so many updates, and a moment longer; with none, for one of its start."""
        if updates:
            _wait_until(
                lambda: len(_logged_updates(self._read_events(attempt))) >= updates or attempt.has_ended
            )
        time.sleep(self._random.uniform(0, 0.3 if updates else 5))
        if attempt.has_ended:
            sys.exit(f"{attempt.output}\nended by itself")

    def _check_checkpoints(self, kind: str, attempt: TrainCommand) -> None:
        """All are intact, the last one that was announced is among them, and a graceful stop has saved."""
        events = self._read_events()
        announced = max(event["update"] for event in events if event["kind"] == "checkpoint")
        checkpoints = list_checkpoints(self._find_run("soak"))
        self.faults += [f"{kind}: {c.name}: {c.problem}" for c in checkpoints if c.problem]
        kept = max((c.update for c in checkpoints if c.update), default=0)
        if kept < announced:
            self.faults.append(f"{kind}: the checkpoint of update {announced} is lost")
        own = max(_logged_updates(self._read_events(attempt)), default=0)
        if own > kept and kind in _GRACEFUL_KINDS:
            self.faults.append(f"{kind}: {own - kept} updates were not saved")
        self.stats[kind].repeated_updates.append(max(0, max(_logged_updates(events)) - kept))

    def _compare_losses(self, run: Run, undisturbed: Run) -> None:
        """Every loss that any attempt told of is that of the undisturbed run, and none is missing."""
        there = {e["update"]: e["loss"] for e in read_events(undisturbed.events) if e["kind"] == "train"}
        losses = [(e["update"], e["loss"]) for e in read_events(run.events) if e["kind"] == "train"]
        missing = set(range(1, self._updates + 1)) - {update for update, _ in losses}
        others = {update for update, loss in losses if loss != there[update]}
        self.faults += [f"update {update} is missing" for update in sorted(missing)]
        self.faults += [f"update {update} has another loss" for update in sorted(others)]
        if history.RunRecord.read(run).summary.updates != self._updates:
            self.faults.append("it did not come to its end")
        self._compare_mlflow(run)

    def _compare_mlflow(self, run: Run) -> None:
        """MLflow has every loss once, with its own time, whatever its branch."""
        from mlflow import MlflowClient

        client = MlflowClient()
        experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
        found = [r for r in client.search_runs([experiment.experiment_id]) if r.info.run_name == run.id]
        if len(found) != 1:
            self.faults.append(f"MLflow has it {len(found)} times")
            return
        series = [name for name in found[0].data.metrics if name.startswith("train/loss")]
        points = [p for name in series for p in client.get_metric_history(found[0].info.run_id, name)]
        told = [event for event in read_events(run.events) if event["kind"] == "train"]
        if Counter((p.step, p.timestamp, p.value) for p in points) != Counter(
            (event["update"], round(event["t"] * 1000), event["loss"]) for event in told
        ):
            self.faults.append(f"MLflow has {len(points)} losses of {len(told)}, or other ones")
        if found[0].info.status != "FINISHED":
            self.faults.append(f"in MLflow it is {found[0].info.status}")

    def _train_to_end(self, arguments: Sequence[str]) -> None:
        attempt = self._start_command(arguments)
        try:
            if attempt.process.wait():
                sys.exit(f"{attempt.output}\nfailed")
        finally:
            attempt.kill_processes()

    def _start_command(self, arguments: Sequence[str]) -> TrainCommand:
        self._attempts += 1
        return TrainCommand(arguments, self._folder, self._attempts)

    def _find_run(self, name: str) -> Run:
        return lookup.find_run(self._folder.save_dir, name)

    def _read_events(self, attempt: TrainCommand | None = None) -> list[Event]:
        """Of the interrupted run, or of one attempt of it."""
        files = self._folder.save_dir.glob("soak/*/events.jsonl")
        since = attempt.start_time if attempt else 0
        return [event for file in files for event in read_events(file) if event["t"] >= since]


def _logged_updates(events: list[Event]) -> list[int]:
    return [event["update"] for event in events if event["kind"] == "train"]


def main() -> None:
    """Print a table in Markdown, and what was lost."""
    options = make_parser(__doc__)
    options.add_argument("--interruptions", type=int, default=50)
    options.add_argument("--updates", type=int, default=3000, help="of the run")
    options.add_argument("--seed", type=int, default=1, help="of the moments and ways")
    asked = options.parse_args()
    # A shell lets what it starts in the background ignore it, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="soak-") as root, run_mlflow_server(Path(root)):
        started = time.monotonic()
        soak = Soak(make_demo_dataset(Path(root, "demo")), asked.updates, Random(asked.seed))
        soak.run(asked.interruptions)
        minutes = (time.monotonic() - started) / 60
    rows = []
    for kind, one in soak.stats.items():
        moments = (str(one.moments[moment]) for moment in _MOMENTS)
        rows.append(
            [
                kind,
                str(len(one.stop_seconds)),
                *moments,
                str(max(one.repeated_updates)),
                f"{max(one.stop_seconds):.1f}",
            ]
        )
    print_table("", ["times", *_MOMENTS, "updates made again, at most", "s to the prompt, at most"], rows)
    print(
        f"\nMMF {require_mmf().version}, {asked.interruptions} interruptions, {asked.updates} updates, "
        f"seed {asked.seed}, {minutes:.0f} minutes. Lost: {'; '.join(soak.faults) or 'nothing'}."
    )
    sys.exit(bool(soak.faults))


if __name__ == "__main__":
    main()

"""Interrupt a training repeatedly, and check that nothing is lost; needs Linux and MMF.

python scripts/soak.py                                     50 interruptions, a table on standard output
python scripts/soak.py --interruptions 5 --updates 200     a short test
python scripts/soak.py --seed 7                            other moments

The demo's tiny model trains with dropout. It is interrupted at random moments in random ways, and resumed by
`mmfw train --resume last`. At the end, its losses are compared with those of an uninterrupted run, and with
those that were uploaded to an MLflow server. The MMF to use is set by `mmfw setup` and MMFW_HOME.

The exit code is 1 if something was lost: an update, a checkpoint, an equal loss, a point in MLflow, or
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
from _demo_dataset import make_demo_dataset
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
    """Process of ``mmfw train``, marked to identify all its descendants.

    Args:
        arguments: Arguments of ``mmfw train``.
        folder: The folder of the demo.
        number: Number of this attempt.
    """

    def __init__(self, arguments: Sequence[str], folder: DemoFolder, number: int) -> None:
        folder_options = ("--data-dir", str(folder.data_dir), "--save-dir", str(folder.save_dir))
        mark = f"{os.getpid()}-{number}"
        self._mark = f"MMFW_SOAK={mark}".encode()
        self._output = folder.path / f"attempt-{number}.txt"
        self.start_time = time.time()
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*MMFW, "train", *arguments, *folder_options],
                env={**os.environ, "MMFW_SOAK": mark, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl+C that stops this script must not reach the training
            )

    @property
    def has_ended(self) -> bool:
        """True if the command has exited."""
        return self.process.poll() is not None

    @property
    def output(self) -> str:
        """Output of the command."""
        return self._output.read_text(encoding="utf-8")

    def list_processes(self) -> list[int]:
        """Return the IDs of all processes of this attempt, also of orphaned ones."""
        pids = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
            except OSError:  # it has exited, or belongs to another user
                continue
        return pids

    def kill_processes(self) -> None:
        """Kill the remaining processes."""
        for pid in self.list_processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def _ctrl_c_twice(attempt: TrainCommand, _worker: int) -> None:
    """Press Ctrl+C again after the first one was answered, late enough to count as a second one."""
    attempt.process.send_signal(signal.SIGINT)
    _wait_until(lambda: attempt.has_ended or "Ctrl+C again" in attempt.output)
    time.sleep(FORCE_STOP_AFTER_SECONDS)
    attempt.process.send_signal(signal.SIGINT)


def _signal_all(attempt: TrainCommand, _worker: int) -> None:
    """Send a signal to every process, as schedulers and containers do."""
    for pid in attempt.list_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _hang_up_twice(attempt: TrainCommand, _worker: int) -> None:
    """Send the signals of an interactive shell whose terminal is closed."""
    attempt.process.send_signal(signal.SIGHUP)
    attempt.process.send_signal(signal.SIGHUP)


INTERRUPTIONS: dict[str, Callable[[TrainCommand, int], None]] = {
    "Ctrl+C": lambda attempt, _worker: attempt.process.send_signal(signal.SIGINT),
    "Ctrl+C twice": _ctrl_c_twice,
    "SIGTERM": lambda attempt, _worker: attempt.process.terminate(),
    "SIGTERM to all processes": _signal_all,
    "SIGHUP twice": _hang_up_twice,
    "kill -9 of mmfw": lambda attempt, _worker: attempt.process.kill(),
    "kill -9 of its worker": lambda _attempt, worker: os.kill(worker, signal.SIGKILL),
}
"""Functions with the attempt and the process ID of its worker as arguments."""
_GRACEFUL_KINDS = {"Ctrl+C", "SIGTERM", "SIGTERM to all processes", "SIGHUP twice"}


@dataclass
class InterruptionStats:
    """Statistics of one kind of interruption.

    Attributes:
        moments: Number of interruptions by the state of the training.
        repeated_updates: Number of lost updates, for each interruption.
        stop_seconds: Seconds from the last signal to the exit, for each interruption.
    """

    moments: Counter[str] = field(default_factory=Counter)
    repeated_updates: list[int] = field(default_factory=list)
    stop_seconds: list[float] = field(default_factory=list)


class Soak:
    """A training and its interruptions.

    Args:
        folder: The folder of the demo.
        updates: Number of updates of the training.
        random: Chooses moments and kinds.

    Attributes:
        stats: Statistics by kind of interruption.
        faults: The detected losses.
    """

    def __init__(self, folder: DemoFolder, updates: int, random: Random) -> None:
        self._folder, self._updates, self._random = folder, updates, random
        self._attempts = 0
        self.stats: defaultdict[str, InterruptionStats] = defaultdict(InterruptionStats)
        self.faults: list[str] = []

    def run(self, interruptions: int) -> None:
        """Train with interruptions and without, and compare."""
        arguments = ["demo", "--updates", str(self._updates), *_TRAIN_ARGUMENTS, "--name"]
        self._train_to_end([*arguments, "undisturbed"])
        resuming = [*arguments, "soak"]
        for remaining in range(interruptions, 0, -1):
            self._interrupt(resuming, remaining)
            resuming = ["--resume", "last"]
        self._train_to_end(resuming)
        self._compare_losses(self._find_run("soak"), self._find_run("undisturbed"))

    def _interrupt(self, arguments: list[str], remaining: int) -> None:
        """Start an attempt, interrupt it, and check its checkpoints and processes."""
        last_update = max(_logged_updates(self._read_events()), default=0) if "--resume" in arguments else 0
        # Leave updates for the remaining interruptions; the first comes only after a checkpoint.
        max_updates = (self._updates - last_update) // (remaining + 1)
        updates = self._random.randint(0, max_updates) if last_update else _CHECKPOINT_INTERVAL + 1
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
        """Wait for a number of updates and a random time; with 0, for a random time after the start."""
        if updates:
            _wait_until(lambda: len(_logged_updates(self._read_events(attempt))) >= updates or attempt.has_ended)
        time.sleep(self._random.uniform(0, 0.3 if updates else 5))
        if attempt.has_ended:
            sys.exit(f"{attempt.output}\nended by itself")

    def _check_checkpoints(self, kind: str, attempt: TrainCommand) -> None:
        """Check that all checkpoints are intact, the last announced one exists, and graceful stops save."""
        events = self._read_events()
        announced_update = max(event["update"] for event in events if event["kind"] == "checkpoint")
        checkpoints = list_checkpoints(self._find_run("soak"))
        self.faults += [f"{kind}: {c.name}: {c.problem}" for c in checkpoints if c.problem]
        kept_update = max((c.update for c in checkpoints if c.update), default=0)
        if kept_update < announced_update:
            self.faults.append(f"{kind}: the checkpoint of update {announced_update} is lost")
        own_update = max(_logged_updates(self._read_events(attempt)), default=0)
        if own_update > kept_update and kind in _GRACEFUL_KINDS:
            self.faults.append(f"{kind}: {own_update - kept_update} updates were not saved")
        self.stats[kind].repeated_updates.append(max(0, max(_logged_updates(events)) - kept_update))

    def _compare_losses(self, run: Run, undisturbed: Run) -> None:
        """Check that each logged loss equals that of the undisturbed run, and none is missing."""
        expected = {e["update"]: e["loss"] for e in read_events(undisturbed.events) if e["kind"] == "train"}
        losses = [(e["update"], e["loss"]) for e in read_events(run.events) if e["kind"] == "train"]
        missing = set(range(1, self._updates + 1)) - {update for update, _ in losses}
        differing = {update for update, loss in losses if loss != expected[update]}
        self.faults += [f"update {update} is missing" for update in sorted(missing)]
        self.faults += [f"update {update} has another loss" for update in sorted(differing)]
        if history.RunRecord.read(run).summary.updates != self._updates:
            self.faults.append("the training is not complete")
        self._compare_mlflow(run)

    def _compare_mlflow(self, run: Run) -> None:
        """Check that MLflow has every loss once, with its time."""
        from mlflow import MlflowClient

        client = MlflowClient()
        experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
        tracked_runs = [r for r in client.search_runs([experiment.experiment_id]) if r.info.run_name == run.id]
        if len(tracked_runs) != 1:
            self.faults.append(f"MLflow has {len(tracked_runs)} runs of this training")
            return
        series = [name for name in tracked_runs[0].data.metrics if name.startswith("train/loss")]
        points = [p for name in series for p in client.get_metric_history(tracked_runs[0].info.run_id, name)]
        logged = [event for event in read_events(run.events) if event["kind"] == "train"]
        if Counter((p.step, p.timestamp, p.value) for p in points) != Counter(
            (event["update"], round(event["t"] * 1000), event["loss"]) for event in logged
        ):
            self.faults.append(f"MLflow has {len(points)} losses of {len(logged)}, or wrong ones")
        if tracked_runs[0].info.status != "FINISHED":
            self.faults.append(f"the status in MLflow is {tracked_runs[0].info.status}")

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
        """Return the events of the interrupted run, or of one of its attempts."""
        files = self._folder.save_dir.glob("soak/*/events.jsonl")
        start_time = attempt.start_time if attempt else 0
        return [event for file in files for event in read_events(file) if event["t"] >= start_time]


def _logged_updates(events: list[Event]) -> list[int]:
    return [event["update"] for event in events if event["kind"] == "train"]


def main() -> None:
    """Print a table in Markdown, and the detected losses."""
    parser = make_parser(__doc__)
    parser.add_argument("--interruptions", type=int, default=50)
    parser.add_argument("--updates", type=int, default=3000, help="of the run")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and ways")
    options = parser.parse_args()
    # A shell ignores SIGINT for background jobs, and the training would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="soak-") as root, run_mlflow_server(Path(root)):
        start = time.monotonic()
        soak = Soak(make_demo_dataset(Path(root, "demo")), options.updates, Random(options.seed))
        soak.run(options.interruptions)
        minutes = (time.monotonic() - start) / 60
    rows = []
    for kind, stats in soak.stats.items():
        moments = (str(stats.moments[moment]) for moment in _MOMENTS)
        rows.append(
            [
                kind,
                str(len(stats.stop_seconds)),
                *moments,
                str(max(stats.repeated_updates)),
                f"{max(stats.stop_seconds):.1f}",
            ]
        )
    print_table("", ["times", *_MOMENTS, "updates made again, at most", "s to the prompt, at most"], rows)
    print(
        f"\nMMF {require_mmf().version}, {options.interruptions} interruptions, {options.updates} updates, "
        f"seed {options.seed}, {minutes:.0f} minutes. Lost: {'; '.join(soak.faults) or 'nothing'}."
    )
    sys.exit(bool(soak.faults))


if __name__ == "__main__":
    main()

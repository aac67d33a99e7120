"""Complete workflow of a user with the installed wheel, on Linux and Windows; other tests cover the details."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import read_annotations
from mmf_win.demo.folder import PASSWORD
from mmf_win.locking import file_lock
from mmf_win.paths import DatasetPaths, MmfPaths
from mmf_win.protocol import read_events
from mmf_win.runs import presets
from mmf_win.runs.folder import Run
from mmf_win.upstream.install import find_mmf
from tests.worlds import tiny_mmf
from tests.worlds.liveness import liveness_monitor
from tests.worlds.packages import ROOT, Packages, clean_environment, install_wheel_isolated
from tests.worlds.special_names import ALL_CHARACTERS

pytestmark = [
    pytest.mark.wide,  # `scripts/test.py --windows` always runs it
    pytest.mark.timeout(1100),  # Wine is slow
]

UPDATES = presets.load_preset("demo").settings["training"]["max_updates"]
_FAULTS = Path(tiny_mmf.__file__).with_name("faults")

_SECRETS = {"MMFW_PASSWORD": "hunter2-password", "HF_TOKEN": "hf_hunter2hunter2"}
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # the threads of parallel tests slow each other down

# Fails if pytest or this checkout is importable, or if the parent process imports packages that only a child may.
_MMFW = f"""
import sys
import mmf_win
try:
    import pytest
    sys.exit("packages are installed that mmfw does not require")
except ModuleNotFoundError:
    pass
from mmf_win.cli import main
if {str(ROOT)!r} in mmf_win.__file__:
    sys.exit("mmf_win is imported from the checkout")
code = main(sys.argv[1:])
heavy = {{"torch", "lmdb", "mmf", "transformers"}} & set(sys.modules)
sys.exit(f"the parent has imported {{heavy}}" if heavy else code)
"""


@pytest.fixture
def wheel_environ(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the wheel, its requirements and MMF, and return the environment variables that make them usable."""
    folder = tmp_path_factory.mktemp("empty") / ALL_CHARACTERS.replace(os.pathsep, "")
    environ = clean_environment() | _SECRETS | _ONE_THREAD
    install_wheel_isolated(packages.wheel, folder, "train")
    environ["PYTHONPATH"] = str(folder)
    if sys.platform != "win32":
        environ["MMFW_HOME"] = str(folder.with_name("home"))
        setup_command = [folder / "bin" / "mmfw", "setup", "--mmf", find_mmf().root]
        subprocess.run(setup_command, env=environ, cwd=folder, check=True)
    return environ


class Demo:
    """Folder of ``mmfw demo``, with methods that run commands in it.

    Args:
        folder: need not exist.
        environ: environment variables of the commands.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self.paths = MmfPaths.resolve(folder / "data", folder / "save")

    def mmfw(self, *arguments: str) -> Any:
        """Run a command, which must succeed, and return its JSON output."""
        return self.mmfw_with_stderr(*arguments)[0]

    def mmfw_with_stderr(self, *arguments: str) -> tuple[Any, str]:
        """Run a command, which must succeed, and return its JSON output and stderr."""
        with self.start_mmfw(*arguments, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            output, errors = (stream.decode(errors="replace") for stream in process.communicate())
        assert process.returncode == 0, output + errors
        assert not any(secret in output + errors for secret in _SECRETS.values())
        return json.loads(output), errors

    @contextmanager
    def start_mmfw(
        self, *arguments: str, environ: Mapping[str, str] = {}, **streams: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command; kill it at the end."""
        with subprocess.Popen(
            self._command(*arguments),
            cwd=self._folder.parent,
            env=self._environ | environ,
            stdin=subprocess.DEVNULL,
            **streams,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _command(self, name: str, *arguments: str) -> list[str]:
        data = ["--data-dir", str(self.paths.data_dir)]
        save = ["--save-dir", str(self.paths.save_dir)]
        folders = {"demo": ["--dir", str(self._folder)]}
        folders |= dict.fromkeys(("verify", "repair", "check-submission"), data)
        folders |= dict.fromkeys(("runs", "report"), save)
        return [sys.executable, "-c", _MMFW, name, *arguments, *folders.get(name, data + save)]


def wait_for_updates(run: Run, process: subprocess.Popen[bytes], update: int) -> None:
    """Wait until a run has recorded an update."""
    while not any(e["kind"] == "train" and e["update"] >= update for e in read_events(run.events)):
        assert process.poll() is None, f"mmfw must not end before update {update}"
        time.sleep(0.05)


def test_demo_is_stopped_resumed_killed_verified_and_predicted(tmp_path: Path, wheel_environ: dict[str, str]) -> None:
    folder = tmp_path / ALL_CHARACTERS
    newer_run = folder / "save" / "other" / "9999-01-01T00-00-00"
    newer_run.mkdir(parents=True)
    (newer_run / "request.json").write_text("{}", encoding="utf-8")
    (folder / ".mmfw-demo").touch()
    demo = Demo(folder, wheel_environ)
    result, errors = demo.mmfw_with_stderr("demo")
    assert (result["data_dir"], result["save_dir"]) == (str(demo.paths.data_dir), str(demo.paths.save_dir))
    assert result["auroc"] >= 0.8 and result["accuracy"] >= 0.7
    for command in ("convert --zip", "features extract", "train demo", "predict"):
        assert f"$ mmfw {command}" in errors
    assert predicted_ids(Path(result["csv"])) == annotated_ids(demo.paths.dataset, "test_unseen")
    verified = demo.mmfw("verify", "demo")
    assert [file["state"] for file in verified] == ["intact", "recorded"], "only region features and BERT may be listed"
    assert verified[0]["against"] == "the archive features.tar.gz"

    run = Run(next(demo.paths.save_dir.glob(f"demo/{Path(result['run']).name}")))
    endless = ("--updates", "100000", "training.log_interval=1")
    stop = folder / "stop"
    with demo.start_mmfw("train", "--resume", run.id, *endless, environ={"MMFW_STOP_FILE": str(stop)}) as training:
        wait_for_updates(run, training, UPDATES + 2)
        stop.touch()
        assert training.wait() == 130
    stopped = demo.mmfw("runs", "show", run.id)
    assert stopped["state"] == "interrupted" and stopped["updates"] >= UPDATES + 2

    with liveness_monitor() as monitor:
        faults = [{"at": at, "do": "connect", "port": int(monitor.port)} for at in ("loader", "loader_worker")]
        environ = {"MMF_USER_DIR": str(_FAULTS), "MMFW_TEST_FAULTS": json.dumps(faults)}
        with demo.start_mmfw("train", "--resume", run.id, "training.num_workers=2", environ=environ) as training:
            monitor.wait_for_processes(3)
            wait_for_updates(run, training, stopped["updates"] + 1)
            training.kill()
        assert monitor.wait_until_all_exited(), "the worker and its two loader workers must exit"
    with file_lock(run.training_lock_file, timeout=120):
        killed = demo.mmfw("runs", "show", run.id)

    total = killed["updates"] + 5
    resumed = demo.mmfw("train", "--resume", run.id, "--updates", str(total), "training.num_workers=0")
    assert (resumed["id"], resumed["updates"], resumed["state"]) == (run.id, total, "done")
    demo.mmfw("verify")
    annotations = demo.paths.dataset.annotation_file("dev_seen")
    intact = annotations.read_bytes()
    annotations.write_bytes(b"")
    demo.mmfw("repair", "dataset", "--password", PASSWORD)
    assert annotations.read_bytes() == intact
    prediction = demo.mmfw("predict", run.id, "--split", "dev_seen")
    assert prediction["auroc"] >= 0.8
    assert predicted_ids(Path(prediction["csv"])) == annotated_ids(demo.paths.dataset, "dev_seen")
    report = Path(prediction["report"]).read_text(encoding="utf-8")
    assert f"Attempt 2 started at update {UPDATES}, to train for more updates" in report
    assert prediction["members"][0]["checkpoint_sha256"] in report
    assert demo.mmfw("check-submission", prediction["csv"], "--split", "dev_seen")["usable"] is True
    demo.mmfw("report", run.id)
    demo.mmfw("doctor")
    sweep = demo.mmfw("sweep", "run", "demo", "--seeds", "1-2", "--slots", "2", "--updates", "4")
    [table_row] = sweep["table"]
    assert table_row["runs"] == 2 and 0 <= table_row["auroc"] <= 1 and table_row["auroc_sd"] is not None
    assert list(tmp_path.iterdir()) == [folder], "no file may be written elsewhere"

    with zipfile.ZipFile(
        demo.mmfw("doctor", "--report", str(tmp_path / "bug.zip"), "--run", run.id)["report"]
    ) as archive:
        bug_report = b"".join(map(archive.read, archive.namelist()))
    assert run.path.name.encode() in bug_report
    rows = [
        row for split in ("train", "test_unseen") for row in read_annotations(demo.paths.dataset.annotation_file(split))
    ]
    assert [row.text for row in rows if row.text.encode() in bug_report] == []
    demo_files = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert [secret for secret in _SECRETS.values() if secret.encode() in bug_report + demo_files] == []


def predicted_ids(path: Path) -> list[int]:
    """Return the ids of a prediction file and check that it has the format of the challenge."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "proba", "label"]
    assert all(0 <= float(row["proba"]) <= 1 for row in rows)
    return [int(row["id"]) for row in rows]


def annotated_ids(dataset: DatasetPaths, split: str) -> list[int]:
    """Return the ids of a split in file order."""
    lines = dataset.annotation_file(split).read_text(encoding="utf-8").splitlines()
    return [int(json.loads(line)["id"]) for line in lines]

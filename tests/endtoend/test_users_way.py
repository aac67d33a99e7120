"""One user's way through everything, from the wheel, on Linux and Windows; other tests go into detail."""

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
from tests.worlds.odd_names import ALL_CHARACTERS
from tests.worlds.packages import ROOT, Packages, clean_environment, install_wheel_isolated

pytestmark = [
    pytest.mark.wide,  # `scripts/test.py --windows` runs it in any case
    pytest.mark.timeout(1100),  # Wine takes its time
]

UPDATES = presets.load_preset("demo").settings["training"]["max_updates"]
_FAULTS = Path(tiny_mmf.__file__).with_name("faults")

_SECRETS = {"MMFW_PASSWORD": "hunter2-password", "HF_TOKEN": "hf_hunter2hunter2"}
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # threads of two tests at once wait for one another

# Says at its end what it has imported that only a child may.
_MMFW = f"""
import sys
import mmf_win
try:
    import pytest
    sys.exit("this has packages that mmfw does not ask for")
except ModuleNotFoundError:
    pass
from mmf_win.cli import main
if {str(ROOT)!r} in mmf_win.__file__:
    sys.exit("this is the checkout's")
code = main(sys.argv[1:])
heavy = {{"torch", "lmdb", "mmf", "transformers"}} & set(sys.modules)
sys.exit(f"the parent has imported {{heavy}}" if heavy else code)
"""


@pytest.fixture
def installed(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables that make Python have the wheel, what that asks for, and MMF by ``mmfw setup``."""
    folder = tmp_path_factory.mktemp("empty") / ALL_CHARACTERS.replace(os.pathsep, "")
    environ = clean_environment() | _SECRETS | _ONE_THREAD
    install_wheel_isolated(packages.wheel, folder, "train")
    environ["PYTHONPATH"] = str(folder)
    if sys.platform != "win32":
        environ["MMFW_HOME"] = str(folder.with_name("home"))
        setup = [folder / "bin" / "mmfw", "setup", "--mmf", find_mmf().root]
        subprocess.run(setup, env=environ, cwd=folder, check=True)
    return environ


class Demo:
    """The folder of ``mmfw demo``, and a user who goes on in it.

    Args:
        folder: need not exist.
        installed: the variables that make Python have what the user has.
    """

    def __init__(self, folder: Path, installed: dict[str, str]) -> None:
        self._folder = folder
        self._installed = installed
        self.places = MmfPaths.resolve(folder / "data", folder / "save")

    def mmfw(self, *words: str) -> Any:
        """The one JSON value that a command prints on stdout; it has to succeed."""
        return self.mmfw_says(*words)[0]

    def mmfw_says(self, *words: str) -> tuple[Any, str]:
        """Run the command and return its output and stderr."""
        with self.at_work(*words, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            output, said = (stream.decode(errors="replace") for stream in process.communicate())
        assert process.returncode == 0, output + said
        assert not any(secret in output + said for secret in _SECRETS.values())
        return json.loads(output), said

    @contextmanager
    def at_work(
        self, *words: str, environ: Mapping[str, str] = {}, **streams: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A command that goes on while the user does other things."""
        with subprocess.Popen(
            self._command(*words),
            cwd=self._folder.parent,
            env=self._installed | environ,
            stdin=subprocess.DEVNULL,
            **streams,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _command(self, name: str, *words: str) -> list[str]:
        data = ["--data-dir", str(self.places.data_dir)]
        save = ["--save-dir", str(self.places.save_dir)]
        places = {"demo": ["--dir", str(self._folder)]}
        places |= dict.fromkeys(("verify", "repair", "check-submission"), data)
        places |= dict.fromkeys(("runs", "report"), save)
        return [sys.executable, "-c", _MMFW, name, *words, *places.get(name, data + save)]


def wait_for_updates(run: Run, process: subprocess.Popen[bytes], update: int) -> None:
    """Wait until the run has told of an update."""
    while not any(e["kind"] == "train" and e["update"] >= update for e in read_events(run.events)):
        assert process.poll() is None, f"it ended before update {update}"
        time.sleep(0.05)


def test_a_demo_is_stopped_resumed_killed_resumed_verified_and_predicted(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    folder = tmp_path / ALL_CHARACTERS
    newer = folder / "save" / "other" / "9999-01-01T00-00-00"
    newer.mkdir(parents=True)
    (newer / "request.json").write_text("{}", encoding="utf-8")
    (folder / ".mmfw-demo").touch()
    demo = Demo(folder, installed)
    result, said = demo.mmfw_says("demo")
    assert (result["data_dir"], result["save_dir"]) == (str(demo.places.data_dir), str(demo.places.save_dir))
    assert result["auroc"] >= 0.8 and result["accuracy"] >= 0.7
    for command in ("convert --zip", "features extract", "train demo", "predict"):
        assert f"$ mmfw {command}" in said
    assert predicted_ids(Path(result["csv"])) == annotated_ids(demo.places.dataset, "test_unseen")
    read = demo.mmfw("verify", "demo")
    assert [file["state"] for file in read] == ["intact", "recorded"], "region features, and the BERT"
    assert read[0]["against"] == "the archive features.tar.gz"

    run = Run(next(demo.places.save_dir.glob(f"demo/{Path(result['run']).name}")))
    endless = ("--updates", "100000", "training.log_interval=1")
    stop = folder / "stop"
    with demo.at_work("train", "--resume", run.id, *endless, environ={"MMFW_STOP_FILE": str(stop)}) as training:
        wait_for_updates(run, training, UPDATES + 2)
        stop.touch()
        assert training.wait() == 130
    stopped = demo.mmfw("runs", "show", run.id)
    assert stopped["state"] == "interrupted" and stopped["updates"] >= UPDATES + 2

    with liveness_monitor() as held:
        faults = [{"at": at, "do": "connect", "port": int(held.port)} for at in ("loader", "loader_worker")]
        environ = {"MMF_USER_DIR": str(_FAULTS), "MMFW_TEST_FAULTS": json.dumps(faults)}
        with demo.at_work("train", "--resume", run.id, "training.num_workers=2", environ=environ) as training:
            held.wait_for_processes(3)
            wait_for_updates(run, training, stopped["updates"] + 1)
            training.kill()
        assert held.has_only_dead_processes(), "the worker and its two loader workers"
    with file_lock(run.training_lock_file, timeout=120):
        killed = demo.mmfw("runs", "show", run.id)

    total = killed["updates"] + 5
    done = demo.mmfw("train", "--resume", run.id, "--updates", str(total), "training.num_workers=0")
    assert (done["id"], done["updates"], done["state"]) == (run.id, total, "done")
    demo.mmfw("verify")
    annotations = demo.places.dataset.annotation_file("dev_seen")
    intact = annotations.read_bytes()
    annotations.write_bytes(b"")
    demo.mmfw("repair", "dataset", "--password", PASSWORD)
    assert annotations.read_bytes() == intact
    again = demo.mmfw("predict", run.id, "--split", "dev_seen")
    assert again["auroc"] >= 0.8
    assert predicted_ids(Path(again["csv"])) == annotated_ids(demo.places.dataset, "dev_seen")
    page = Path(again["report"]).read_text(encoding="utf-8")
    assert f"Attempt 2 started at update {UPDATES}, to train for more updates" in page
    assert again["members"][0]["checkpoint_sha256"] in page
    assert demo.mmfw("check-submission", again["csv"], "--split", "dev_seen")["usable"] is True
    demo.mmfw("report", run.id)
    demo.mmfw("doctor")
    swept = demo.mmfw("sweep", "run", "demo", "--seeds", "1-2", "--slots", "2", "--updates", "4")
    [line] = swept["table"]
    assert line["runs"] == 2 and 0 <= line["auroc"] <= 1 and line["auroc_sd"] is not None
    assert list(tmp_path.iterdir()) == [folder], "nothing is written elsewhere"

    with zipfile.ZipFile(
        demo.mmfw("doctor", "--report", str(tmp_path / "bug.zip"), "--run", run.id)["report"]
    ) as archive:
        told = b"".join(map(archive.read, archive.namelist()))
    assert run.path.name.encode() in told
    rows = [
        row
        for split in ("train", "test_unseen")
        for row in read_annotations(demo.places.dataset.annotation_file(split))
    ]
    assert [row.text for row in rows if row.text.encode() in told] == []
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert [secret for secret in _SECRETS.values() if secret.encode() in told + written] == []


def predicted_ids(path: Path) -> list[int]:
    """The ids of a prediction file, whose form is that of the challenge."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "proba", "label"]
    assert all(0 <= float(row["proba"]) <= 1 for row in rows)
    return [int(row["id"]) for row in rows]


def annotated_ids(dataset: DatasetPaths, split: str) -> list[int]:
    """The ids of a split, in its order."""
    lines = dataset.annotation_file(split).read_text(encoding="utf-8").splitlines()
    return [int(json.loads(line)["id"]) for line in lines]

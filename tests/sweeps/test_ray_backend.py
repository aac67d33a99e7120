"""A Ray cluster of several nodes on this machine with declared GPUs, and real commands on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import mmf_win
from mmf_win.cli import main
from mmf_win.sweeps.folder import SweepFolder, Task, load_started_tasks
from tests.worlds.mounts import private_mounts_command
from tests.worlds.tools import requires_package

if sys.platform == "win32":
    pytest.skip("Ray on Windows is a beta, and cannot be tried under Wine", allow_module_level=True)

# ray.cluster_utils of older versions of Ray does not close the logs of the processes that it starts.
pytestmark = [
    pytest.mark.wide,
    requires_package("ray"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# The arguments of a command are the task's folder, its number, and the action.
_TASK = """
import os, signal, subprocess, sys, time
from pathlib import Path

out, number, action = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
out.joinpath("pid").write_text(str(os.getpid()))
with out.joinpath("ran." + action).open("a") as file:
    print(os.environ["CUDA_VISIBLE_DEVICES"], file=file)
several = "," in os.environ["CUDA_VISIBLE_DEVICES"]
assert os.environ.get("MMFW_NPROC") == ("auto" if several else None)

def wait_until(condition):
    while not condition():
        time.sleep(0.02)

assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "Ctrl+C is blocked"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if action == "meet":  # wait for the other task, so both must run at the same time
    Path("started." + number).touch()
    wait_until(lambda: len(list(Path().glob("started.*"))) == 2)
if action == "save":
    out.joinpath("saved").touch()
if action == "lose":  # stop the node once
    lost = Path("lost")
    if number == "1" and not lost.exists():
        lost.touch()
        os.kill(int(os.environ["RAY_RAYLET_PID"]), signal.SIGKILL)
        wait_until(lambda: False)
if action == "stop":
    os.kill(int(number), signal.SIGINT)
    wait_until(Path(os.environ["MMFW_STOP_FILE"]).exists)
    out.joinpath("saved").touch()
    sys.exit(1)
if action == "kill":
    os.kill(int(number), signal.SIGINT)
    wait_until(Path(os.environ["MMFW_STOP_FILE"]).exists)
    time.sleep(1)  # FORCE_STOP_AFTER_SECONDS of mmf_win.signals
    os.kill(int(number), signal.SIGINT)
    wait_until(lambda: False)
if action == "wait":
    wait_until(lambda: False)
if action == "orphan":
    os.kill(int(number), signal.SIGKILL)
    wait_until(lambda: False)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a head without resources and a node with two GPUs and no CPU; Python's path needs quoting."""
    from ray.cluster_utils import Cluster

    environment = tmp_path_factory.mktemp("python") / "Doe, Jane's $(x)"
    venv.create(environment, symlinks=True)
    [packages] = environment.glob("lib/python*/site-packages")
    site_code = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "ours.pth").write_text(site_code, encoding="utf-8")
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setattr(sys, "executable", str(environment / "bin" / "python"))
        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": quick}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        try:
            nodes.add_node(num_cpus=0, num_gpus=2)
            patch.setenv("RAY_ADDRESS", nodes.address)
            yield nodes
        finally:
            nodes.shutdown()


@pytest.fixture
def working_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that contains the commands, and return it."""
    (tmp_path / "task.py").write_text(_TASK, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def node(cluster: Any, *options: str, mounts: str | None = None, python: str | None = None) -> Iterator[None]:
    """Add a node, with its own view of the file system if it ``mounts`` something."""
    ray_start = [python or sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    mount_command = private_mounts_command(mounts) if mounts else []
    before = count_live_nodes(cluster)
    with subprocess.Popen(
        [*mount_command, *ray_start, "--address", cluster.address, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            wait_until(lambda: count_live_nodes(cluster) > before or process.poll() is not None)
            assert process.poll() is None
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # the process may be a child of sudo
            process.wait()
            wait_until(lambda: count_live_nodes(cluster) <= before)


def count_live_nodes(cluster: Any) -> int:
    """Return the number of live nodes in the cluster."""
    return sum(node["Alive"] for node in cluster.global_state.node_table())


def wait_until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.05)


def run_sweep(numbers: list[int], *commands: str, gpus: str | None = None, output: str = "out") -> int:
    """Run these commands with each number, in this process."""
    return main([*build_arguments(numbers, *commands, output=output), *(["-r", gpus] if gpus else [])])


def build_arguments(numbers: list[int], *commands: str, output: str = "out") -> list[str]:
    template = "\n".join(f"  {name}: python task.py {{_output}} {{n}} {name}" for name in commands)
    Path("params.yaml").write_text(f"template:\n{template}\n---\nn: {numbers}\n", encoding="utf-8")
    return ["sweep", "run", "params.yaml", "--on", "ray", "-o", output]


def load_tasks() -> list[Task]:
    return load_started_tasks(SweepFolder(Path("out")))


def read_gpus(command: str, numbers: Sequence[int]) -> list[list[str]]:
    """Return the GPUs on which each of these numbers ran a command, in order."""
    files = (Path("out", f"N_{n}", f"ran.{command}") for n in numbers)
    return [file.read_text(encoding="utf-8").splitlines() for file in files]


def is_running(pid_file: Path) -> bool:
    with suppress(ProcessLookupError):
        os.kill(int(pid_file.read_text(encoding="utf-8")), 0)
        return True
    return False


def test_each_task_runs_once_on_separate_gpus(cluster: Any, working_dir: Path) -> None:
    assert run_sweep([1, 2], "meet") == 0
    assert sorted(read_gpus("meet", [1, 2])) == [["0"], ["1"]]
    assert [(task.state, task.start_count) for task in load_tasks()] == [("success", 1)] * 2
    assert not list(working_dir.rglob(".ray-*"))


def test_tasks_of_a_lost_node_run_on_another(cluster: Any, working_dir: Path) -> None:
    options = ("--num-cpus=0", "--num-gpus=3")
    with node(cluster, *options), node(cluster, *options):
        assert run_sweep([1, 2, 3], "save", "lose", gpus="0,1,2") == 0
    ended = load_tasks()
    assert [(task.state, sorted(task.finished_commands)) for task in ended] == [("success", ["lose", "save"])] * 3
    assert [task.start_count for task in ended] == [2, 1, 1]
    assert [len(times) for times in read_gpus("save", [1, 2, 3])] == [1, 1, 1]
    assert [len(times) for times in read_gpus("lose", [1, 2, 3])] == [2, 1, 1]


def test_tasks_stay_queued_when_the_cluster_is_lost(
    working_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ray.cluster_utils import Cluster

    another = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 1})
    monkeypatch.setenv("RAY_ADDRESS", another.address)

    def end() -> None:
        wait_until(lambda: list(working_dir.glob("out/*/ran.wait")))
        another.head_node.kill_all_processes(check_alive=False, allow_graceful=True)

    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end)
        assert run_sweep([1, 2], "wait") == 130
        ended.result()
    assert {task.state for task in load_tasks()} == {"queued"}
    assert "lost the Ray cluster" in capsys.readouterr().err


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("command", "saves"), [("stop", True), ("kill", False)])
def test_first_stop_lets_a_command_save_and_second_kills_it(working_dir: Path, command: str, saves: bool) -> None:
    assert run_sweep([os.getpid()], command) == 130
    (task,) = load_tasks()
    folder = working_dir / "out" / task.name
    assert (task.state, (folder / "saved").exists(), is_running(folder / "pid")) == ("queued", saves, False)


@pytest.mark.usefixtures("cluster")
def test_no_process_of_a_task_outlives_a_killed_driver(working_dir: Path) -> None:
    program = "import os, sys; from mmf_win.cli import main; params = open('params.yaml').read()\n"
    program += "open('params.yaml', 'w').write(params.replace('[1]', f'[{os.getpid()}]')); main(sys.argv[1:])"
    command = [sys.executable, "-c", program, *build_arguments([1], "orphan")]
    ended = subprocess.run(command, check=False, capture_output=True)
    assert ended.returncode == -9
    (pid,) = (working_dir / "out").glob("*/pid")
    wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize(
    ("mounts", "message"),
    [
        ("mount -t tmpfs tmpfs '{package}'", "of the cluster has no mmfw"),
        ("mount --bind '{version}' '{package}/version.py'", "has mmfw 0.0.1, but this machine has"),
        ("mount --bind '{empty}' '{package}/version.py'", "of the cluster: ImportError: cannot import"),
        ("mount -t tmpfs tmpfs '{working_dir}/shared'", "does not see {working_dir}/shared of this machine"),
        ("mount -t tmpfs tmpfs '{working_dir}/memes'", "does not see {working_dir}/memes/data of this machine"),
        ("mount --bind '{locking}' '{package}/locking.py'", "does not see file locks in {working_dir}/shared"),
    ],
    ids=["no mmfw", "another mmfw", "a broken mmfw", "another folder", "other data", "no locks"],
)
def test_incompatible_node_is_rejected(
    cluster: Any,
    working_dir: Path,
    capsys: pytest.CaptureFixture[str],
    mounts: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (working_dir / "shared").mkdir()
    (working_dir / "memes" / "data").mkdir(parents=True)
    monkeypatch.setenv("MMF_DATA_DIR", str(working_dir / "memes" / "data"))
    version, locking = working_dir / "version.py", working_dir / "locking.py"
    version.write_text("__version__ = '0.0.1'\n", encoding="utf-8")
    package = Path(mmf_win.__file__).parent
    empty = working_dir / "empty.py"
    empty.touch()
    locking_source = (package / "locking.py").read_text(encoding="utf-8")
    unlocked = f"{locking_source}\n\ndef is_locked(path): return False\n"
    locking.write_text(unlocked, encoding="utf-8")  # like storage with separate locks on each machine
    mounts = mounts.format(package=package, version=version, empty=empty, working_dir=working_dir, locking=locking)
    with node(cluster, "--num-cpus=0", "--num-gpus=4", mounts=mounts):
        assert run_sweep([1], "save", gpus="0,1,2,3", output="shared/out") == 6
    assert message.format(working_dir=working_dir) in capsys.readouterr().err.replace("\n", " ")
    assert not [*(working_dir / "shared").iterdir()]


def test_node_that_does_not_see_the_environment_is_rejected(
    cluster: Any, working_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, python = working_dir / "hidden" / "environment", Path(sys.prefix, "bin", "python")
    environment.mkdir(parents=True)
    hidden = f"mount -t tmpfs tmpfs '{environment.parent}'"
    with node(cluster, "--num-cpus=0", "--num-gpus=4", mounts=hidden, python=str(python)):
        monkeypatch.setattr(sys, "prefix", str(environment))
        monkeypatch.setattr(sys, "executable", str(environment / "python"))
        assert run_sweep([1], "save", gpus="0,1,2,3") == 6
    assert f"does not see {environment} of this machine" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.usefixtures("cluster", "working_dir")
def test_more_gpus_than_a_node_has_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sweep([1], "save", gpus="0,1,2") == 2
    assert "no node of the cluster has 3 GPUs; it has " in capsys.readouterr().err


@pytest.mark.usefixtures("working_dir")
def test_missing_cluster_or_ray_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert run_sweep([1], "save") == 6
    assert "cannot connect to a Ray cluster at 127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run_sweep([1], "save") == 6
    error = capsys.readouterr().err
    assert "pip install -c" in error and "[ray]" in error

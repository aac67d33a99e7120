"""Tables of experiments: agreement with mlrunner's own Examiner, and behaviour beyond it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Barrier, Thread, main_thread
from traceback import walk_stack
from typing import Any

import pytest
import yaml

from mmf_win.errors import DataError, MmfEnvironmentError, UsageError
from mmf_win.sweeps import Examiner, Experiment, latest_log
from tests.worlds.tools import LazyModule, requires_package

pandas_testing = LazyModule("pandas.testing")

pytestmark = requires_package("pandas")

requires_mlrunner_platform = pytest.mark.skipif(sys.platform == "win32", reason="mlrunner does not run on Windows")
WITHOUT_LOG = "lr_0.01-seed_1"


def add_task(output: Path, name: str, params: Mapping[str, object], accuracies: Sequence[Sequence[float]] = ()) -> None:
    """Create a task folder like mlrunner, with one training log per list of accuracies."""
    folder = output / name
    folder.mkdir(parents=True)
    reserved = {"_name": name, "_output": str(folder), "_scripts": {"train": "x > log"}, "_time": "20260101.1200"}
    (folder / "param").write_text(yaml.dump({**reserved, **params}, width=1_000_000), encoding="utf-8")
    (folder / "stat").write_text("train: finished\n", encoding="utf-8")
    for day, values in enumerate(accuracies, start=1):
        lines = [f"Iter {n}: loss=1.5, test_acc={value}, duration=0:08\n" for n, value in enumerate(values)]
        (folder / f"log.train.2026010{day}.120000").write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def output(user_dir: Path) -> Path:
    """Write six mlrunner tasks, one of them without a log, and a folder that is not a task."""
    folder = user_dir / "output"
    for rate in (0.1, 0.01):
        for seed in (2, 0, 1):
            name = f"lr_{rate}-seed_{seed}"
            accuracies = [] if name == WITHOUT_LOG else [[0.25, 0.5], [0.5, rate + seed / 100]]
            add_task(folder, name, {"data": "memes", "lr": rate, "seed": seed}, accuracies)
    (folder / "figures").mkdir()
    return folder


def last_accuracy(path: Path, experiment: Any, caches: dict[str, Any]) -> None:
    """Read the logs like the parser of mlrunner's example."""
    log = latest_log("train", path)
    if log is not None:
        last = log.read_text(encoding="utf-8").splitlines()[-1]
        experiment.metric["acc"] = float(re.findall("(?<=test_acc=).+?(?=, )", last)[0])
        experiment.cache["log"] = log.name
        caches[path.name] = log.name


def run_examiner(output: Path, *parsers: Any, **options: Any) -> Examiner:
    examiner = Examiner()
    for parser in parsers or [last_accuracy]:
        examiner.add(parser)
    examiner.exam(output, **options)
    return examiner


def sorted_table(examiner: Any) -> Any:
    """Return the table with sorted rows; mlrunner lists folders in arbitrary order."""
    return examiner.table(concise=False).sort_values(["lr", "seed"]).reset_index(drop=True)


@pytest.mark.wide
@requires_mlrunner_platform
@pytest.mark.parametrize("regex", [".*", "lr_0.1-", "seed_[01]$"])
def test_table_equals_mlrunners(output: Path, regex: str) -> None:
    from mlrunner.examine import Examiner as MlrunnerExaminer

    mlrunner_examiner = MlrunnerExaminer()
    mlrunner_examiner.add(last_accuracy)
    mlrunner_examiner.exam(str(output), regex)
    examiner = run_examiner(output, regex=regex)
    pandas_testing.assert_frame_equal(sorted_table(mlrunner_examiner), sorted_table(examiner))
    assert list(mlrunner_examiner.table().columns) == list(examiner.table().columns)
    assert mlrunner_examiner.caches == examiner.caches
    assert {name: tuple(experiment) for name, experiment in mlrunner_examiner.experiments.items()} == {
        name: tuple(experiment) for name, experiment in examiner.experiments.items()
    }


@pytest.mark.wide
@requires_mlrunner_platform
def test_latest_log_equals_mlrunners(output: Path) -> None:
    from mlrunner.examine import latest_log as mlrunner_latest_log

    for folder in (output / "lr_0.1-seed_0", output / WITHOUT_LOG, output / "nowhere"):
        for index in (-3, -2, -1, 0, 1, 2):
            assert latest_log("train", folder, index) == mlrunner_latest_log("train", folder, index)
            assert latest_log("test", str(folder), index) is None


@pytest.mark.wide
@requires_mlrunner_platform
def test_printed_table_equals_mlrunners(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mlrunner.examine import Examiner as MlrunnerExaminer

    printed = []
    for examiner in (MlrunnerExaminer(), Examiner()):
        examiner.add(last_accuracy)
        examiner.exam(str(output), "lr_0.1-seed_0", verbose=True)
        examiner.exam(str(output), "lr_0.01-seed_0", verbose=True)
        examiner.table(print_tsv=True)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] == "lr_0.1-seed_0\nlr_0.01-seed_0\nlr\tacc\n0.1\t0.1\n0.01\t0.01\n"


def test_rows_follow_folder_order_and_parameters_precede_metrics(output: Path) -> None:
    def metrics(path: Path, experiment: Experiment, caches: dict[str, Any]) -> None:
        experiment.metric.update({"a metric": path.name, "another": len(caches)})

    table = run_examiner(output, metrics).table()
    assert list(table.columns) == ["lr", "seed", "a metric", "another"]
    assert list(table["a metric"]) == sorted(path.name for path in output.iterdir() if path.name != "figures")


def test_lists_can_be_parameters(output: Path) -> None:
    add_task(output, "layers", {"lr": 0.1, "layers": [1, 2], "same": [3]})
    add_task(output, "more layers", {"lr": 0.1, "layers": [1, 2, 3], "same": [3]})
    examiner = run_examiner(output, regex="layers")
    assert list(examiner.table().columns) == ["layers"]
    assert list(examiner.table()["layers"]) == [[1, 2], [1, 2, 3]]
    assert set(examiner.table(concise=False).columns) == {"layers", "lr", "same"}


def test_parsers_run_once_in_registration_order(output: Path) -> None:
    examiner, parser_names = Examiner(), []

    @examiner.add
    def first(path: Path, experiment: Experiment, caches: dict[str, Any]) -> None:
        parser_names.append("first")

    @examiner.add
    def second(path: Path, experiment: Experiment, caches: dict[str, Any]) -> None:
        parser_names.append("second")

    assert examiner.add(first) is first
    examiner.exam(output, regex="lr_0.1-seed_0")
    assert parser_names == ["first", "second"]
    examiner.exam(output, regex="lr_0.1-seed_2")  # adds to the earlier result
    assert list(examiner.experiments) == ["lr_0.1-seed_0", "lr_0.1-seed_2"]


def test_threads_read_folders_in_parallel_with_separate_caches(output: Path) -> None:
    sequential, parallel = run_examiner(output), run_examiner(output, workers=3)
    pandas_testing.assert_frame_equal(sequential.table(), parallel.table())
    assert sequential.caches == parallel.caches and list(sequential.caches) == list(parallel.caches)
    barrier = Barrier(6)

    def parser(path: Path, experiment: Experiment, caches: dict[str, Any]) -> None:
        assert caches == {}
        caches["last"] = path.name
        barrier.wait(60)
        experiment.metric["last"] = caches["last"]

    examiner = run_examiner(output, parser, workers=6)
    assert all(experiment.metric == {"last": name} for name, experiment in examiner.experiments.items())
    assert examiner.caches == {"last": "lr_0.1-seed_2"}, "later folders must take precedence"


def test_folders_without_parameters_are_skipped_with_a_warning(output: Path, caplog: pytest.LogCaptureFixture) -> None:
    (output / "begun").mkdir()
    (output / "begun" / "param").touch()
    assert len(run_examiner(output).experiments) == 6
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [str(output / name) in line for name, line in zip(("begun", "figures"), warnings, strict=True)]


@pytest.mark.parametrize("workers", [-1, 2])
def test_parser_error_names_the_folder_and_keeps_the_traceback(output: Path, workers: int) -> None:
    def fail_parsing(path: Path, experiment: Experiment, caches: dict[str, Any]) -> None:
        if path.name == "lr_0.1-seed_0":
            raise KeyError("accuracy")

    with pytest.raises(DataError) as caught:
        run_examiner(output, fail_parsing, workers=workers)
    assert str(caught.value) == f"{output / 'lr_0.1-seed_0'}: parser fail_parsing failed: KeyError: 'accuracy'"
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.__cause__.__traceback__ is not None


def test_no_thread_starts_another_folder_after_a_parser_failed(output: Path) -> None:
    parsed = []

    def fail_parsing(path: Path, experiment: Experiment, caches: dict[str, Any]) -> None:
        parsed.append(path.name)
        if len(parsed) == 1:
            raise KeyError("accuracy")
        deadline = time.monotonic() + 60
        while not _waits_for_threads(main_thread()) and time.monotonic() < deadline:
            time.sleep(0.01)

    with pytest.raises(DataError):
        run_examiner(output, fail_parsing, workers=1)
    assert len(parsed) <= 2, "at most one other folder may begin before the error is noticed"


def _waits_for_threads(thread: Thread) -> bool:
    """Return whether a thread waits for the end of others."""
    frame = sys._current_frames().get(thread.ident or 0)
    return any(inner.f_code is Thread.join.__code__ for inner, _ in walk_stack(frame))


@pytest.mark.parametrize("content", ["- a\n- list", "lr: [1", "!!python/object/apply:os.getcwd []", "[" * 5000])
def test_error_for_invalid_parameters_names_the_file(output: Path, content: str) -> None:
    param = output / "lr_0.1-seed_0" / "param"
    param.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        run_examiner(output)
    assert str(caught.value).startswith(f"{param}: ")


def test_missing_folder_and_invalid_regex_are_errors(output: Path) -> None:
    with pytest.raises(UsageError, match="folder not found"):
        Examiner().exam(output / "nowhere")
    with pytest.raises(UsageError, match="regular expression '\\*'"):
        Examiner().exam(output, regex="*")


def test_missing_pandas_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Examiner().table().empty
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MmfEnvironmentError, match=r"not installed in .*: pandas") as caught:
        Examiner().table()
    assert "[notebook]" in str(caught.value.hint)

"""Console output if stderr is not a terminal."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mmf_win import console
from mmf_win.console import Progress, Timestamp


def test_sizes_and_durations_are_human_readable() -> None:
    sizes = [console.format_size(n) for n in (0, 1023, 1536, 3.4 * 2**30, 2**41, -1536)]
    assert sizes == ["0 B", "1023 B", "1.5 KiB", "3.4 GiB", "2.0 TiB", "-1.5 KiB"]
    rounded = [console.format_size(n) for n in (1023.5, 2**20 - 52, 2**20 - 1, 2**30 - 1, 2**40 - 1)]
    assert rounded == ["1.0 KiB", "1023.9 KiB", "1.0 MiB", "1.0 GiB", "1.0 TiB"]
    durations = [console.format_duration(seconds) for seconds in (0.4, 59.6, 200, 3600, 7500)]
    assert durations == ["0 s", "1 min", "3 min 20 s", "1 h", "2 h 5 min"]


def test_times_in_json_are_recognized_by_type_instead_of_key(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"temperature": {"t": 0.07, "created": 1.5}, "list": [{"started": Timestamp(1e9)}]}
    console.print_json(values)
    assert json.loads(capsys.readouterr().out) == {
        "temperature": {"t": 0.07, "created": 1.5},
        "list": [{"started": "2001-09-09T01:46:40+00:00"}],
    }


def test_table_right_aligns_numbers_and_marks_missing_values() -> None:
    lines = console.format_table(("name", "rows"), [("train", 8500), ("dev", None)]).splitlines()
    assert lines == ["name   rows", "train  8500", "dev       -"]


def test_table_is_wrapped_to_terminal_without_losing_text(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a/2026-01-01T00-00-00", 1, "training.batch_size=8 optimizer.params.lr=1e-5"), ("b", 22, None)]
    unwrapped = console.format_table(("run", "seed", "words"), rows)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "40")
    lines = console.format_table(("run", "seed", "words"), rows).splitlines()
    assert max(map(len, unwrapped.splitlines())) > 40 >= max(map(len, lines))
    assert sorted("".join(lines).replace(" ", "")) == sorted(unwrapped.replace(" ", "").replace("\n", ""))


def test_narrow_table_omits_optional_columns_and_cuts_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("mmbt_grid/2026-01-01T00-00-00", "mmbt_grid", 1, "failed: cuda_oom")]
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "45")
    columns = ("run", "preset", "seed", "state")
    header, *lines = console.format_table(columns, rows, optional=("seed", "preset")).splitlines()
    assert header.split() == ["run", "state"]
    assert lines[0].startswith("mmbt_grid/2026-01-01T00-00-00")
    assert max(map(len, lines)) <= 45


@pytest.mark.parametrize(
    ("total", "unit", "line"),
    [
        (300, "update", "training:  10% 30/300 [00:11<01:39,  2.73update/s, loss 0.5]"),
        (None, "update", "training: 30update [00:11,  2.73update/s, loss 0.5]"),
        (2048, "B", "training:   1% 30.0/2.00k [00:11<12:19, 2.73B/s, loss 0.5]"),
    ],
)
def test_progress_without_terminal_prints_a_plain_line_occasionally(
    total: int | None,
    unit: console.Unit,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with Progress("training", total, unit) as progress:
        progress.annotate("loss 0.5")
        progress.advance(10)
        assert capsys.readouterr().err == "", "short work must show no progress"
        now = 11.0
        progress.advance(20)
        assert capsys.readouterr().err == line + "\n"


@pytest.mark.skipif(sys.platform != "win32", reason="only Windows has cmd.exe")
def test_printed_command_keeps_its_arguments_in_cmd() -> None:
    arguments = ["C:\\A&B\\", "a b\\", "(x86)^", "mmf-win[train]", "100%"]
    command = console.format_command(sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *arguments)
    process = subprocess.run(f'cmd /s /c "{command}"', check=True, capture_output=True, encoding="ascii")
    assert process.stdout.strip() == ascii(arguments)


def test_progress_and_status_work_without_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.sys, "stderr", None)
    with Progress("training", 2, "update") as progress:
        progress.advance(1)
        console.print_status("half of it")
    assert console.colour_text("done", 32) == "done"


def test_log_messages_are_printed_only_while_a_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("mmf_win.some.package")
    with console.show_log_messages():
        log.info("two files are read again")
        log.warning("%s is ignored", "dev.json")
        log.debug("debug messages are hidden")
    log.info("messages after the command are hidden")
    assert capsys.readouterr().err == "two files are read again\nwarning: dev.json is ignored\n"


def test_log_message_does_not_break_progress_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.show_log_messages(), Progress("training", 2, "update"):
        logging.getLogger("mmf_win").warning("update 1: validation AUROC 0.7")
    console.print_status("done")
    output = capsys.readouterr().err
    assert "\rwarning: update 1: validation AUROC 0.7\n" in output, "the bar must be cleared before the line"
    assert output.endswith("\ndone\n")

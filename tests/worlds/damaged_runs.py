"""Commands that read runs, run on two runs, one of which has a damaged file."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from mmf_win.cli import main
from mmf_win.files import write_json
from mmf_win.runs.folder import Run
from tests.worlds import report_world
from tests.worlds.torch_files import write_checkpoint

# Replacements for values in JSON files.
_BAD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**40, 1.5, float("nan"), float("inf"), -float("inf"), 1e300, "", "text",
    "\ud800", "\x1b[2J\0",
    [], [1, "a", None], {}, {"a": {"b": 1}}, {"split": 1, "rows": "x"}, "9" * 5000,
)  # fmt: skip
_REPORT_FILES = ("metrics.json", "events.jsonl", "request.json", ".csv", "exit.json")


class DamagedRuns:
    """Two runs with files of all kinds, of which copies are damaged repeatedly."""

    def __init__(self, folder: Path) -> None:
        self._intact, self._copy, self._missing_folder = (folder / "intact", folder / "copy", folder / "nothing")
        self._first, self._second = _make_runs(self._intact)
        files = (path for path in self._first.path.rglob("*") if path.is_file())
        self._names = sorted(path.relative_to(self._intact) for path in files)

    def find_failures(self, random: Random, *, with_reports: bool) -> list[str]:
        """Damage a random file of the first run and return the failures of all commands.

        A failure is neither success nor one clear error.

        Args:
            random: Random numbers.
            with_reports: Also run `mmfw report`, which takes seconds and needs the extra `report`.
        """
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._intact, self._copy)
        file = random.choice(self._names)
        damage = damage_file(self._copy / file, random)
        first, second = self._first.id, self._second.id
        data = ["--data-dir", str(self._missing_folder)]
        listing = ["runs", "--format", "csv"]
        commands = [
            listing,
            ["runs"],
            ["runs", "--json"],
            ["runs", "show", first],
            ["runs", "show", first, "--json"],
            ["runs", "show", "--verify", first],
            ["runs", "compare", first, second],
            ["verify", "runs", *data],
            ["predict", first, "--no-report", *data],
            ["train", "--resume", first, *data],
        ]
        if with_reports and file.name.endswith(_REPORT_FILES):
            commands += [["report", first, "--no-images"], ["report", first, second]]
        failures = []
        for arguments in (*commands, ["runs", "rm", first, "--yes"]):
            code, output, errors = run_command([*arguments, "--save-dir", str(self._copy / "save")])
            is_handled = code in (0, 2, 3) and errors.count("error:") == (code != 0)
            if arguments == listing:
                listed = {line["id"]: line for line in csv.DictReader(io.StringIO(output))}
                is_handled &= code == 0 and listed[second]["state"] == "done"
                is_handled &= first in listed or (file.name, damage) == ("request.json", "removed")
            if not is_handled:
                failures.append(f"{file.name}: {damage}: {' '.join(arguments)}: {code}\n{errors[-1500:]}")
        return failures


def run_command(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command and return its exit code, stdout and stderr."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(arguments)
    return code, output.getvalue(), errors.getvalue()


def _make_runs(folder: Path) -> tuple[Run, Run]:
    world = report_world.make(folder, groups=2, draw_images=False)
    runs = world.add_run("a"), world.add_run("b", config="other.yaml")
    for run in runs:
        record: dict[str, Any] = {"auroc": 0.75, "accuracy": 0.5, "created": 1e9}
        record |= {"threshold": 0.5, "threshold_from": "default"}
        record |= {"intervals": {"auroc": [0.5, 0.9], "accuracy": [0.3, 0.7]}, "split": report_world.SPLIT}
        record |= {"rows": 8, "labelled": 8, "hateful": 4, "full_rows": 10, "ensemble": None}
        record |= {"members": [{"run": run.id, "checkpoint": "best.ckpt", "checkpoint_sha256": "00"}]}
        record |= {"annotations": str(world.dataset.annotation_file(report_world.SPLIT))}
        record |= {"versions": {"mmfw": "1", "torch": "2"}}
        write_json(world.add_predictions(run).with_suffix(".metrics.json"), record)
        write_checkpoint(run.checkpoints / "best.ckpt", 10)
        write_checkpoint(run.checkpoints / "current.ckpt", 20)
        (run.checkpoints / "config.yaml").write_text("training:\n  seed: 1\n", encoding="utf-8")
        write_json(run.create_attempt().request_file, {"action": "train"})
        run.training_lock_file.touch()
        run.log.touch()
    return runs


def damage_file(file: Path, random: Random) -> str:
    """Damage a file and return the kind of damage."""
    content = file.read_bytes()
    kinds = {
        "empty": lambda: b"",
        "truncated": lambda: content[: random.randrange(max(1, len(content)))],
        "zeros": lambda: bytes(len(content)),
        "a byte": lambda: _change_byte(content, random),
        "not UTF-8": lambda: b"\xff\xfe" + content,
        "twice": lambda: content + content,
        "deep list": lambda: b"[" * 100_000 + b"]" * 100_000 + b"\n",
        "deep object": lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
        "another value": lambda: json.dumps(random.choice(_BAD_VALUES)).encode() + b"\n",
        "huge line": lambda: json.dumps({"kind": "note", "text": "x" * 3_000_000}).encode() + b"\n",
    }
    if file.suffix in (".json", ".jsonl"):
        for _ in range(2 * len(kinds)):
            kinds[f"values {len(kinds)}"] = lambda: _change_json_values(content, random)
    kind = random.choice([*kinds, "folder", "removed"])
    if kind in ("folder", "removed"):
        file.unlink()
        if kind == "folder":
            file.mkdir()
        return kind
    file.write_bytes(kinds[kind]())
    return kind


def _change_byte(content: bytes, random: Random) -> bytes:
    offset = random.randrange(max(1, len(content)))
    return content[:offset] + bytes([random.randrange(256)]) + content[offset + 1 :]


def _change_json_values(content: bytes, random: Random) -> bytes:
    """Replace or remove one to three values of a JSON document or of JSON lines."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    values = [json.loads(line) for line in lines]
    for _ in range(random.randint(1, 3)):
        row = random.randrange(len(values))
        if isinstance(values[row], (dict, list)):
            _change_nested_value(values[row], random)
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def _change_nested_value(value: Any, random: Random) -> None:
    locations = list(_iter_containers(value))
    if not locations:
        return
    container, key = random.choice(locations)
    if random.random() < 0.15:
        del container[key]
    else:
        container[key] = deepcopy(random.choice(_BAD_VALUES))


def _iter_containers(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _iter_containers(inner)

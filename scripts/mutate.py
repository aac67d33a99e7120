"""Change the code in small ways, one at a time, and see whether its tests notice.

python scripts/mutate.py run                              all mutants of tests/mutants
python scripts/mutate.py run tests/mutants/random.json    those of one file
python scripts/mutate.py run staging-undo-in-order        one mutant, by its id
python scripts/mutate.py draw --seed 4 --count 42         draw others from the code

A mutant lives in a copy of the checkout, which is left alone, and its tests run there as far as the first
failure. It is killed when they fail and survives when they pass. Use a Python with the extra `dev`, such as
that of `.venv-test`. The exit code is 1 when a mutant survives that is not marked as equivalent, and 2 when
tests fail on unchanged code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from _draw_mutants import draw_mutants

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "tests" / "mutants"


class Mutant(NamedTuple):
    """A change that the tests have to notice.

    Attributes:
        id: its name.
        file: the changed file, relative to the checkout.
        old, new: the text before and after; ``old`` occurs once in the file.
        tests: the files, folders or ids of the tests that have to notice it.
        loss: what a user would lose by such a fault; may be empty.
        equivalent: why no test can notice it; empty where one can.
        wide: whether its tests are part of the full matrix alone.
    """

    id: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    loss: str = ""
    equivalent: str = ""
    wide: bool = False


def read_mutants(path: Path) -> list[Mutant]:
    """Read a file of mutants, in which a text of several lines is a list."""
    return [_parse_mutant(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _parse_mutant(entry: dict[str, Any]) -> Mutant:
    return Mutant(
        **{
            **entry,
            "old": _join_lines(entry["old"]),
            "new": _join_lines(entry["new"]),
            "tests": tuple(entry["tests"]),
        }
    )


def _join_lines(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "\n".join(lines)


def select_mutants(names: Sequence[str]) -> list[Mutant]:
    """Return the mutants of these files and with these ids, or all if there are none.

    Raises:
        SystemExit: a name is neither a file nor an id.
    """
    every = [mutant for path in sorted(MUTANTS.glob("*.json")) for mutant in read_mutants(path)]
    if not names:
        return every
    by_id, chosen = {mutant.id: mutant for mutant in every}, list[Mutant]()
    for name in names:
        if name in by_id:
            chosen.append(by_id[name])
        elif name.endswith(".json") and Path(name).is_file():
            chosen += read_mutants(Path(name))
        else:
            sys.exit(f"{name}: neither a file of mutants nor the id of one in {MUTANTS.relative_to(ROOT)}")
    return chosen


class MutantResult(NamedTuple):
    """How the tests of a mutant ended.

    Attributes:
        outcome: ``killed``, ``survived`` or ``timed out``.
        seconds: how long they took.
        test: the first that failed.
        output: what pytest printed.
    """

    outcome: str
    seconds: float
    test: str
    output: str


class CheckoutCopy:
    """A copy of the checkout, in which code may be changed.

    Args:
        folder: an empty folder.
        timeout: seconds after which tests are ended.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        self._folder = folder
        self._timeout = timeout
        for name in _list_checkout_files():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy)

    def run_tests(self, tests: Iterable[str], *, wide: bool) -> MutantResult:
        """Run tests as far as the first failure; all processes that they start import the copy.

        Args:
            tests: as in :class:`Mutant`.
            wide: also those of the full matrix.
        """
        options = ["-x", "-q", "-p", "no:cacheprovider", *(() if wide else ("-m", "not wide"))]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self._folder)}
        start = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                outcome = "killed" if process.wait(self._timeout) else "survived"
            except subprocess.TimeoutExpired:
                outcome = "timed out"
            finally:
                _kill_tests(process)
            output.seek(0)
            text = output.read().decode(errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
        return MutantResult(outcome, time.monotonic() - start, failed[1] if failed else "", text)

    @contextmanager
    def apply_mutant(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant for a while.

        Raises:
            SystemExit: its old text does not occur exactly once.
        """
        path = self._folder / mutant.file
        text = path.read_bytes().decode()
        if text.count(mutant.old) != 1:
            sys.exit(
                f"{mutant.id}: its old text occurs {text.count(mutant.old)} times in {mutant.file}, not once"
            )
        self._write(path, text.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            self._write(path, text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_bytes(text.encode())
        # It is told from the old one by size and whole seconds alone.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _list_checkout_files() -> list[str]:
    """Return the names of all files that git does not ignore, and of the built extension."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    built = (path for suffix in ("so", "pyd") for path in (ROOT / "mmf_win").rglob(f"*.{suffix}"))
    names = [*listed, *(path.relative_to(ROOT).as_posix() for path in built)]
    return [name for name in names if (ROOT / name).is_file()]


def _kill_tests(process: subprocess.Popen[bytes]) -> None:
    """Kill tests that are still running, with their children where the system has process groups."""
    if process.poll() is None:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_mutants(mutants: Sequence[Mutant], timeout: float, *, verbose: bool = False) -> int:
    """Try mutants and print what became of them.

    Returns:
        The exit code.
    """
    survivors, passing = list[Mutant](), set[tuple[str, bool]]()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        checkout = CheckoutCopy(Path(folder), timeout)
        for mutant in mutants:
            if mutant.equivalent:
                print(f"equivalent  {mutant.id}", flush=True)
                continue
            if untried := [test for test in mutant.tests if (test, mutant.wide) not in passing]:
                result = checkout.run_tests(untried, wide=mutant.wide)
                if result.outcome != "survived":
                    print(f"{result.output}\non unchanged code, these tests do not pass: {' '.join(untried)}")
                    return 2
                passing.update((test, mutant.wide) for test in untried)
            with checkout.apply_mutant(mutant):
                result = checkout.run_tests(mutant.tests, wide=mutant.wide)
            print(f"{result.outcome:10}  {mutant.id}  {result.seconds:.0f} s  {result.test}", flush=True)
            if verbose:
                print(result.output, flush=True)
            if result.outcome == "survived":
                survivors.append(mutant)
    for mutant in survivors:
        print(f"\n{mutant.id} survived, in {mutant.file}", *filter(None, [mutant.loss]), sep=": ")
        print(indent(mutant.old, "- "), indent(mutant.new, "+ "), sep="\n")
    return 1 if survivors else 0


def main() -> int:
    """Run or draw mutants, as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run the tests of mutants")
    running.add_argument("names", nargs="*", metavar="FILE|ID", help="all of tests/mutants if none")
    running.add_argument("--timeout", type=float, default=600, help="seconds per mutant (default 600)")
    running.add_argument("--verbose", action="store_true", help="print what pytest prints")
    drawing = commands.add_parser("draw", help="draw mutants at random and print them")
    drawing.add_argument("--seed", type=int, required=True, help="it determines the drawing")
    drawing.add_argument("--count", type=int, default=42, help="how many (default 42)")
    asked = parser.parse_args()
    if asked.command == "draw":
        print(json.dumps(draw_mutants(ROOT, asked.seed, asked.count), indent=2, ensure_ascii=False))
        return 0
    # A shell ignores it for what it starts in the background, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that tests which still run are ended
    return run_mutants(select_mutants(asked.names), asked.timeout, verbose=asked.verbose)


if __name__ == "__main__":
    sys.exit(main())

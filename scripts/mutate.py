"""Change the code in small ways, one at a time, and check that its tests fail.

python scripts/mutate.py run                              all mutants of tests/mutants
python scripts/mutate.py run tests/mutants/random.json    the mutants of one file
python scripts/mutate.py run staging-undo-in-order        one mutant, by its ID
python scripts/mutate.py draw --seed 4 --count 42         draw other mutants from the code

A mutant is applied to a copy of the checkout, and its tests run there until the first failure. It is killed
if they fail and survives if they pass. Use a Python with the extra `dev`, such as that of `.venv-test`. The
exit code is 1 if a mutant survives that is not marked as equivalent, and 2 if tests fail on unchanged code.
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
    """Change that the tests should detect.

    Attributes:
        id: Name of the mutant.
        file: The changed file, relative to the checkout.
        old: The text before, which occurs once in the file.
        new: The text after.
        tests: Files, folders or IDs of the tests that should detect it.
        loss: The damage of such a fault for a user; may be empty.
        equivalent: The reason why no test can detect it; otherwise empty.
        wide: Its tests run only in the full matrix.
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
        **{**entry, "old": _join_lines(entry["old"]), "new": _join_lines(entry["new"]), "tests": tuple(entry["tests"])}
    )


def _join_lines(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "\n".join(lines)


def select_mutants(names: Sequence[str]) -> list[Mutant]:
    """Return the mutants of these files and with these IDs, or all mutants if there are no names.

    Raises:
        SystemExit: A name is neither a file nor an ID.
    """
    all_mutants = [mutant for path in sorted(MUTANTS.glob("*.json")) for mutant in read_mutants(path)]
    if not names:
        return all_mutants
    by_id, selected = {mutant.id: mutant for mutant in all_mutants}, list[Mutant]()
    for name in names:
        if name in by_id:
            selected.append(by_id[name])
        elif name.endswith(".json") and Path(name).is_file():
            selected += read_mutants(Path(name))
        else:
            sys.exit(f"{name}: neither a file of mutants nor a mutant's ID in {MUTANTS.relative_to(ROOT)}")
    return selected


class MutantResult(NamedTuple):
    """Result of the tests of a mutant.

    Attributes:
        outcome: ``killed``, ``survived`` or ``timed out``.
        seconds: Duration of the tests.
        test: The first failed test.
        output: The output of pytest.
    """

    outcome: str
    seconds: float
    test: str
    output: str


class CheckoutCopy:
    """Copy of the checkout, in which code may be changed.

    Args:
        folder: An empty folder.
        timeout: Seconds after which tests are killed.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        self._folder = folder
        self._timeout = timeout
        for name in _list_checkout_files():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy)

    def run_tests(self, tests: Iterable[str], *, wide: bool) -> MutantResult:
        """Run tests until the first failure; all processes that they start import the copy.

        Args:
            tests: The tests, as in :class:`Mutant`.
            wide: Also run tests of the full matrix.

        Returns:
            The result.
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
        """Apply a mutant while the block runs.

        Raises:
            SystemExit: Its old text does not occur exactly once.
        """
        path = self._folder / mutant.file
        text = path.read_bytes().decode()
        if text.count(mutant.old) != 1:
            sys.exit(f"{mutant.id}: its old text occurs {text.count(mutant.old)} times in {mutant.file}, not once")
        self._write(path, text.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            self._write(path, text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_bytes(text.encode())
        # Python compares only the size and the modification time in seconds with those of the bytecode.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _list_checkout_files() -> list[str]:
    """Return the names of all files that git does not ignore, and of the compiled extension."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    built = (path for suffix in ("so", "pyd") for path in (ROOT / "mmf_win").rglob(f"*.{suffix}"))
    names = [*listed, *(path.relative_to(ROOT).as_posix() for path in built)]
    return [name for name in names if (ROOT / name).is_file()]


def _kill_tests(process: subprocess.Popen[bytes]) -> None:
    """Kill running tests, with their child processes if the system has process groups."""
    if process.poll() is None:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_mutants(mutants: Sequence[Mutant], timeout: float, *, verbose: bool = False) -> int:
    """Run the tests of mutants and print the results.

    Returns:
        The exit code.
    """
    survivors, passing_tests = list[Mutant](), set[tuple[str, bool]]()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        checkout = CheckoutCopy(Path(folder), timeout)
        for mutant in mutants:
            if mutant.equivalent:
                print(f"equivalent  {mutant.id}", flush=True)
                continue
            if new_tests := [test for test in mutant.tests if (test, mutant.wide) not in passing_tests]:
                result = checkout.run_tests(new_tests, wide=mutant.wide)
                if result.outcome != "survived":
                    print(f"{result.output}\non unchanged code, these tests do not pass: {' '.join(new_tests)}")
                    return 2
                passing_tests.update((test, mutant.wide) for test in new_tests)
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
    """Run or draw mutants; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run", help="run the tests of mutants")
    run_parser.add_argument("names", nargs="*", metavar="FILE|ID", help="all of tests/mutants if none")
    run_parser.add_argument("--timeout", type=float, default=600, help="seconds per mutant (default 600)")
    run_parser.add_argument("--verbose", action="store_true", help="print what pytest prints")
    draw_parser = commands.add_parser("draw", help="draw mutants at random and print them")
    draw_parser.add_argument("--seed", type=int, required=True, help="seed of the random choice")
    draw_parser.add_argument("--count", type=int, default=42, help="number of mutants (default 42)")
    options = parser.parse_args()
    if options.command == "draw":
        print(json.dumps(draw_mutants(ROOT, options.seed, options.count), indent=2, ensure_ascii=False))
        return 0
    # A shell ignores SIGINT for background jobs, and processes that the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that running tests are killed
    return run_mutants(select_mutants(options.names), options.timeout, verbose=options.verbose)


if __name__ == "__main__":
    sys.exit(main())

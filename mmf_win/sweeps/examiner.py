"""Tables of experiments for notebooks, with the interface of mlrunner's ``Examiner``."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mmf_win.errors import DataError, UsageError
from mmf_win.threads import wait_for_result
from mmf_win.upstream.install import require_packages

if TYPE_CHECKING:
    import pandas

_log = logging.getLogger(__name__)


class Experiment(NamedTuple):
    """What is known of one task.

    Attributes:
        cache: whatever parsers want to keep.
        metric: what they found, by the columns of the table.
        param: the task's parameters; those that begin with ``_`` are about the run and in no table.
    """

    cache: dict[str, Any]
    metric: dict[str, Any]
    param: dict[str, Any]


#: Reads a task's folder into its experiment; the last argument is for what all experiments share.
Parser: TypeAlias = Callable[[Path, Experiment, dict[str, Any]], object]


class Examiner:
    """Runs parsers over the folders of tasks, and makes a table of what they found.

    A task's folder has a file ``param``, a YAML mapping; docs/sweeps.md has an example.

    Attributes:
        experiments: by the names of their folders.
        caches: what parsers share.
    """

    def __init__(self) -> None:
        self.experiments: dict[str, Experiment] = {}
        self.caches: dict[str, Any] = {}
        self._parsers: list[Parser] = []

    def add(self, func: Parser) -> Parser:
        """Have a parser run after those that were added before; also a decorator. Adding it twice is once."""
        if func not in self._parsers:
            self._parsers.append(func)
        return func

    def exam(
        self, output: Path | str = "output", regex: str = ".*", verbose: bool = False, workers: int = -1
    ) -> None:
        """Run the parsers over folders, in the order of their names; those without ``param`` are skipped.

        Args:
            output: what has the folders.
            regex: found in the names of those to read.
            verbose: whether to print their names.
            workers: how many folders to read at a time, in threads. Parsers then get ``caches`` of their own,
                which are merged in the order of the folders, so that no two write to the same dictionary.

        Raises:
            UsageError: ``output`` is no folder, or ``regex`` is invalid.
            DataError: a ``param`` is invalid or a parser failed, whose own error is the cause.
        """
        found = self._iter_experiments(Path(output), regex, verbose)
        if workers <= 0:
            for path, experiment in found:
                self._run_parsers(path, experiment, self.caches)
            return
        with ThreadPoolExecutor(workers, "mmfw-examiner") as pool:
            try:
                jobs = [pool.submit(self._run_parsers, path, experiment, {}) for path, experiment in found]
                for job in jobs:
                    caches = wait_for_result(job)
                    self.caches.update(caches)
            finally:
                pool.shutdown(cancel_futures=True)

    def table(self, concise: bool = True, print_tsv: bool = False) -> pandas.DataFrame:
        """One row an experiment: its parameters, then its metrics, each sorted by name.

        Args:
            concise: leave out the parameters that have a single value.
            print_tsv: also print it, separated by tabs.

        Raises:
            MmfError: pandas is not installed.
        """
        require_packages("pandas", extra="[notebook]")
        import pandas

        experiments = self.experiments.values()
        values: dict[str, list[Any]] = defaultdict(list)
        for experiment in experiments:
            for name, value in experiment.param.items():
                if not name.startswith("_") and value not in values[name]:
                    values[name].append(value)
        params = sorted(name for name, different in values.items() if len(different) > 1 or not concise)
        metrics = sorted({name for experiment in experiments for name in experiment.metric})
        rows = [
            [one.param.get(name) for name in params] + [one.metric.get(name) for name in metrics]
            for one in experiments
        ]
        if print_tsv:
            print(*params, *metrics, sep="\t")
            for row in rows:
                print(*row, sep="\t")
        return pandas.DataFrame(rows, columns=[*params, *metrics])

    def _iter_experiments(self, output: Path, regex: str, verbose: bool) -> Iterator[tuple[Path, Experiment]]:
        import yaml

        if not output.is_dir():
            raise UsageError(f"{output}: there is no such folder")
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise UsageError(f"the regular expression {regex!r} is invalid: {error}") from None
        folders = (path for path in output.iterdir() if path.is_dir() and pattern.search(path.name))
        for path in sorted(folders, key=lambda path: path.name):
            try:
                params = yaml.safe_load((path / "param").read_text(encoding="utf-8"))
            except FileNotFoundError:
                params = None
            except (yaml.YAMLError, ValueError, RecursionError) as error:
                raise DataError(f"{path / 'param'}: {' '.join(str(error).split())}") from None
            if params is None:  # or the task has just begun, and none are written yet
                _log.warning("%s: there is no task in it: no parameters in a file param", path)
                continue
            if not isinstance(params, dict):
                raise DataError(f"{path / 'param'}: it has no parameters but {params!r:.60}")
            if verbose:
                print(path.name, flush=True)
            experiment = self.experiments.setdefault(path.name, Experiment({}, {}, {}))
            experiment.param.update({str(name): value for name, value in params.items()})
            yield path, experiment

    def _run_parsers(self, path: Path, experiment: Experiment, caches: dict[str, Any]) -> dict[str, Any]:
        for parser in self._parsers:
            try:
                parser(path, experiment, caches)
            except Exception as error:
                name = getattr(parser, "__name__", repr(parser))
                why = f"{type(error).__name__}: {error}".rstrip(": ")
                raise DataError(f"{path}: the parser {name} failed: {why}") from error
        return caches


def latest_log(command: str, path: Path | str, index: int = -1) -> Path | None:
    """The newest log of one of a task's commands, or another one, as in a list from the oldest to the newest.

    Args:
        command: its name.
        path: the task's folder.
        index: which one; None is returned where there are not so many.
    """
    logs = sorted(Path(path).glob(f"log.{command}.*"))
    return logs[index] if -len(logs) <= index < len(logs) else None

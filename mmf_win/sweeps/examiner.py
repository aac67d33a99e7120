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
    """Data of one task.

    Attributes:
        cache: Values that parsers keep for other parsers.
        metric: Metrics found by the parsers; each is a column of the table.
        param: Parameters of the task. Names that begin with ``_`` describe the run and are not in the table.
    """

    cache: dict[str, Any]
    metric: dict[str, Any]
    param: dict[str, Any]


#: Reads a task's folder into its experiment; the last argument is shared by all experiments.
Parser: TypeAlias = Callable[[Path, Experiment, dict[str, Any]], object]


class Examiner:
    """Examiner of task folders: runs parsers over them and builds a table of the results.

    A task folder contains a file ``param``, a YAML mapping; docs/sweeps.md has an example.

    Attributes:
        experiments: Experiments by folder name.
        caches: Values shared by the parsers.
    """

    def __init__(self) -> None:
        self.experiments: dict[str, Experiment] = {}
        self.caches: dict[str, Any] = {}
        self._parsers: list[Parser] = []

    def add(self, func: Parser) -> Parser:
        """Register a parser and return it, also as a decorator; parsers run in the order of registration, each once."""
        if func not in self._parsers:
            self._parsers.append(func)
        return func

    def exam(self, output: Path | str = "output", regex: str = ".*", verbose: bool = False, workers: int = -1) -> None:
        """Run the parsers over task folders, sorted by name; folders without ``param`` are skipped.

        Args:
            output: Folder that contains the task folders.
            regex: Pattern to find in the names of the folders to read.
            verbose: Print the names of these folders.
            workers: Number of threads; no threads are used unless it is positive. In threads, parsers get a
                separate ``caches`` for each folder, and these are merged in the order of the folders, so that
                no two threads write to the same dictionary.

        Raises:
            UsageError: ``output`` is not a folder, or ``regex`` is invalid.
            DataError: A ``param`` file is invalid, or a parser failed; the parser's exception is the cause.
        """
        experiments = self._iter_experiments(Path(output), regex, verbose)
        if workers <= 0:
            for path, experiment in experiments:
                self._run_parsers(path, experiment, self.caches)
            return
        with ThreadPoolExecutor(workers, "mmfw-examiner") as pool:
            try:
                jobs = [pool.submit(self._run_parsers, path, experiment, {}) for path, experiment in experiments]
                for job in jobs:
                    caches = wait_for_result(job)
                    self.caches.update(caches)
            finally:
                pool.shutdown(cancel_futures=True)

    def table(self, concise: bool = True, print_tsv: bool = False) -> pandas.DataFrame:
        """Build a table of the experiments.

        Args:
            concise: Omit parameters that have a single value.
            print_tsv: Also print the table, separated by tabs.

        Returns:
            One row per experiment: its parameters, then its metrics, each sorted by name.

        Raises:
            MmfEnvironmentError: pandas is not installed.
        """
        require_packages("pandas", extra="[notebook]")
        import pandas

        experiments = self.experiments.values()
        values: dict[str, list[Any]] = defaultdict(list)
        for experiment in experiments:
            for name, value in experiment.param.items():
                if not name.startswith("_") and value not in values[name]:
                    values[name].append(value)
        params = sorted(name for name, distinct in values.items() if len(distinct) > 1 or not concise)
        metrics = sorted({name for experiment in experiments for name in experiment.metric})
        rows = [
            [experiment.param.get(name) for name in params] + [experiment.metric.get(name) for name in metrics]
            for experiment in experiments
        ]
        if print_tsv:
            print(*params, *metrics, sep="\t")
            for row in rows:
                print(*row, sep="\t")
        return pandas.DataFrame(rows, columns=[*params, *metrics])

    def _iter_experiments(self, output: Path, regex: str, verbose: bool) -> Iterator[tuple[Path, Experiment]]:
        import yaml

        if not output.is_dir():
            raise UsageError(f"{output}: folder not found", hint="check the path")
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise UsageError(f"invalid regular expression {regex!r}: {error}") from None
        folders = (path for path in output.iterdir() if path.is_dir() and pattern.search(path.name))
        for path in sorted(folders, key=lambda path: path.name):
            try:
                params = yaml.safe_load((path / "param").read_text(encoding="utf-8"))
            except FileNotFoundError:
                params = None
            except (yaml.YAMLError, ValueError, RecursionError) as error:
                raise DataError(f"{path / 'param'}: {' '.join(str(error).split())}") from None
            if params is None:  # not a task, or one that has just started
                _log.warning("%s: skipped, because no file param with parameters was found", path)
                continue
            if not isinstance(params, dict):
                raise DataError(f"{path / 'param'}: not a mapping of parameters: {params!r:.60}")
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
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
                raise DataError(f"{path}: parser {name} failed: {reason}") from error
        return caches


def latest_log(command: str, path: Path | str, index: int = -1) -> Path | None:
    """Return the newest log of a task's command, or an older one.

    Args:
        command: Name of the command.
        path: Folder of the task.
        index: Index in the list of logs, the oldest first.

    Returns:
        The log, or ``None`` if the index is out of range.
    """
    logs = sorted(Path(path).glob(f"log.{command}.*"))
    return logs[index] if -len(logs) <= index < len(logs) else None

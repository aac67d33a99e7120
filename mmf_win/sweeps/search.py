"""Search by Optuna: proposes the parameters of further tasks, and prunes runs with poor results."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmf_win.errors import DataError, UsageError
from mmf_win.locking import file_lock
from mmf_win.protocol import Event
from mmf_win.sweeps.folder import SweepFolder, Task, TaskState, load_task
from mmf_win.sweeps.planning import make_task
from mmf_win.sweeps.specification import OTHER_FOLDER_HINT, Specification
from mmf_win.sweeps.table import build_table, read_objective_value, validation_metrics

_log = logging.getLogger(__name__)

_MAX_TRIALS_WITHOUT_METRIC = 3
_MAX_REPETITIONS = 50  # consecutive known combinations that end a search
_RESTORE_HINT = f"restore the file from a backup, or start a new search: {OTHER_FOLDER_HINT}"
_REPETITION_ATTR = "repeats"  # marks a trial that repeats a known combination


class OptunaSearch:
    """Search of a sweep, with its Optuna study in the sweep's folder.

    Args:
        specification: Specification with a search.
        sweep: Folder of the sweep.
        tasks: Tasks that have started.

    Raises:
        UsageError: The folder contains the study of another search.
        DataError: The study cannot be read, or is missing although trials have run.
    """

    def __init__(self, specification: Specification, sweep: SweepFolder, tasks: Sequence[Task]) -> None:
        import optuna
        from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner
        from sqlalchemy import URL
        from sqlalchemy.exc import SQLAlchemyError

        assert specification.search is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        search = specification.search
        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        pruners: dict[str, Any] = {"none": NopPruner, "median": MedianPruner, "hyperband": HyperbandPruner}
        self._search, self._specification, self._sweep = search, specification, sweep
        self._tasks_by_key = {task.key: task for task in tasks}
        self._trials_without_metric = 0  # successful trials without the metric
        self._optuna = optuna
        url = URL.create("sqlite", database=str(sweep.study)).render_as_string()
        try:
            with file_lock(sweep.study_lock, math.inf):
                self._study = optuna.create_study(
                    study_name="sweep",
                    storage=optuna.storages.RDBStorage(url),
                    pruner=pruners[search.pruner](),
                    direction=search.direction,
                    load_if_exists=True,
                )
        except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
            raise DataError(f"{sweep.study}: {str(error).splitlines()[0]}", hint=_RESTORE_HINT) from None
        if self._study.direction.name.lower() != search.direction:
            message = f"{sweep.study} belongs to a search with direction {self._study.direction.name.lower()}"
            raise UsageError(message, hint=OTHER_FOLDER_HINT)
        # A continued search must not draw the same values again.
        trial_count = len(self._study.get_trials(deepcopy=False))
        if not trial_count and any(task.trial is not None for task in tasks):
            message = f"{sweep.study} is missing; without it, finished trials would run again"
            raise DataError(message, hint=_RESTORE_HINT)
        seed = None if search.seed is None else search.seed + trial_count
        self._study.sampler = samplers[search.sampler](seed=seed)

    def list_unstarted_tasks(self) -> list[Task]:
        """Return the tasks of proposed trials that no driver has started.

        The outcomes of ended trials that were not recorded in the study are recorded now.

        Returns:
            The tasks, in the order of their trials.
        """
        unstarted = []
        for trial in self._list_trials():
            if trial.state.is_finished() or trial.params.keys() != self._search.parameters.keys():
                continue  # a driver died while it chose the values
            task = self._task_from_trial(trial)
            known_task = self._tasks_by_key.get(task.key)
            if known_task is None:
                unstarted.append(self._tasks_by_key.setdefault(task.key, task))
            elif known_task.trial == trial.number and known_task.state not in ("queued", "running"):
                self.record_outcome(known_task)
        return unstarted

    def propose_task(self) -> Task | None:
        """Return the task of a new trial, or ``None`` if there are enough trials.

        Raises:
            UsageError: The study does not allow the values of the search.
        """
        with file_lock(self._sweep.study_lock, math.inf):
            for _ in range(_MAX_REPETITIONS):
                trials = self._list_trials()
                if len({json.dumps(trial.params, sort_keys=True) for trial in trials}) >= self._search.trials:
                    return None
                trial = self._study.ask()
                try:
                    for name, domain in self._search.parameters.items():
                        _suggest_value(trial, name, domain)
                except ValueError as error:
                    raise UsageError(f"{self._sweep.study}: {error}", hint=OTHER_FOLDER_HINT) from None
                task = self._task_from_trial(trial)
                tasks_by_key = self._tasks_by_key | {other.key: other for other in map(self._task_from_trial, trials)}
                if task.key not in tasks_by_key:
                    self._tasks_by_key[task.key] = task
                    return task
                trial.set_user_attr(_REPETITION_ATTR, value=True)
                folder = self._sweep.task_folder(tasks_by_key[task.key].name)
                ended_task = load_task(folder)
                state = ended_task.state if ended_task and ended_task.key == task.key else "failed"
                self._finish_trial(trial.number, state, read_objective_value(self._search, folder))
        return None  # almost all combinations are used

    def _task_from_trial(self, trial: Any) -> Task:
        parameters = {name: trial.params[name] for name in self._search.parameters if name in trial.params}
        return replace(make_task(self._specification, parameters), order=trial.number, trial=trial.number)

    def _list_trials(self) -> list[Any]:
        """Return the valid trials: no repetitions, and none that was aborted while its values were chosen."""
        names = self._search.parameters.keys()
        started = {task.trial for task in self._tasks_by_key.values()}
        trials = (trial for trial in self._study.get_trials(deepcopy=False) if trial.params)
        trials = (trial for trial in trials if _REPETITION_ATTR not in trial.user_attrs)
        return [t for t in trials if t.params.keys() == names or t.state.is_finished() or t.number in started]

    def should_prune(self, task: Task, event: Event) -> bool:
        """Return whether a task should be stopped after this validation."""
        value = validation_metrics(event).get(self._search.metric) if event["kind"] == "val" else None
        if value is None or event.get("final") or self._search.pruner == "none":
            return False
        if (frozen_trial := self._find_trial(task)) is None:
            return False
        trial = self._optuna.trial.Trial(self._study, frozen_trial._trial_id)
        trial.report(value, event["update"])
        return bool(trial.should_prune())

    def record_outcome(self, task: Task) -> None:
        """Record the outcome of a task in the study.

        Raises:
            UsageError: Several trials succeeded, but none has the metric.
        """
        value = read_objective_value(self._search, self._sweep.task_folder(task.name))
        with file_lock(self._sweep.study_lock, math.inf):  # other drivers may record it at the same time
            trial = self._find_trial(task)
            if trial is not None:
                self._finish_trial(trial.number, task.state, value)
        self._trials_without_metric += task.state == "success" and value is None
        if self._trials_without_metric >= min(_MAX_TRIALS_WITHOUT_METRIC, self._search.trials):
            metric = self._search.metric  # build_table raises if there are other metrics
            if not any(metric in row.metrics for row in build_table(self._sweep, metric=metric)):
                raise UsageError(f"the first {self._trials_without_metric} trials have no metric {metric}")

    def _find_trial(self, task: Task) -> Any:
        """Return the trial of a task, or ``None`` if the study has none with its values."""
        trials = (trial for trial in self._study.get_trials(deepcopy=False) if trial.number == task.trial)
        return next((trial for trial in trials if self._task_from_trial(trial).key == task.key), None)

    def _finish_trial(self, number: int, state: TaskState, value: float | None) -> None:
        if state == "success" and (value is None or not math.isfinite(value)):
            _log.warning("trial %d has no finite %s and counts as failed", number, self._search.metric)
            state = "failed"
        states = self._optuna.trial.TrialState
        trial_state = {"success": states.COMPLETE, "pruned": states.PRUNED}.get(state, states.FAIL)
        self._study.tell(number, value if state == "success" else None, trial_state, skip_if_finished=True)


def _suggest_value(trial: Any, name: str, domain: Any) -> Any:
    if isinstance(domain, list):
        return trial.suggest_categorical(name, domain)
    low, high, log, step = domain["low"], domain["high"], domain.get("log", False), domain.get("step")
    if all(isinstance(bound, int) for bound in (low, high, step or 1)):
        return trial.suggest_int(name, low, high, log=log, step=step or 1)
    return trial.suggest_float(name, low, high, log=log, step=step)

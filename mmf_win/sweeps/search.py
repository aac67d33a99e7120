"""Lets Optuna choose the parameters of further tasks, and stop trainings that fall behind."""

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
from mmf_win.sweeps.table import build_table, objective_value, validation_metrics

_log = logging.getLogger(__name__)

_MAX_TRIALS_WITHOUT_METRIC = 3
_MAX_REPETITIONS = 50  # of known combinations, one after the other, that end a search
_RESTORE_HINT = f"put it back from a copy, or begin the search anew: {OTHER_FOLDER_HINT}"
_REPETITION_ATTR = "repeats"  # marks a trial that is one


class OptunaSearch:
    """The search of a specification that has one; Optuna keeps what it knows in the sweep's folder.

    Raises UsageError where that has the study of another search, and DataError where it cannot be read.
    """

    def __init__(self, specification: Specification, sweep: SweepFolder, tasks: Sequence[Task]) -> None:
        import optuna
        from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner
        from sqlalchemy import URL
        from sqlalchemy.exc import SQLAlchemyError

        assert specification.search is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        asked = specification.search
        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        pruners: dict[str, Any] = {"none": NopPruner, "median": MedianPruner, "hyperband": HyperbandPruner}
        self._search, self._specification, self._sweep = asked, specification, sweep
        self._tasks_by_key = {task.key: task for task in tasks}
        self._trials_without_metric = 0  # trials that ended well without the metric
        self._optuna = optuna
        url = URL.create("sqlite", database=str(sweep.study)).render_as_string()
        try:
            with file_lock(sweep.study_lock, math.inf):
                self._study = optuna.create_study(
                    study_name="sweep",
                    storage=optuna.storages.RDBStorage(url),
                    pruner=pruners[asked.pruner](),
                    direction=asked.direction,
                    load_if_exists=True,
                )
        except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
            raise DataError(f"{sweep.study}: {str(error).splitlines()[0]}", hint=_RESTORE_HINT) from None
        if self._study.direction.name.lower() != asked.direction:
            message = f"{sweep.study} is of a search that was to {self._study.direction.name.lower()}"
            raise UsageError(message, hint=OTHER_FOLDER_HINT)
        # A search that goes on must not draw again what it drew at first.
        drawn = len(self._study.get_trials(deepcopy=False))
        if not drawn and any(task.trial is not None for task in tasks):
            message = f"{sweep.study}: lost, and without it the trials that have run would be run again"
            raise DataError(message, hint=_RESTORE_HINT)
        seed = None if asked.seed is None else asked.seed + drawn
        self._study.sampler = samplers[asked.sampler](seed=seed)

    def list_unstarted_tasks(self) -> list[Task]:
        """The tasks of trials that were proposed before, and that nobody has begun.

        Trials that have ended while nobody told Optuna are told now.
        """
        found = []
        for trial in self._list_trials():
            if trial.state.is_finished() or trial.params.keys() != self._search.parameters.keys():
                continue  # a driver may have died while it chose them
            task = self._task_from_trial(trial)
            known = self._tasks_by_key.get(task.key)
            if known is None:
                found.append(self._tasks_by_key.setdefault(task.key, task))
            elif known.trial == trial.number and known.state not in ("queued", "running"):
                self.record_outcome(known)
        return found

    def propose_task(self) -> Task | None:
        """The task of the next trial that is no repetition; None where there are enough."""
        with file_lock(self._sweep.study_lock, math.inf):
            for _ in range(_MAX_REPETITIONS):
                others = self._list_trials()
                if len({json.dumps(trial.params, sort_keys=True) for trial in others}) >= self._search.trials:
                    return None
                trial = self._study.ask()
                try:
                    for name, domain in self._search.parameters.items():
                        _suggest_value(trial, name, domain)
                except ValueError as error:
                    raise UsageError(f"{self._sweep.study}: {error}", hint=OTHER_FOLDER_HINT) from None
                task = self._task_from_trial(trial)
                known = self._tasks_by_key | {
                    other.key: other for other in map(self._task_from_trial, others)
                }
                if task.key not in known:
                    self._tasks_by_key[task.key] = task
                    return task
                trial.set_user_attr(_REPETITION_ATTR, True)
                folder = self._sweep.task_folder(known[task.key].name)
                ended = load_task(folder)
                state = ended.state if ended is not None and ended.key == task.key else "failed"
                self._finish_trial(trial.number, state, objective_value(self._search, folder))
        return None  # there is hardly a combination left

    def _task_from_trial(self, trial: Any) -> Task:
        chosen = {name: trial.params[name] for name in self._search.parameters if name in trial.params}
        return replace(make_task(self._specification, chosen), order=trial.number, trial=trial.number)

    def _list_trials(self) -> list[Any]:
        """Return the trials that count; a choice of values that was refused or killed leaves others."""
        asked, tried = self._search.parameters.keys(), {task.trial for task in self._tasks_by_key.values()}
        found = (trial for trial in self._study.get_trials(deepcopy=False) if trial.params)
        found = (trial for trial in found if _REPETITION_ATTR not in trial.user_attrs)
        return [t for t in found if t.params.keys() == asked or t.state.is_finished() or t.number in tried]

    def should_prune(self, task: Task, event: Event) -> bool:
        """Whether a task is to be stopped after a validation."""
        value = validation_metrics(event).get(self._search.metric) if event["kind"] == "val" else None
        if value is None or event.get("final") or self._search.pruner == "none":
            return False
        if (proposed := self._find_trial(task)) is None:
            return False
        trial = self._optuna.trial.Trial(self._study, proposed._trial_id)
        trial.report(value, event["update"])
        return bool(trial.should_prune())

    def record_outcome(self, task: Task) -> None:
        """Learn how a task ended. Raises UsageError where several ended well, and none has the metric."""
        value = objective_value(self._search, self._sweep.task_folder(task.name))
        with file_lock(self._sweep.study_lock, math.inf):  # others may see it end, too
            trial = self._find_trial(task)
            if trial is not None:
                self._finish_trial(trial.number, task.state, value)
        self._trials_without_metric += task.state == "success" and value is None
        if self._trials_without_metric >= min(_MAX_TRIALS_WITHOUT_METRIC, self._search.trials):
            metric = self._search.metric  # which is refused with those that there are, if there are some
            if not any(metric in line.metrics for line in build_table(self._sweep, metric=metric)):
                raise UsageError(f"the first {self._trials_without_metric} trials have no {metric}")

    def _find_trial(self, task: Task) -> Any:
        """The trial of a task; None where it has none, or had it in a study that was lost."""
        trials = (trial for trial in self._study.get_trials(deepcopy=False) if trial.number == task.trial)
        return next((trial for trial in trials if self._task_from_trial(trial).key == task.key), None)

    def _finish_trial(self, number: int, state: TaskState, value: float | None) -> None:
        if state == "success" and (value is None or not math.isfinite(value)):
            _log.warning("trial %d has no finite %s, and counts as failed", number, self._search.metric)
            state = "failed"
        states = self._optuna.trial.TrialState
        ended = {"success": states.COMPLETE, "pruned": states.PRUNED}.get(state, states.FAIL)
        self._study.tell(number, value if state == "success" else None, ended, skip_if_finished=True)


def _suggest_value(trial: Any, name: str, domain: Any) -> Any:
    if isinstance(domain, list):
        return trial.suggest_categorical(name, domain)
    low, high, log, step = domain["low"], domain["high"], domain.get("log", False), domain.get("step")
    if all(isinstance(end, int) for end in (low, high, step or 1)):
        return trial.suggest_int(name, low, high, log=log, step=step or 1)
    return trial.suggest_float(name, low, high, log=log, step=step)

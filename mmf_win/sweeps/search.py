"""Lets Optuna choose the parameters of further tasks, and stop trainings that fall behind."""

from __future__ import annotations

import json
import logging
from typing import Any

from mmf_win.errors import MmfError
from mmf_win.protocol import Event
from mmf_win.sweeps.folder import TaskFolder
from mmf_win.sweeps.specification import Search, Specification
from mmf_win.sweeps.store import Row, State, Store
from mmf_win.sweeps.table import metrics_of, validation
from mmf_win.sweeps.tasks import task_of

_log = logging.getLogger(__name__)


class OptunaSearch:
    """The search of a specification; Optuna keeps what it knows beside the state.

    Args:
        specification: one with a search.
        store: where its tasks are queued.

    Raises:
        MmfError: Optuna is not installed.
    """

    def __init__(self, specification: Specification, store: Store) -> None:
        try:
            import optuna
            from sqlalchemy import URL
        except ImportError:
            raise MmfError("a search needs Optuna", hint="pip install mmf-win[search]") from None
        assert specification.search is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        asked = specification.search
        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        pruners: dict[str, Any] = {
            "none": optuna.pruners.NopPruner,
            "median": optuna.pruners.MedianPruner,
            "hyperband": optuna.pruners.HyperbandPruner,
        }
        self._asked, self._specification, self._store = asked, specification, store
        self._states = optuna.trial.TrialState
        self._trial_of = optuna.trial.Trial
        self._study = optuna.create_study(
            study_name="sweep",
            storage=optuna.storages.RDBStorage(
                URL.create("sqlite", database=str(store.folder.study)).render_as_string()
            ),
            pruner=pruners[asked.pruner](),
            direction=asked.direction,
            load_if_exists=True,
        )
        # A search that goes on must not draw again what it drew at first.
        drawn = len(self._study.get_trials(deepcopy=False))
        seed = None if asked.seed is None else asked.seed + drawn
        self._study.sampler = samplers[asked.sampler](seed=seed)

    def propose(self) -> Row | None:
        """Queue the next trial that is no repetition; None where there are as many as were asked for."""
        known = {row.key: row for row in self._store.rows()}
        while len(self._study.get_trials(deepcopy=False)) < self._asked.trials:
            trial = self._study.ask()
            if trial.number >= self._asked.trials:  # another driver was faster
                self._study.tell(trial, state=self._states.FAIL)
                break
            chosen = {name: _suggest(trial, name, domain) for name, domain in self._asked.parameters.items()}
            task = task_of(self._specification, chosen)
            if (same := known.get(task.key)) is None:
                return self._store.add_trial(task, trial.number)
            value = objective(self._asked, self._store.folder.task(same.name))
            self._tell(trial.number, same.state, value)
        return None

    def is_hopeless(self, row: Row, event: Event) -> bool:
        """Whether a task is to be stopped after a validation."""
        value = validation(event).get(self._asked.metric) if event["kind"] == "val" else None
        if value is None or row.trial is None or event.get("final") or self._asked.pruner == "none":
            return False
        trial = self._trial_of(self._study, self._study.get_trials(deepcopy=False)[row.trial]._trial_id)
        trial.report(value, event["update"])
        return bool(trial.should_prune())

    def tell(self, row: Row, state: State) -> None:
        """Learn how a task ended."""
        if row.trial is not None:
            self._tell(row.trial, state, objective(self._asked, self._store.folder.task(row.name)))

    def _tell(self, number: int, state: State, value: float | None) -> None:
        if state == "success" and value is not None:
            self._study.tell(number, value, skip_if_finished=True)
            return
        if state == "success":
            _log.warning("trial %d has no %s, and counts as failed", number, self._asked.metric)
        ended = self._states.PRUNED if state == "pruned" else self._states.FAIL
        self._study.tell(number, state=ended, skip_if_finished=True)


def objective(asked: Search, folder: TaskFolder) -> float | None:
    """What a search maximizes or minimizes, of a task that ended; None where there is none."""
    file, found, keys = asked.metric.partition(".json:")
    if not found:
        return metrics_of(folder).get(asked.metric)
    try:
        value = json.loads((folder.path / f"{file}.json").read_text(encoding="utf-8"))
        for key in keys.split("."):
            value = value[int(key) if isinstance(value, list) else key]
        return float(value)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _suggest(trial: Any, name: str, domain: Any) -> Any:
    if isinstance(domain, list):
        return trial.suggest_categorical(name, domain)
    low, high, log, step = domain["low"], domain["high"], domain.get("log", False), domain.get("step")
    if all(isinstance(end, int) for end in (low, high, step or 1)):
        return trial.suggest_int(name, low, high, log=log, step=step or 1)
    return trial.suggest_float(name, low, high, log=log, step=step)

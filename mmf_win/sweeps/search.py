"""Lets Optuna choose the parameters of further tasks, and stop trainings that fall behind."""

from __future__ import annotations

import logging
from typing import Any

from mmf_win.errors import OtherSweep
from mmf_win.protocol import Event
from mmf_win.sweeps.specification import Specification
from mmf_win.sweeps.store import State, Store, StoredTask
from mmf_win.sweeps.table import objective, validation
from mmf_win.sweeps.tasks import task_of

_log = logging.getLogger(__name__)

_REPETITIONS = 50  # of known combinations, one after the other, that end a search
_REPEATS = "repeats"  # marks a trial that is one


class OptunaSearch:
    """The search of a specification; Optuna keeps what it knows beside the state.

    Args:
        specification: one with a search.
        store: where its tasks are queued.

    Raises:
        OtherSweep: the folder has the study of another search.
    """

    def __init__(self, specification: Specification, store: Store) -> None:
        import optuna
        from sqlalchemy import URL

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
        if self._study.direction.name.lower() != asked.direction:
            message = f"{store.folder.study} is of a search that was to {self._study.direction.name.lower()}"
            raise OtherSweep(message)
        # A search that goes on must not draw again what it drew at first.
        drawn = len(self._study.get_trials(deepcopy=False))
        seed = None if asked.seed is None else asked.seed + drawn
        self._study.sampler = samplers[asked.sampler](seed=seed)

    def propose(self) -> StoredTask | None:
        """Queue the next trial that is no repetition; None where there are as many as were asked for."""
        known = {row.key: row for row in self._store.rows()}
        for _ in range(_REPETITIONS):
            if self._count() >= self._asked.trials:
                return None
            trial = self._study.ask()
            try:
                domains = self._asked.parameters.items()
                chosen = {name: _suggest(trial, name, domain) for name, domain in domains}
            except ValueError as error:
                message = f"{self._store.folder.study}: {error}"
                raise OtherSweep(message) from None
            task = task_of(self._specification, chosen)
            same = known.get(task.key)
            if same is None and self._count() <= self._asked.trials:  # no other driver was faster
                return self._store.add_trial(task, trial.number)
            trial.set_user_attr(_REPEATS, True)
            if same is not None and same.state in ("success", "pruned"):
                score = objective(self._asked, self._store.folder.task(same.name))
                self._tell(trial.number, same.state, score)
            else:
                self._tell(trial.number, "failed", None)
        return None  # there is hardly a combination left

    def _count(self) -> int:
        """How many trials there are that are no repetitions."""
        return sum(_REPEATS not in trial.user_attrs for trial in self._study.get_trials(deepcopy=False))

    def is_hopeless(self, row: StoredTask, event: Event) -> bool:
        """Whether a task is to be stopped after a validation."""
        value = validation(event).get(self._asked.metric) if event["kind"] == "val" else None
        if value is None or row.trial is None or event.get("final") or self._asked.pruner == "none":
            return False
        trial = self._trial_of(self._study, self._study.get_trials(deepcopy=False)[row.trial]._trial_id)
        trial.report(value, event["update"])
        return bool(trial.should_prune())

    def tell(self, row: StoredTask, state: State) -> None:
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


def _suggest(trial: Any, name: str, domain: Any) -> Any:
    if isinstance(domain, list):
        return trial.suggest_categorical(name, domain)
    low, high, log, step = domain["low"], domain["high"], domain.get("log", False), domain.get("step")
    if all(isinstance(end, int) for end in (low, high, step or 1)):
        return trial.suggest_int(name, low, high, log=log, step=step or 1)
    return trial.suggest_float(name, low, high, log=log, step=step)

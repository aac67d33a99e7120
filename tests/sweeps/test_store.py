"""The state of a sweep: who gets a task, what happens to those of the dead, and what a locked file costs."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.errors import DataError
from mmf_win.locking import locked
from mmf_win.sweeps import store as stores
from mmf_win.sweeps.folder import SweepFolder
from mmf_win.sweeps.specification import Specification
from mmf_win.sweeps.store import Store, StoredTask
from mmf_win.sweeps.tasks import plan
from tests.worlds.rivals import compete
from tests.worlds.sweeping import yaml

MANY = 40


def _asked(values: str = "[1, 2, 3]", default: int = 0) -> Specification:
    template = "{train: 'echo {a} {b}', test: 'echo {a}'}"
    return yaml(f"template: {template}\ndefault: {{b: {default}}}\n---\na: {values}\n")


@pytest.fixture
def store(user_dir: Path) -> Store:
    """An empty state."""
    store = Store(SweepFolder(user_dir / "sweep"))
    store.create()
    return store


def _entered(store: Store, asked: Specification | None = None, **how: bool) -> list[StoredTask]:
    return store.enter(plan(asked or _asked()).tasks, **how)


def _claimed(store: Store) -> StoredTask:
    row = store.claim({row.id for row in store.rows()}, "cpu")
    assert row is not None
    store.folder.task(row.name).path.mkdir(exist_ok=True)
    return row


def _take_all(folder: Path) -> list[str]:
    store = Store(SweepFolder(folder))
    wanted = {row.id for row in store.rows()}
    names = []
    while (row := store.claim(wanted, "cpu")) is not None:
        names.append(row.name)
    return names


def test_of_several_processes_one_gets_a_task(store: Store) -> None:
    _entered(store, _asked(str(list(range(MANY)))))
    taken = compete(_take_all, store.folder.path)
    assert sorted(taken) == sorted(f"A_{n}" for n in range(MANY))


def test_tasks_are_claimed_in_their_order_and_only_those_that_are_wanted(store: Store) -> None:
    first, second, third = _entered(store)
    assert [store.claim({second.id, third.id}, "0").name for _ in range(2)] == [second.name, third.name]  # type: ignore[union-attr]
    assert store.claim({second.id, third.id}, "0") is None
    assert [row.state for row in store.rows()] == ["queued", "running", "running"]
    assert first.state == "queued"


def test_a_task_that_ended_well_has_nothing_left(store: Store) -> None:
    _entered(store, _asked("[1]"))
    _end_all(store)
    again = _entered(store)
    assert [row.state for row in again] == ["success", "queued", "queued"]
    assert [row.left for row in again] == [[], ["train", "test"], ["train", "test"]]


def test_a_finished_command_of_a_failed_task_is_not_left(store: Store) -> None:
    _entered(store)
    row = _claimed(store)
    store.begin(row, "train", "words")
    store.finish(row, "train")
    store.begin(row, "test", "words")
    store.end(row, "failed", "test: no")
    failed = store.rows()[0]
    assert (failed.state, failed.command, failed.message) == ("failed", "test", "test: no")
    assert [row.name for row in _entered(store, failed=True)] == ["A_1"]
    assert next((row.state, row.left) for row in store.rows()) == ("queued", ["test"])


def test_force_forgets_what_was_done(store: Store) -> None:
    _entered(store)
    row = _claimed(store)
    store.begin(row, "train", "words")
    store.finish(row, "train")
    store.end(row, "pruned")
    assert _entered(store)[0].state == "pruned"
    forced = _entered(store, force=True)[0]
    assert (forced.state, forced.left, forced.began) == ("queued", ["train", "test"], {})


def test_what_is_no_longer_asked_for_goes_where_it_never_ran(store: Store) -> None:
    _entered(store)
    store.end(_claimed(store), "failed")
    _entered(store, _asked("[3, 4]"))
    assert [row.name for row in store.rows()] == ["A_3", "A_4", "A_1"]


def test_results_of_other_values_keep_their_folder(store: Store) -> None:
    _entered(store)
    _end_all(store)
    _entered(store, _asked(default=5))
    rows = store.rows()
    assert [(row.name, row.values["b"]) for row in rows if row.state == "success"] == [
        (f"A_{n}", 0) for n in (1, 2, 3)
    ]
    assert len({row.name.casefold() for row in rows}) == 6


@pytest.mark.parametrize("values", [("[A]", "[a, A]"), ("[1234567]", "[1234568, 1234567]")])
def test_a_sweep_grows_by_values_that_are_written_alike(store: Store, values: tuple[str, str]) -> None:
    _entered(store, _asked(values[0]))
    _end_all(store)
    grown = _entered(store, _asked(values[1]))
    assert [row.state for row in grown] == ["queued", "success"]


def _end_all(store: Store) -> None:
    while (row := store.claim({row.id for row in store.rows()}, "cpu")) is not None:
        store.folder.task(row.name).path.mkdir()
        for command in row.left:
            store.begin(row, command, "words")
            store.finish(row, command)
        store.end(row, "success")


def test_a_task_whose_folder_was_deleted_runs_again(store: Store) -> None:
    _entered(store)
    _end_all(store)
    store.folder.task("A_2").path.rmdir()
    assert [row.left for row in _entered(store)] == [[], ["train", "test"], []]


def test_what_another_driver_is_about_to_run_is_not_removed(store: Store) -> None:
    other = Store(store.folder)
    _entered(other)
    with other.alive():
        _entered(store, _asked("[9]"))
        assert len(store.rows()) == 4
    _entered(store, _asked("[9]"))
    assert [row.name for row in store.rows()] == ["A_9"]


def _requeued(store: Store) -> list[str]:
    """Queue the tasks of the dead; return their names."""
    before = [row.name for row in store.rows() if row.state == "queued"]
    store.requeue_dead()
    return [row.name for row in store.rows() if row.state == "queued" and row.name not in before]


def test_the_tasks_of_a_driver_that_died_are_queued_again(store: Store) -> None:
    _entered(store)
    with store.alive():
        row = _claimed(store)
        other = Store(store.folder)
        assert _requeued(other) == []
    assert _requeued(other) == [row.name]
    assert other.rows()[0].starts == 1


def test_what_a_dead_driver_left_running_is_waited_for(store: Store) -> None:
    _entered(store)
    folder = store.folder.task(_claimed(store).name)
    with locked(folder.lock):
        assert _requeued(store) == []
    assert _requeued(store) == ["A_1"]


def test_a_driver_on_another_machine_is_dead_when_it_is_silent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = replace(store, worker="another-machine-17-abc")
    _entered(store)
    _claimed(far)
    assert _requeued(store) == []
    monkeypatch.setattr(time, "time", lambda: 0.0)  # another clock says nothing
    assert _requeued(store) == []
    monkeypatch.setattr(stores, "_DEAD", -1.0)
    assert _requeued(store) == ["A_1"]
    assert far.beat() == set()  # by which it learns that it has lost the task


def test_a_driver_that_lost_a_task_changes_nothing(store: Store) -> None:
    _entered(store)
    row = _claimed(store)
    store.requeue_dead()
    store.end(row, "success")
    assert store.rows()[0].state == "queued"


def test_a_file_that_stays_locked_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_PATIENCE", 0.0)
    with closing(sqlite3.connect(store.folder.state, isolation_level=None)) as another_program:
        another_program.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match=r"sweep\.sqlite: database is locked"):
            store.rows()


def test_a_file_that_is_something_else_is_named(store: Store) -> None:
    store.folder.state.write_bytes(b"something else " * 100)
    with pytest.raises(DataError, match=r"sweep\.sqlite"):
        store.rows()
    with pytest.raises(DataError, match=r"sweep\.sqlite"):
        store.create()

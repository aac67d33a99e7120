"""Checkpoints that are replaced while they are in use."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmf_win.errors import CheckpointError
from mmf_win.files import remove_tree, write_bytes
from mmf_win.runs.checkpoints import PinnedCheckpoint, check_file, pin_checkpoint
from mmf_win.runs.folder import Run
from tests.worlds.torch_files import write_checkpoint

OLD, NEW = b"old weights", b"new weights"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run with a best checkpoint."""
    run = Run.create(tmp_path, "run")
    run.checkpoints.mkdir()
    (run.checkpoints / "best.ckpt").write_bytes(OLD)
    return run


def replace_best(run: Run) -> None:
    """Replace the best checkpoint as training does."""
    write_bytes(run.checkpoints / "best.ckpt", NEW)


@pytest.mark.parametrize("has_links", [True, False])
def test_pin_keeps_bytes_and_is_removed_afterwards(run: Run, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:
        monkeypatch.setattr("os.link", raise_permission_error)
    with pin_checkpoint(run, run.checkpoints / "best.ckpt") as pin:
        assert (pin.path.name, pin.path.stat().st_nlink) == ("best.ckpt", 2 if has_links else 1)
        replace_best(run)
        assert pin.path.read_bytes() == OLD
        assert pin.sha256() == hashlib.sha256(OLD).hexdigest()
        pin.require_unchanged()
    assert not run.pins.exists()


def raise_permission_error(*_: object) -> None:
    """Fail like a file system without links, or a read-only folder."""
    raise PermissionError(1, "Operation not permitted")


@pytest.fixture
def unpinned(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[PinnedCheckpoint]:
    """Yield a checkpoint of a run that cannot be pinned, as in a read-only folder."""
    monkeypatch.setattr("mmf_win.runs.checkpoints.link_or_copy", raise_permission_error)
    with pin_checkpoint(run, run.checkpoints / "best.ckpt") as pin:
        assert pin.path == pin.original
        yield pin


def test_unchanged_file_without_pin_is_accepted(unpinned: PinnedCheckpoint) -> None:
    unpinned.require_unchanged()
    assert unpinned.sha256() == hashlib.sha256(OLD).hexdigest()


def test_replaced_file_without_pin_is_rejected_by_original_name(run: Run, unpinned: PinnedCheckpoint) -> None:
    replace_best(run)
    with pytest.raises(CheckpointError, match=r"best\.ckpt: replaced while in use"):
        unpinned.require_unchanged()
    assert unpinned.sha256() == hashlib.sha256(OLD).hexdigest()


def test_errors_name_original_file_instead_of_pin(run: Run) -> None:
    best = run.checkpoints / "best.ckpt"
    with pytest.raises(CheckpointError) as caught, pin_checkpoint(run, best) as pin:
        raise CheckpointError(f"{pin.path}: it is damaged", hint=f"look at {pin.path}")
    assert (str(caught.value), caught.value.hint) == (f"{best}: it is damaged", f"look at {best}")


def test_pins_of_killed_command_are_removed_but_not_those_in_use(run: Run) -> None:
    stale_pin = run.pins / "of a killed command" / "best.ckpt"
    stale_pin.parent.mkdir(parents=True)
    stale_pin.write_bytes(OLD)
    with pin_checkpoint(run, run.checkpoints / "best.ckpt") as first:
        assert not stale_pin.exists()
        with pin_checkpoint(run, run.checkpoints / "best.ckpt") as second:
            assert first.path.exists() and second.path.exists()
        assert first.path.exists()
    assert not run.pins.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows lets only administrators make symbolic links")
@pytest.mark.parametrize("absolute", [True, False])
def test_target_of_symbolic_link_is_pinned(run: Run, absolute: bool) -> None:
    best, target = run.checkpoints / "best.ckpt", run.checkpoints / "models" / "model_5.ckpt"
    target.parent.mkdir()
    best.rename(target)
    best.symlink_to(target if absolute else target.relative_to(run.checkpoints))
    with pin_checkpoint(run, best) as pin:
        write_bytes(target, NEW)
        assert pin.path.read_bytes() == OLD and not pin.path.is_symlink()


def test_removed_run_is_not_recreated(run: Run) -> None:
    remove_tree(run.path)
    with pytest.raises(FileNotFoundError), pin_checkpoint(run, run.checkpoints / "best.ckpt"):
        pass
    assert not run.path.exists()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_known_hash_is_used_unless_file_was_replaced(run: Run, is_replaced: bool) -> None:
    best = write_checkpoint(run.checkpoints / "best.ckpt", 3)
    checked_file = check_file(best)
    assert checked_file.sha256 == hashlib.sha256(best.read_bytes()).hexdigest()
    if is_replaced:
        replace_best(run)
    with pin_checkpoint(run, best, checked_file=checked_file) as pin:
        assert pin.known_sha256 == (None if is_replaced else checked_file.sha256)
        assert pin.sha256() == hashlib.sha256(best.read_bytes()).hexdigest()

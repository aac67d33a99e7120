"""Writing of one content under several names, on real disks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmf_win.errors import CheckpointError, ResourceError
from mmf_win.integrity import torch_file
from mmf_win.integrity.digest import file_digest
from tests.worlds import hostile_archives
from tests.worlds.flush_recorder import FlushRecorder
from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
checkpoint_io = LazyModule("mmf_win.worker.hooks.checkpoint_io")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("has_links", [True, False], ids=["", "fake system without hard links"])
def test_all_names_are_links_or_copies_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no hard links")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    write = checkpoint_io.CheckpointWriter()
    for name in ("model_1.ckpt", "best.ckpt", "current.ckpt"):
        write({"weights": torch.arange(10)}, tmp_path / name)
    assert list_names(tmp_path) == ["best.ckpt", "current.ckpt", "model_1.ckpt"]
    assert len({path.stat().st_ino for path in tmp_path.iterdir()}) == (1 if has_links else 3)
    assert {file_digest(path).hex() for path in tmp_path.iterdir()} == {write.sha256}
    assert torch.load(tmp_path / "current.ckpt")["weights"].tolist() == list(range(10))


def test_second_save_does_not_change_linked_files_of_the_first(tmp_path: Path) -> None:
    first, second = checkpoint_io.CheckpointWriter(), checkpoint_io.CheckpointWriter()
    first({"update": 1}, tmp_path / "best.ckpt")
    first({"update": 1}, tmp_path / "current.ckpt")
    second({"update": 2}, tmp_path / "current.ckpt")
    assert torch.load(tmp_path / "best.ckpt") == {"update": 1}
    assert torch.load(tmp_path / "current.ckpt") == {"update": 2}


def test_checkpoint_is_flushed_before_it_is_renamed(tmp_path: Path, flush_recorder: FlushRecorder) -> None:
    path = tmp_path / "current.ckpt"
    checkpoint_io.CheckpointWriter()({"weights": torch.arange(10)}, path)
    assert [rename.is_flushed for rename in flush_recorder.renames_to(path)] == [True]


def test_checkpoint_damaged_by_the_disk_does_not_replace_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, weights, fsync = (tmp_path / "current.ckpt", torch.full((1000,), 0x1234567, dtype=torch.int64), os.fsync)
    checkpoint_io.CheckpointWriter()({"update": 1}, path)

    def damage(descriptor: int) -> None:
        fsync(descriptor)
        (part,) = tmp_path.glob("*.part")
        hostile_archives.flip_byte(part, part.read_bytes().index(weights.numpy().tobytes()) + 4000)

    monkeypatch.setattr(os, "fsync", damage)
    with pytest.raises(CheckpointError, match=r"current\.ckpt: damaged while being written"):
        checkpoint_io.CheckpointWriter()({"weights": weights}, path)
    assert list_names(tmp_path) == ["current.ckpt"]
    assert torch.load(path) == {"update": 1}


def test_too_little_space_is_reported_before_writing(small_disk: Path) -> None:
    path = small_disk / "current.ckpt"
    checkpoint_io.CheckpointWriter()({"update": 1}, path)
    with pytest.raises(ResourceError, match=r"current\.ckpt: a checkpoint needs 99\.4 MiB .* are free"):
        checkpoint_io.CheckpointWriter()({"weights": torch.zeros(100_000_000, dtype=torch.uint8)}, path)
    assert list_names(small_disk) == ["current.ckpt"]
    assert torch.load(path) == {"update": 1}


def test_disk_that_fills_up_while_writing_leaves_only_the_old_file(small_disk: Path) -> None:
    """The size of text is not estimated before, so this write fails in the middle."""
    path = small_disk / "current.ckpt"
    checkpoint_io.CheckpointWriter()({"update": 1}, path)
    with pytest.raises(ResourceError, match=r"current\.ckpt: a checkpoint needs"):
        checkpoint_io.CheckpointWriter()({"text": [f"{number:09}" * 10 for number in range(1_000_000)]}, path)
    assert list_names(small_disk) == ["current.ckpt"]
    assert torch_file.find_problem(path) is None
    assert torch.load(path) == {"update": 1}


def test_shared_storage_is_counted_once(tmp_path: Path) -> None:
    storage = torch.zeros(1000)
    value = {"a": storage, "b": [storage[:10], (storage.view(10, 100),)], "c": torch.zeros(5), "d": "text"}
    assert checkpoint_io.tensor_bytes(value) == 4 * 1000 + 4 * 5
    torch.save(value, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size > checkpoint_io.tensor_bytes(value)

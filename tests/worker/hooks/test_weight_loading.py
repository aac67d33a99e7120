"""Loading of weights in both formats of torch: refused classes and truncated files."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import CheckpointError
from mmf_win.integrity import torch_file
from mmf_win.worker.outcome import UntrustedCheckpointError, classify_exception
from tests.worlds.tools import LazyModule, is_wine, requires_package

torch = LazyModule("torch")
checkpoint_io = LazyModule("mmf_win.worker.hooks.checkpoint_io")

pytestmark = [
    pytest.mark.torch,
    requires_package("torch"),
    pytest.mark.skipif(is_wine(), reason="under Wine the process dies some time after an error of torch.load"),
]


def load(path: Path, *, trust: bool = False, by_file: bool = False, use_mmap: bool = False) -> Any:
    """Load a file as both versions of MMF do: by name or as an open file."""
    with checkpoint_io.replace_attribute(
        checkpoint_io.torch, "load", checkpoint_io.make_torch_load(trust=trust, use_mmap=use_mmap)
    ):
        if not by_file:
            return torch.load(path, map_location=lambda storage, _: storage)
        with path.open("rb") as file:
            return torch.load(file, map_location=lambda storage, _: storage)


@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize("is_zip", [True, False])
def test_mapped_file_has_the_same_content(user_dir: Path, is_zip: bool, by_file: bool) -> None:
    path = user_dir / "модель.ckpt"
    value = {"model": {"head": torch.arange(6.0)}, "optimizer": {"state": torch.ones(3)}}
    torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    loaded = load(path, by_file=by_file, use_mmap=True)
    assert loaded["model"]["head"].tolist() == value["model"]["head"].tolist()
    assert loaded["optimizer"]["state"].tolist() == [1.0, 1.0, 1.0]


def test_mapped_file_stays_on_the_cpu(user_dir: Path) -> None:
    path = user_dir / "model.ckpt"
    torch.save({"head": torch.ones(3)}, path)
    with checkpoint_io.replace_attribute(
        checkpoint_io.torch, "load", checkpoint_io.make_torch_load(trust=False, use_mmap=True)
    ):
        assert torch.load(path, map_location="meta")["head"].device.type == "cpu"


@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize("is_zip", [True, False])
def test_class_is_refused_unless_the_file_is_trusted(user_dir: Path, is_zip: bool, by_file: bool) -> None:
    path = user_dir / "model.pth"
    value = {"model": {"head": torch.ones(3)}, "meter": Counter("hate")}
    torch.save({**value, "path": path}, path, _use_new_zipfile_serialization=is_zip)
    assert torch_file.find_problem(path) is None
    with pytest.raises(UntrustedCheckpointError, match=r"pathlib\.") as refused:
        load(path, by_file=by_file)
    assert str(path) in str(refused.value)
    assert load(path, trust=True, by_file=by_file)["meter"] == value["meter"]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_command_in_the_hint_converts_another_pickle_protocol(user_dir: Path, is_zip: bool, protocol: int) -> None:
    path = user_dir / "a model's weights.pth"
    value = {"model": {"head": torch.ones(3)}, "version": b"1"}
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
    assert torch_file.find_problem(path) is None
    with pytest.raises(CheckpointError, match="pickle protocol 3" if protocol == 3 else "4 or 5") as refused:
        load(path)
    assert not isinstance(refused.value, UntrustedCheckpointError)
    assert classify_exception(refused.value).kind == "checkpoint"
    hint = str(refused.value.hint)
    [command] = re.findall("`(.*)`", hint)
    subprocess.run(command, shell=True, check=True)
    converted = Path(hint.partition("then use ")[2])
    assert load(converted)["model"]["head"].tolist() == [1.0, 1.0, 1.0]


def test_classes_are_refused_even_if_torch_loads_them_by_default(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before version 2.6, torch loaded every class by default."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(user_dir, user_dir / "model.pth")
    with pytest.raises(CheckpointError, match=r"pathlib\."):
        load(user_dir / "model.pth")


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("content", [30, 150, 350, b"hello", b"", b"PK\x03\x04 torn"])
def test_truncated_or_foreign_file_is_rejected(user_dir: Path, content: int | bytes, trust: bool) -> None:
    path = user_dir / "model.pth"
    torch.save({"model": {"head": torch.ones(30)}}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[:content])
    with pytest.raises(CheckpointError, match=r"model\.pth cannot be loaded"):
        load(path, trust=trust)


def test_missing_class_in_a_trusted_file_is_reported(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = user_dir / "model.pth"
    missing_class = type("Config", (), {"__module__": __name__, "__qualname__": "Config"})
    monkeypatch.setitem(globals(), "Config", missing_class)
    torch.save(missing_class(), path)
    monkeypatch.delitem(globals(), "Config")
    with pytest.raises(CheckpointError, match="Config"):
        load(path, trust=True)


def test_torch_load_is_restored_after_an_error() -> None:
    before = torch.load
    reader = checkpoint_io.make_torch_load(trust=True)
    with pytest.raises(ZeroDivisionError), checkpoint_io.replace_attribute(checkpoint_io.torch, "load", reader):
        raise ZeroDivisionError
    assert torch.load is before

"""Verification of torch files, and reading their plain contents without torch."""

from __future__ import annotations

import hashlib
import os
import random
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.torch_file import find_problem, load_plain_contents
from tests.worlds.torch_files import write_torch_zip


def test_intact_file_has_no_problem_and_is_read_completely(tmp_path: Path) -> None:
    path = write_torch_zip(tmp_path / "a.ckpt", {"num_updates": 3})
    checked: list[int] = []
    assert find_problem(path, checked.append) is None
    assert sum(checked) == sum(member.file_size for member in zipfile.ZipFile(path).infolist())


@pytest.mark.parametrize("place", ["model/data.pkl", "model/data/0", "model/version"])
def test_changed_byte_is_found_with_its_member(tmp_path: Path, place: str) -> None:
    path = write_torch_zip(tmp_path / "a.ckpt", {"num_updates": 3}, os.urandom(1000))
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(place)
    content[member.header_offset + 30 + len(place) + member.file_size - 1] ^= 1
    path.write_bytes(content)
    assert find_problem(path) == f"damaged at {place}"


def test_zeros_at_the_start_of_a_member_are_found(tmp_path: Path) -> None:
    """After a power cut, a file may have the correct size but contain zeros."""
    path = write_torch_zip(tmp_path / "a.ckpt", {})
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("model/data/0").header_offset
    with path.open("rb+") as file:
        file.seek(start)
        file.write(bytes(4096))
    assert find_problem(path) == "damaged at model/data/0"


@pytest.mark.parametrize("place", [20, 24], ids=["packed", "unpacked"])
def test_changed_size_in_the_directory_is_found(tmp_path: Path, place: int) -> None:
    path = write_torch_zip(tmp_path / "a.ckpt", {})
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + place] ^= 1
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        last = archive.infolist()[-1].filename
    assert find_problem(path) == f"damaged at {last}"


@pytest.mark.parametrize(
    ("place", "bit"),
    [(33, 1), (34, 1), (9, 0x20), (38, 0x10)],
    ids=["hides all others", "on another disk", "encrypted", "a folder"],
)
def test_directory_damage_that_only_torch_rejects_is_found(tmp_path: Path, place: int, bit: int) -> None:
    path = write_torch_zip(tmp_path / "a.ckpt", {})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + place] ^= bit
    path.write_bytes(content)
    assert find_problem(path) == "damaged at model/data.pkl"


@pytest.mark.parametrize("seed", range(3))
def test_changed_bit_anywhere_is_found_or_harmless(tmp_path: Path, seed: int) -> None:
    path = write_torch_zip(tmp_path / "a.ckpt", {"num_updates": 3})
    data, chance = path.read_bytes(), random.Random(seed)
    with zipfile.ZipFile(path) as archive:
        contents = {member.filename: archive.read(member) for member in archive.infolist()}
    for _ in range(300):
        content = bytearray(data)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        if find_problem(path) is None:
            with zipfile.ZipFile(path) as archive:
                read = {member.filename: archive.read(member) for member in archive.infolist()}
            assert read == contents


def test_missing_bytes_in_the_middle_are_found(tmp_path: Path) -> None:
    path = write_torch_zip(tmp_path / "a.ckpt", {})
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("model/data/0").header_offset + 50
    path.write_bytes(content[:at] + content[at + 90_000 :])
    assert find_problem(path) == "truncated or not a checkpoint"


@pytest.mark.parametrize("kept", [0, 1, 100, 50_000, -1])
def test_truncated_file_is_found(tmp_path: Path, kept: int) -> None:
    path = write_torch_zip(tmp_path / "a.ckpt", {})
    path.write_bytes(path.read_bytes()[:kept])
    assert find_problem(path) == "truncated or not a checkpoint"


def test_plain_values_are_read_and_other_objects_replaced(tmp_path: Path) -> None:
    contents = {"num_updates": 3, "best": 0.5, "model": OrderedDict(a=Path("x")), "list": [1, (2, None)]}
    read = load_plain_contents(write_torch_zip(tmp_path / "a.ckpt", contents))
    assert (read["num_updates"], read["best"], read["list"]) == (3, 0.5, [1, (2, None)])
    assert not isinstance(read["model"]["a"], Path)


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_malicious_file_runs_no_code(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    path = write_torch_zip(tmp_path / "a.ckpt", {"num_updates": 3, "bad": Hostile(victim)})
    assert load_plain_contents(path)["num_updates"] == 3
    assert not victim.exists()


@pytest.mark.parametrize("pickled", [b"", b"\x80", b"garbage", b"\x80\x04N0.", b"c" * 100])
def test_damaged_pickle_raises_value_error(tmp_path: Path, pickled: bytes) -> None:
    path = tmp_path / "a.ckpt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickled)
    with pytest.raises(ValueError, match=r"a\.ckpt"):
        load_plain_contents(path)


@pytest.mark.torch
def test_file_saved_by_torch_is_intact_and_readable(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "a.ckpt"
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "num_updates": 7, "layer": layer}, path
    )
    assert find_problem(path) is None
    read = load_plain_contents(path)
    assert read["num_updates"] == 7
    assert list(read["model"]) == ["weight", "bias"]
    assert read["optimizer"]["param_groups"][0]["lr"] == 0.001


@pytest.mark.parametrize("prefix", [b"", b"x" * 100])
def test_all_bytes_of_an_intact_file_are_passed_on_in_order(tmp_path: Path, prefix: bytes) -> None:
    path = write_torch_zip(tmp_path / "a.ckpt", {"num_updates": 3}, os.urandom((1 << 20) + 5))
    path.write_bytes(prefix + path.read_bytes())
    legacy = tmp_path / "b.ckpt"
    legacy.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + os.urandom(3 << 20))
    for file in (path, legacy):
        digest = hashlib.sha256()
        assert find_problem(file, lambda _: None, digest.update) is None
        assert digest.digest() == file_digest(file)

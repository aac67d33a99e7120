"""What is damaged is unpacked again, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from mmf_win.errors import ArchiveError
from mmf_win.integrity.finding import Difference
from mmf_win.integrity.manifest import Entry, Manifest
from mmf_win.integrity.verify import find_damage
from mmf_win.unpacking.extract import extract_verified, repair
from tests.unpacking.conftest import FILES, identities, packed
from tests.worlds import hostile
from tests.worlds.memes import tree


def test_only_what_is_wrong_is_unpacked_again_and_then_trusted_like_the_others(
    archive: Path, folder: Path, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = extract_verified(archive, folder)
    before = identities(folder)
    hostile.flip_byte(folder / "fc7_w.pkl", 100)
    (folder / "z/empty").unlink()
    wrong = find_damage(manifest, full=True)
    assert [(found.kind, found.path) for found in wrong] == [("changed", "fc7_w.pkl"), ("missing", "z/empty")]
    written.clear()
    repair(manifest, archive, wrong)
    assert written == ["fc7_w.pkl", "empty"]
    assert tree(folder) == FILES
    after = identities(folder)
    kept = before.keys() - {"fc7_w.pkl", "z/empty"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    with monkeypatch.context() as patch:
        patch.setattr(import_module("mmf_win.integrity.verify"), "file_digest", None)
        loaded = Manifest.load(folder)
        assert loaded is not None and find_damage(loaded) == []
    assert find_damage(manifest, full=True) == []


def test_extracting_again_mends(archive: Path, folder: Path, written: list[str]) -> None:
    extract_verified(archive, folder)
    hostile.cut(folder / "detectron.lmdb/data.mdb")
    written.clear()
    extract_verified(archive, folder)
    assert written == ["data.mdb"]
    assert tree(folder) == FILES


def test_a_wrong_size_beside_the_list_is_repaired_by_the_file_that_is_unpacked_again(
    archive: Path, folder: Path
) -> None:
    manifest = extract_verified(archive, folder)
    name = "detectron.lmdb/data.mdb"
    replace(manifest, files={**manifest.files, name: Entry(manifest.files[name].sha256, 7)}).save_checks()
    known = Manifest.load(folder)
    assert known is not None
    wrong = find_damage(known)
    assert [(found.kind, found.path) for found in wrong] == [("changed", name)]
    repair(known, archive, wrong)
    assert Manifest.load(folder) == manifest


def test_an_archive_that_is_damaged_behind_the_member_still_mends_it(user_dir: Path, folder: Path) -> None:
    files = {"first": b"1" * 3000, "second": FILES["detectron.lmdb/data.mdb"]}
    path = packed(user_dir / "a.tar.gz", files)
    manifest = extract_verified(path, folder)
    hostile.cut(folder / "first")
    repair(manifest, hostile.cut(path), find_damage(manifest))
    assert tree(folder) == files


def test_another_archive_mends_nothing(archive: Path, user_dir: Path, folder: Path) -> None:
    manifest = extract_verified(archive, folder)
    hostile.cut(folder / "fc7_w.pkl")
    before = tree(folder)
    wrong = find_damage(manifest)
    other = packed(user_dir / "other.tar.gz", {**FILES, "fc7_w.pkl": b"other"})
    with pytest.raises(ArchiveError, match=r"other content in fc7_w\.pkl"):
        repair(manifest, other, wrong)
    lacking = packed(user_dir / "lacking.tar.gz", {"z/last": b""})
    with pytest.raises(ArchiveError, match=r"there is no fc7_w\.pkl"):
        repair(manifest, lacking, wrong)
    assert tree(folder) == before
    assert find_damage(manifest) == [Difference("changed", "fc7_w.pkl", "10000 instead of 20000 bytes")]

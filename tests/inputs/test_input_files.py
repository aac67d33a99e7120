"""Verification of input files: by manifest, archive, file name, or an earlier reading."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.inputs.archive_input import ArchiveInput
from mmf_win.inputs.hub import LocalModelInput
from mmf_win.inputs.input_files import InputFiles, Mirror, fetch_inputs
from mmf_win.inputs.known_hashes import load_known_hashes, verify_against_known
from mmf_win.locking import file_lock
from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives
from tests.worlds.memes import write_tree
from tests.worlds.torch_files import write_torch_zip
from tests.worlds.zoo import FC7_FILES, LMDB_DATA, Zoo, features_archive, sha256


@pytest.fixture
def bert(mmf_paths: MmfPaths, user_dir: Path) -> InputFiles:
    """Return a BERT in a folder of the user."""
    files = {name: name.encode() for name in ("config.json", "vocab.txt", "model.safetensors")}
    return LocalModelInput("BERT my bert", write_tree(files, user_dir / "my bert"), mmf_paths)


def age(path: Path) -> None:
    """Make a file older than the coarsest clock of a file system."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**10))


def test_features_of_another_mmf_version_are_fetched_again(zoo: Zoo) -> None:
    old = zoo.features
    fetch_inputs([old], zoo.mmf_paths, Mirror())
    zoo.server.files["features_2020_10_01.tar.gz"] = features_archive(b"new" * 999)
    assert old.entry is not None
    name = "features_2020_10_01.tar.gz"
    entry = replace(
        old.entry, version="2.0", url=f"{zoo.server.url}/{name}", file_name=name, sha256=sha256(zoo.server.files[name])
    )
    new = replace(old, entry=entry)
    for status in (new.quick_check(), new.verify()):
        assert status.state == "damaged"
        assert status.problems[0].endswith(f"unpacked from features.tar.gz, but the installed MMF needs {name}")
    assert fetch_inputs([new], zoo.mmf_paths, Mirror())[0].state == "intact"
    assert new.files()[0].read_bytes() == b"new" * 999


def test_features_unpacked_by_another_mmf_version_are_not_accepted(zoo: Zoo) -> None:
    need = zoo.fc7
    write_tree({**FC7_FILES, ".built.json": b'{"version": "0.9"}'}, need.folder)
    status = need.verify()
    assert status.state == "damaged"
    assert "version 0.9" in status.problems[0]
    assert fetch_inputs([need], zoo.mmf_paths, Mirror())[0].state == "intact"


def test_deleted_file_with_a_manifest_is_damaged_and_one_without_is_missing(zoo: Zoo) -> None:
    fetch_inputs([zoo.features], zoo.mmf_paths, Mirror())
    zoo.features.files()[0].unlink()
    statuses = [need.quick_check() for need in (zoo.features, zoo.fc7)]
    assert [status.state for status in statuses] == ["damaged", "missing"]
    assert statuses[0].problems == (f"missing: {zoo.features.files()[0]}",)
    repaired, absent = fetch_inputs([zoo.features, zoo.fc7], zoo.mmf_paths, Mirror(), repair_only=True)
    assert (repaired.state, absent.state) == ("intact", "missing")
    assert zoo.features.files()[0].read_bytes() == LMDB_DATA


def test_weights_without_an_archive_are_verified_by_their_own_checksums(mmf_paths: MmfPaths, user_dir: Path) -> None:
    folder = user_dir / "weights"
    folder.mkdir()
    file = folder / "model.ckpt"
    need = ArchiveInput("pretrained weights", folder, mmf_paths)
    hostile_archives.truncate_file(write_torch_zip(file, {}), 0.7)
    assert need.verify().state == "damaged"
    write_torch_zip(file, {})
    assert (need.verify().state, need.quick_check().verified_against) == ("recorded", "hashes recorded at first use")


def test_replaced_user_file_is_recorded_again_and_logged(
    mmf_paths: MmfPaths, bert: InputFiles, caplog: pytest.LogCaptureFixture
) -> None:
    assert bert.verify().state == "recorded"
    vocabulary = bert.folder / "vocab.txt"
    vocabulary.write_bytes(b"a longer vocabulary")
    assert bert.verify().state == "recorded"
    assert f"{vocabulary} was replaced since it was last read" in caplog.text


def test_digits_in_a_user_file_name_are_not_a_hash(mmf_paths: MmfPaths, user_dir: Path) -> None:
    (user_dir / "meme-20201001.npy").write_bytes(b"features")
    assert InputFiles("region features", user_dir, mmf_paths, ("meme-20201001.npy",)).verify().state == "recorded"


def test_changed_content_with_the_same_modification_time_is_damage(mmf_paths: MmfPaths, bert: InputFiles) -> None:
    vocabulary = bert.folder / "vocab.txt"
    age(vocabulary)
    assert bert.verify().state == "recorded"
    before = vocabulary.stat()
    hostile_archives.flip_byte(vocabulary, 3)
    os.utime(vocabulary, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        status = bert.verify(full=True)
        assert status.state == "damaged"
        assert "different content, same modification time" in status.problems[0]


def test_untouched_file_is_not_read_again(
    mmf_paths: MmfPaths, bert: InputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in bert.files():
        age(path)
    assert bert.quick_check().state == "not verified"
    assert bert.verify().state == "recorded"
    monkeypatch.setattr("mmf_win.inputs.known_hashes.hash_files", None)
    assert bert.verify().state == "recorded"
    assert bert.quick_check().verified_at is not None


def test_concurrent_readings_of_different_files_are_both_recorded(mmf_paths: MmfPaths, user_dir: Path) -> None:
    files = write_tree({"a": b"a", "b": b"b"}, user_dir / "files")
    paths, before = (files / "a", files / "b"), load_known_hashes(mmf_paths.cache_dir)
    for path in paths:
        verify_against_known([path], before, full=False, record=True, title="Verifying")
    assert load_known_hashes(mmf_paths.cache_dir).files.keys() == set(map(str, paths))


def test_hashes_are_not_written_while_another_process_holds_the_lock(
    mmf_paths: MmfPaths, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tree({"a": b"a"}, user_dir / "files") / "a"
    monkeypatch.setattr("mmf_win.inputs.known_hashes.file_lock", lambda path, timeout: file_lock(path))
    mmf_paths.cache_dir.mkdir()
    with file_lock(mmf_paths.cache_dir / "mmfw-checked.json.lock"):
        hashes, _ = verify_against_known(
            [path], load_known_hashes(mmf_paths.cache_dir), full=False, record=True, title="Verifying"
        )
    assert str(path) in hashes.files and not load_known_hashes(mmf_paths.cache_dir).files


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 1, "files": {"a": 3}}', b"\xff"])
def test_damaged_known_hashes_only_cause_another_reading(mmf_paths: MmfPaths, bert: InputFiles, content: bytes) -> None:
    mmf_paths.cache_dir.mkdir()
    (mmf_paths.cache_dir / "mmfw-checked.json").write_bytes(content)
    assert bert.quick_check().state == "not verified"
    assert bert.verify().state == "recorded"

"""Repair of damaged files from their origin, without MMF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.region_features import extract_features, read_built_version
from mmf_win.errors import DamagedFeaturesError, DataError
from mmf_win.inputs.input_files import Mirror, fetch_inputs
from mmf_win.integrity.manifest import Manifest
from mmf_win.integrity.verify import record_hashes
from tests.worlds import hostile_archives
from tests.worlds.memes import write_tree
from tests.worlds.zoo import FC7_FILES, LMDB_DATA, Zoo, features_archive, fetch, lmdb_data_file, unpack_like_mmf


@pytest.mark.parametrize("keep", [True, False])
def test_only_the_damaged_file_is_rewritten_from_its_archive(zoo: Zoo, keep: bool) -> None:
    fetch(zoo, zoo.fc7, keep_archives=keep)
    bias, weights = (zoo.fc7.folder / name for name in ("fc7_b.pkl", "fc7_w.pkl"))
    hostile_archives.truncate_file(bias)
    untouched = weights.stat().st_mtime_ns
    assert zoo.fc7.quick_check().state == "damaged"
    zoo.server.requests.clear()
    [finding] = fetch(zoo, zoo.fc7)
    assert (finding.state, len(finding.repaired)) == ("intact", 1) and "fc7_b.pkl" in finding.repaired[0]
    assert bias.read_bytes() == FC7_FILES["fc7_b.pkl"]
    assert weights.stat().st_mtime_ns == untouched
    assert len(zoo.server.content_requests) == (0 if keep else 1)


def test_damaged_archive_is_downloaded_again(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    fetch(zoo, zoo.features)
    archive = zoo.mmf_paths.dataset.features / "features.tar.gz"
    hostile_archives.truncate_file(archive)
    hostile_archives.truncate_file(lmdb_data_file(zoo))
    assert fetch(zoo, zoo.features)[0].state == "intact"
    assert lmdb_data_file(zoo).read_bytes() == LMDB_DATA
    assert archive.read_bytes() == zoo.server.files["features.tar.gz"]
    assert "WARNING" in caplog.text


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut off": hostile_archives.truncate_file,
    "changed": lambda sums: hostile_archives.flip_byte(sums, 1),
    "with a comment": lambda sums: sums.write_text(sums.read_text("utf-8") + "# mine\n", "utf-8"),
    "missing": lambda sums: sums.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_user_features_are_unpacked_again_if_their_manifest_is_damaged(zoo: Zoo, user_dir: Path, damage: str) -> None:
    """The zoo's archive differs and must not replace them."""
    if damage == "missing":
        pytest.importorskip("lmdb", reason="only lmdb can tell whether they are intact then")
    archive, data = user_dir / "own.tar.gz", LMDB_DATA[::-1]
    archive.write_bytes(features_archive(data))
    extract_features(archive, zoo.mmf_paths, version=None)
    sums = zoo.mmf_paths.dataset.features / "SHA256SUMS"
    DAMAGES[damage](sums)
    zoo.features.verify()
    hostile_archives.truncate_file(lmdb_data_file(zoo))
    assert zoo.features.verify().state == "damaged"
    assert fetch_inputs([zoo.features], zoo.mmf_paths, Mirror(), repair_only=True)[0].state == "intact"
    assert lmdb_data_file(zoo).read_bytes() == data
    DAMAGES[damage](sums)
    hostile_archives.truncate_file(lmdb_data_file(zoo))
    archive.unlink()
    finding = fetch_inputs([zoo.features], zoo.mmf_paths, Mirror(), repair_only=True)[0]
    assert finding.state == "damaged"
    assert "own.tar.gz" in str(finding.error)
    assert zoo.server.content_requests == []


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_files_unpacked_by_mmf_are_unpacked_again_from_the_same_archive(zoo: Zoo, share: float) -> None:
    unpack_like_mmf(zoo)
    hostile_archives.truncate_file(lmdb_data_file(zoo), share)
    assert zoo.features.quick_check().state == "not verified"
    status = zoo.features.verify()
    assert status.state == "damaged"
    assert "unpacked from features.tar.gz by MMF" in status.problems[0]
    [status] = fetch(zoo, zoo.features)
    assert (status.state, status.verified_against) == ("intact", "the published archive features.tar.gz")
    assert lmdb_data_file(zoo).read_bytes() == LMDB_DATA
    assert zoo.server.content_requests == []


@pytest.mark.parametrize("note", [None, "", '{"version": "0.9"}', "[]"])
def test_mmfs_marker_is_corrected_for_intact_files(zoo: Zoo, note: str | None) -> None:
    fetch(zoo, zoo.features)
    assert zoo.features.entry is not None
    marker = zoo.features.entry.marker
    marker.unlink()
    if note is not None:
        marker.write_text(note, encoding="utf-8")
    fetch(zoo, zoo.features)
    assert read_built_version(marker) == "1.0"
    assert len(zoo.server.content_requests) == 1


def test_files_without_an_archive_are_only_recorded(zoo: Zoo) -> None:
    write_tree(FC7_FILES, zoo.fc7.folder)
    status = zoo.fc7.verify()
    assert (status.state, status.verified_against) == ("recorded", "hashes recorded at first use")
    assert Manifest.load(zoo.fc7.folder) is not None
    hostile_archives.flip_byte(zoo.fc7.files()[0], 3)
    assert zoo.fc7.verify().state == "damaged"


@pytest.mark.parametrize("in_zoo", [True, False])
def test_features_from_a_users_archive_are_repaired_only_from_it(
    zoo: Zoo, user_dir: Path, in_zoo: bool, caplog: pytest.LogCaptureFixture
) -> None:
    archive = user_dir / "my features.tar.gz"
    archive.write_bytes(features_archive(b"mine" * 9999))
    extract_features(archive, zoo.mmf_paths, version="1.0")
    hostile_archives.truncate_file(lmdb_data_file(zoo))
    need = zoo.features if in_zoo else replace(zoo.features, entry=None)
    assert fetch(zoo, need)[0].state == "intact", "the archive is read from its path at extraction"

    hostile_archives.truncate_file(lmdb_data_file(zoo))
    moved = archive.rename(user_dir / "moved.tar.gz")
    archive.write_bytes(features_archive(b"others" * 9999))
    with pytest.raises(DataError, match=r"unpacked from my features\.tar\.gz, which is not in MMF's zoo") as raised:
        fetch(zoo, need)
    assert "--source" in str(raised.value.hint)
    assert f"{archive} is not the archive" in caplog.text
    archive.unlink()
    with pytest.raises(DataError, match="which is not in MMF's zoo"):
        fetch(zoo, need)
    assert zoo.server.content_requests == []
    moved.rename(archive)
    assert fetch(zoo, need, source=archive)[0].state == "intact"
    assert lmdb_data_file(zoo).read_bytes() == b"mine" * 9999


def test_features_of_unknown_origin_are_never_replaced_by_the_published_ones(zoo: Zoo) -> None:
    data = lmdb_data_file(zoo)
    data.parent.mkdir(parents=True)
    data.write_bytes(b"features of my own" * 1000)
    record_hashes(zoo.features.folder, zoo.features.names, title="")
    assert zoo.features.verify().state == "recorded"
    hostile_archives.truncate_file(data)
    with pytest.raises(DamagedFeaturesError, match="their source is unknown") as caught:
        fetch(zoo, zoo.features)
    assert "mmfw features add FOLDER" in str(caught.value.hint)
    assert zoo.server.content_requests == []

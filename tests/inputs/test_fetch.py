"""Fetching of missing files and repair of damaged ones, without MMF and LMDBs."""

from __future__ import annotations

import errno
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmf_win.errors import ArchiveError, MmfEnvironmentError, ResourceError, UsageError
from mmf_win.files import free_space, read_json
from mmf_win.inputs.hub import WEIGHTS, find_snapshot, make_model_input
from mmf_win.inputs.input_files import Mirror, UrlInput, fetch_inputs, query_download_sizes
from mmf_win.inputs.known_hashes import parse_hash_from_name
from mmf_win.locking import file_lock
from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives
from tests.worlds.memes import tar_gz, write_tree
from tests.worlds.mounts import remount
from tests.worlds.web_server import WebServer
from tests.worlds.zoo import FC7_FILES, LMDB_DATA, Zoo, features_archive, fetch, lmdb_data_file, sha256

BERT = {"config.json": b"{}", "vocab.txt": b"[PAD]", "pytorch_model.bin": b"weights"}
SNAPSHOT = "hub/models--owner--tiny/snapshots/1234"


def test_missing_files_are_fetched_once_and_have_the_published_hash(zoo: Zoo) -> None:
    statuses = fetch(zoo, zoo.features, zoo.fc7)
    assert [status.state for status in statuses] == ["intact", "intact"]
    assert lmdb_data_file(zoo).read_bytes() == LMDB_DATA
    assert {path.name: path.read_bytes() for path in zoo.fc7.files()} == FC7_FILES
    assert statuses[0].verified_against == "the published archive features.tar.gz"
    assert read_json(zoo.mmf_paths.dataset.features / ".built.json")["version"] == "1.0"
    zoo.server.requests.clear()
    assert fetch(zoo, zoo.features)[0].state == "intact"
    assert zoo.server.requests == []


def test_one_failed_download_does_not_stop_the_others(zoo: Zoo) -> None:
    features, fc7 = zoo.features, zoo.fc7
    archive = zoo.server.files.pop("features.tar.gz")
    with pytest.raises(MmfEnvironmentError, match=r"features\.tar\.gz"):
        fetch(zoo, features, fc7)
    assert {path.name: path.read_bytes() for path in fc7.files()} == FC7_FILES
    shutil.rmtree(fc7.folder)
    zoo.server.files.clear()
    with pytest.raises(MmfEnvironmentError, match=r"features\.tar\.gz.*\n.*fc7\.tar\.gz"):
        fetch(zoo, features, fc7)
    zoo.server.files["features.tar.gz"] = archive
    assert fetch(zoo, features)[0].state == "intact"


def test_archive_is_kept_for_repairs_unless_disabled(zoo: Zoo) -> None:
    fetch(zoo, zoo.features)
    assert (zoo.mmf_paths.dataset.features / "features.tar.gz").is_file()
    fetch(zoo, zoo.fc7, keep_archives=False)
    assert sorted(path.name for path in zoo.fc7.folder.glob("[!.]*")) == [
        "SHA256SUMS",
        "SHA256SUMS.json",
        *sorted(FC7_FILES),
    ]


@pytest.mark.parametrize("name", ["features.tar.gz", ""], ids=["file", "folder"])
def test_local_archive_is_used_and_not_moved(zoo: Zoo, user_dir: Path, name: str) -> None:
    copy_dir = user_dir / "copy of the files"
    copy_dir.mkdir()
    (copy_dir / "features.tar.gz").write_bytes(zoo.server.files["features.tar.gz"])
    assert fetch(zoo, zoo.features, source=copy_dir / name)[0].state == "intact"
    assert (copy_dir / "features.tar.gz").is_file()
    assert not (zoo.mmf_paths.dataset.features / "features.tar.gz").exists()
    assert zoo.server.content_requests == []


def test_wrong_local_archive_is_reported_and_not_used(
    zoo: Zoo, user_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (user_dir / "features.tar.gz").write_bytes(features_archive(b"other"))
    assert fetch(zoo, zoo.features, source=user_dir)[0].state == "intact"
    assert "not the published archive" in caplog.text
    assert lmdb_data_file(zoo).read_bytes() == LMDB_DATA


@pytest.mark.parametrize("file", ["", "/features.tar.gz"])
def test_mirror_is_tried_before_the_default_source(zoo: Zoo, file: str) -> None:
    with WebServer.serving(features_tar_gz=features_archive()) as mirror:
        fetch(zoo, zoo.features, zoo.fc7, source=mirror.url + file)
        assert [request.path for request in mirror.content_requests] == ["/features.tar.gz", f"{file}/fc7.tar.gz"]
    assert [request.path for request in zoo.server.content_requests] == ["/fc7.tar.gz"]


def test_source_without_needed_files_is_refused_before_any_download(zoo: Zoo, user_dir: Path) -> None:
    renamed_archive = user_dir / "features (1).tar.gz"
    renamed_archive.write_bytes(zoo.server.files["features.tar.gz"])
    for source in (renamed_archive, user_dir):
        with pytest.raises(UsageError, match="contains none of the needed files") as raised:
            fetch(zoo, zoo.features, zoo.fc7, source=source)
        assert raised.value.hint == "use a source that contains features.tar.gz, fc7.tar.gz"
    assert zoo.server.content_requests == []


@pytest.mark.parametrize("source", ["download", "folder"])
def test_torchvision_weights_are_fetched_into_its_cache(zoo: Zoo, user_dir: Path, source: str) -> None:
    content = b"resnet" * 1000
    name = f"resnet152-{sha256(content)[:8]}.pth"
    url = f"{zoo.server.url}/{name}"
    need = UrlInput("ResNet-152", user_dir / "torch", zoo.mmf_paths, (name,), url)
    copy_dir = user_dir / "copy of the files"
    copy_dir.mkdir()
    (copy_dir / name).write_bytes(content if source == "folder" else b"other")
    zoo.server.files[name] = content
    assert fetch(zoo, need, source=copy_dir)[0].state == "intact"
    assert need.files()[0].read_bytes() == content
    assert len(zoo.server.content_requests) == (source == "download")
    hostile_archives.truncate_file(need.files()[0])
    assert need.verify().state == "damaged"
    assert fetch(zoo, need, source=copy_dir)[0].state == "intact"


@pytest.mark.parametrize("source", ["nowhere", "C://no memes here"])
def test_nonexistent_source_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="file or folder not found"):
        Mirror.from_source(source)


def test_download_with_wrong_content_is_discarded(zoo: Zoo) -> None:
    need = zoo.features
    zoo.server.files["features.tar.gz"] = features_archive(b"other")
    with pytest.raises(MmfEnvironmentError, match="the download was removed"):
        fetch(zoo, need)
    assert need.quick_check().state == "missing"
    assert not (zoo.mmf_paths.dataset.features / ".built.json").exists()
    assert not (zoo.mmf_paths.dataset.features / "features.tar.gz").exists()


def test_archive_without_the_files_is_refused_despite_its_correct_hash(zoo: Zoo) -> None:
    zoo.server.files["features.tar.gz"] = tar_gz({"readme.txt": b""})
    with pytest.raises(ArchiveError, match="does not contain the region features"):
        fetch(zoo, zoo.features)
    assert zoo.features.quick_check().state == "missing"
    assert not (zoo.mmf_paths.dataset.features / ".built.json").exists()


def test_small_disk_is_detected_before_any_download(zoo: Zoo, small_disk: Path) -> None:
    mmf_paths = MmfPaths(zoo.mmf_paths.cache_dir, small_disk, zoo.mmf_paths.save_dir)
    (small_disk / "filler").write_bytes(bytes(free_space(small_disk) - (64 << 20)))
    with pytest.raises(ResourceError, match="not enough disk space"):
        fetch_inputs([Zoo(zoo.server, mmf_paths).features], mmf_paths, Mirror())
    assert zoo.server.content_requests == []


def test_free_space_is_checked_on_the_target_disk_of_each_file(zoo: Zoo, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(free_space(small_disk) - (64 << 20)))
    content = b"resnet" * 1000
    name = f"resnet152-{sha256(content)[:8]}.pth"
    zoo.server.files[name] = content
    need = UrlInput("ResNet-152", small_disk / "torch", zoo.mmf_paths, (name,), f"{zoo.server.url}/{name}")
    with pytest.raises(ResourceError, match=r"small disk.*not enough disk space") as raised:
        fetch(zoo, zoo.fc7, need)
    assert "TORCH_HOME" in (raised.value.hint or "")
    assert zoo.server.content_requests == []
    mmf_paths = MmfPaths(zoo.mmf_paths.cache_dir, small_disk, zoo.mmf_paths.save_dir)
    cache_input = UrlInput("ResNet-152", zoo.mmf_paths.cache_dir, mmf_paths, (name,), f"{zoo.server.url}/{name}")
    assert fetch_inputs([cache_input], mmf_paths, Mirror())[0].state == "intact"


def test_file_without_unpacking_needs_only_its_own_size(zoo: Zoo, small_disk: Path) -> None:
    mmf_paths = MmfPaths(zoo.mmf_paths.cache_dir, small_disk, zoo.mmf_paths.save_dir)
    content = bytes((free_space(small_disk) - (64 << 20)) // 2)
    name = f"resnet152-{sha256(content)[:8]}.pth"
    zoo.server.files[name] = content
    need = UrlInput("ResNet-152", small_disk / "torch", mmf_paths, (name,), f"{zoo.server.url}/{name}")
    assert fetch_inputs([need], mmf_paths, Mirror())[0].state == "intact"


def test_download_size_is_known_in_advance(zoo: Zoo) -> None:
    length = len(zoo.server.files["features.tar.gz"])
    assert query_download_sizes([zoo.features], Mirror()) == {zoo.features: length}


def test_read_only_folder_is_still_verified(zoo: Zoo, small_disk: Path) -> None:
    zoo = Zoo(zoo.server, MmfPaths(zoo.mmf_paths.cache_dir, small_disk, zoo.mmf_paths.save_dir))
    write_tree({**FC7_FILES, "fc7.tar.gz": zoo.server.files["fc7.tar.gz"]}, zoo.fc7.folder)
    remount(small_disk, "ro")
    status = zoo.fc7.verify()
    assert (status.state, status.verified_against) == ("recorded", "nothing (folder not writable)")
    with pytest.raises(OSError) as raised:
        fetch(zoo, zoo.features)
    assert raised.value.errno == errno.EROFS


def test_second_fetch_waits_for_the_first_and_logs_it(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    zoo.mmf_paths.data_dir.mkdir(parents=True)
    with ThreadPoolExecutor() as executor:
        with file_lock(zoo.mmf_paths.data_dir / ".mmfw-fetch-lock"):
            fetching = executor.submit(fetch, zoo, zoo.fc7)
            while not fetching.done() and "waiting for another mmfw process" not in caplog.text:
                time.sleep(0.01)
            assert not fetching.done() and zoo.server.requests == []
        assert fetching.result()[0].state == "intact"


@pytest.mark.parametrize(
    ("stored_at", "source_dir"),
    [
        ("tiny", ""),
        ("tiny", "tiny"),
        ("owner/tiny", ""),
        (SNAPSHOT, ""),
        (SNAPSHOT, "hub"),
        (SNAPSHOT, "hub/models--owner--tiny"),
        (SNAPSHOT, SNAPSHOT),
    ],
)
def test_copy_of_a_model_is_found_from_any_of_its_folders(
    user_dir: Path, mmf_paths: MmfPaths, stored_at: str, source_dir: str
) -> None:
    write_tree({f"{stored_at}/{name}": content for name, content in BERT.items()}, user_dir)
    for name, expected in (("owner/tiny", [user_dir / stored_at]), ("owner/other", [])):
        assert (
            make_model_input(name, mmf_paths, weights=WEIGHTS).find_copies(Mirror(path=user_dir / source_dir))
            == expected
        )


def test_copy_that_replaces_a_download_has_no_hash_in_its_name(
    user_dir: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without symbolic links, as on Windows, the blob is a hard link to the downloaded file."""
    monkeypatch.setenv("HF_HUB_CACHE", str(user_dir / "hub"))
    blob = user_dir / "hub" / "models--owner--tiny" / "blobs" / ("0" * 40)
    hub_files = {f"{SNAPSHOT}/vocab.txt": b"x", "hub/models--owner--tiny/refs/main": b"1234"}
    write_tree({**hub_files, **{f"own/{name}": content for name, content in BERT.items()}}, user_dir)
    snapshot = find_snapshot("owner/tiny")
    assert snapshot is not None
    blob.parent.mkdir()
    blob.hardlink_to(snapshot / "vocab.txt")
    assert parse_hash_from_name(snapshot / "vocab.txt") == blob.name
    tiny = make_model_input("owner/tiny", mmf_paths, weights=WEIGHTS)
    (user_dir / "own").rename(user_dir / "tiny")
    tiny.fetch(Mirror(path=user_dir), tiny.quick_check())
    assert parse_hash_from_name(snapshot / "vocab.txt") is None

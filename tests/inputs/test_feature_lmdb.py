"""LMDBs of region features built from the user's files: building, replacing, errors, damage, interruption."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import namedtuple
from itertools import product
from pathlib import Path

import pytest

from mmf_win.dataset.annotations import AnnotationRow
from mmf_win.dataset.region_features import extract_features
from mmf_win.doctor.verify_all import repair_parts, verify_parts
from mmf_win.errors import DamagedFeaturesError, DataError, DatasetError, ResourceError, UsageError
from mmf_win.inputs.archive_input import RegionFeaturesInput
from mmf_win.inputs.feature_lmdb import add_features, find_mismatched_features, read_image_keys, rebuild_features_hint
from mmf_win.inputs.input_files import Mirror, fetch_inputs
from mmf_win.integrity.manifest import Manifest, ManifestEntry
from mmf_win.paths import MmfPaths
from mmf_win.unpacking.staging import is_install_incomplete, staging_folder
from mmf_win.upstream.zoo import ZooEntry
from tests.inputs.conftest import AddFeatures, feature_state
from tests.worlds import feature_files, hostile_archives
from tests.worlds.memes import jsonl, write_tree
from tests.worlds.tools import NEWEST_MMF, mark_wide, requires_newest_mmf
from tests.worlds.zoo import features_archive, sha256

pytestmark = pytest.mark.torch

_CONVERTER = """\
import runpy, sys
from pathlib import Path
from mmf_win import compat
root = Path(sys.argv[1])
compat.install(root)
arguments = ["--mode", "convert", "--lmdb_path", sys.argv[2], "--features_folder", sys.argv[3]]
sys.argv = ["lmdb_conversion.py", *arguments]
runpy.run_path(str(root / "tools/scripts/features/lmdb_conversion.py"), run_name="__main__")
"""


@requires_newest_mmf
def test_built_lmdb_equals_the_output_of_mmfs_converter(user_dir: Path, lmdb: Path, add_to_lmdb: AddFeatures) -> None:
    import numpy as np

    folder = feature_files.write_pairs(user_dir / "npy", ["00001", "img_00002", "смех"])
    feature_files.write_pair(folder / "sub", "00003", regions=4, feature_size=2048, num_boxes=100)
    np.save(folder / "grid.npy", np.ones((1, 7, 7, 2048), dtype=np.float32))
    (folder / "00001_info.npy").unlink()
    mmf_lmdb = user_dir / "theirs.lmdb"
    arguments = [str(NEWEST_MMF), str(mmf_lmdb), str(folder)]
    process = subprocess.run([sys.executable, "-c", _CONVERTER, *arguments], capture_output=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr[-2000:]
    add_to_lmdb(folder)
    assert feature_files.read_raw_records(lmdb) == feature_files.read_raw_records(mmf_lmdb)


def test_built_lmdb_has_mmfs_format_and_is_intact(
    user_dir: Path, lmdb: Path, mmf_paths: MmfPaths, add_to_lmdb: AddFeatures
) -> None:
    import numpy as np

    folder = feature_files.write_pairs(user_dir / "npy", [f"{n:05}" for n in range(1, 21)])
    (folder / "00002_info.npy").unlink()
    added = add_to_lmdb(folder)
    assert [added[key] for key in ("images", "numbers", "regions")] == [20, 2048, [10, 10]]
    assert added["without_info"] == ["00002"]
    records = feature_files.read_records(lmdb)
    assert set(records["00002"]) == {"feature_path", "features"}
    for name, value in feature_files.make_info().items():
        assert np.array_equal(records["00001"][name], value)
    assert np.array_equal(records["00001"]["features"], np.load(folder / "00001.npy"))
    size = sum(file.stat().st_size for file in folder.iterdir())
    data = lmdb / "data.mdb"
    assert size < data.stat().st_size < size + (2 << 20)
    assert feature_state(lmdb, mmf_paths) == "intact"
    sums = (lmdb.parent / "SHA256SUMS").read_text(encoding="utf-8")
    assert sums == f"{sha256(data.read_bytes())}  {lmdb.name}/data.mdb\n"
    assert read_image_keys(lmdb) == records.keys()
    (finding,) = verify_parts(["features"], mmf_paths)
    assert (finding.state, finding.verified_against) == ("intact", "hashes of the files that mmfw wrote")
    assert not staging_folder(lmdb.parent).exists()


def test_existing_features_are_replaced_only_with_force(
    user_dir: Path, lmdb: Path, mmf_paths: MmfPaths, add_to_lmdb: AddFeatures
) -> None:
    from mmf_win.demo.generate import write_features_archive
    from tests.demo.test_region_features import half_red_half_blue

    archive = user_dir / "features.tar.gz"
    write_features_archive(archive, [("01234", half_red_half_blue())])
    extract_features(archive, mmf_paths, version=None)
    folder = feature_files.write_pairs(user_dir / "npy", ["00001"])
    with pytest.raises(DatasetError, match="already") as raised:
        add_to_lmdb(folder)
    assert "--force" in str(raised.value.hint)
    assert set(feature_files.read_records(lmdb)) == {"01234"} and feature_state(lmdb, mmf_paths) == "intact"
    assert add_to_lmdb(folder, force=True)["images"] == 1
    manifest = Manifest.load(lmdb.parent)
    assert manifest is not None
    assert (manifest.hash_origin, manifest.source, manifest.verified_against) == (
        "built",
        None,
        "hashes of the files that mmfw wrote",
    )
    assert set(feature_files.read_records(lmdb)) == {"00001"} and feature_state(lmdb, mmf_paths) == "intact"


def test_features_of_two_detectors_are_refused(user_dir: Path, add_to_lmdb: AddFeatures) -> None:
    one = feature_files.write_pairs(user_dir / "one", ["00001"])
    other = feature_files.write_pairs(user_dir / "other", ["00002"], feature_size=2054)
    with pytest.raises(DatasetError, match=r"00002\.npy: 2054 numbers per region, but 2048 in .*00001"):
        add_to_lmdb(one, other)


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("damaged_file", ["00003.npy", "00003_info.npy"])
def test_bad_feature_file_changes_nothing(
    user_dir: Path, lmdb: Path, mmf_paths: MmfPaths, add_to_lmdb: AddFeatures, exists: bool, damaged_file: str
) -> None:
    if exists:
        add_to_lmdb(feature_files.write_pairs(user_dir / "one", ["00001"]))
    before = (lmdb / "data.mdb").read_bytes() if exists else None
    other = feature_files.write_pairs(user_dir / "other", ["00002", "00003"])
    hostile_archives.truncate_file(other / damaged_file)
    with pytest.raises(DatasetError, match=re.escape(damaged_file)):
        add_to_lmdb(other, force=True)
    assert feature_state(lmdb, mmf_paths) == ("intact" if exists else "missing")
    assert ((lmdb / "data.mdb").read_bytes() if exists else None) == before
    assert not staging_folder(lmdb.parent).exists()


_DIE = """\
import os, signal, sys
from pathlib import Path
from mmf_win.features import builder
from mmf_win.inputs import feature_lmdb
from mmf_win.paths import MmfPaths
from mmf_win.unpacking import staging

def die(*arguments, **options):
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows, SIGTERM kills too

moment, folder, data = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
if moment == "building":
    read = builder.read_record
    builder.read_record = lambda path, key: die() if key == "00004" else read(path, key)
    def run_helper(module, *arguments):  # runs in this process, so the kill ends both
        builder.main(*arguments)
    feature_lmdb.run_lmdb_helper = run_helper
if moment == "built":
    feature_lmdb.install_staged = die
if moment == "moving":
    moves, rename = [], staging.rename
    def rename_once(old, new):
        die() if moves else moves.append(rename(old, new))
    staging.rename = rename_once
mmf_paths = MmfPaths.resolve(data, Path("save"))
feature_lmdb.add_features([folder], mmf_paths.dataset.features / "detectron.lmdb", mmf_paths, force=True)
"""


def test_death_of_the_building_process_is_reported(
    user_dir: Path, lmdb: Path, add_to_lmdb: AddFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = [sys.executable, "-c", "raise SystemExit(9)"]
    monkeypatch.setattr("mmf_win.inputs.feature_lmdb.module_command", lambda *_: died)
    with pytest.raises(DatasetError, match=r"cannot be built.*exit code 9") as raised:
        add_to_lmdb(feature_files.write_pairs(user_dir / "npy", ["00001"]))
    assert str(raised.value).startswith(f"{lmdb}: ") and raised.value.hint is None
    assert not lmdb.exists()


@pytest.mark.parametrize(
    ("moment", "exists"),
    mark_wide(
        product(["building", "built", "moving"], [True, False]), except_for=[("building", False), ("moving", True)]
    ),
)
def test_killed_build_leaves_no_partial_lmdb_and_the_next_build_succeeds(
    moment: str, exists: bool, user_dir: Path, lmdb: Path, mmf_paths: MmfPaths, add_to_lmdb: AddFeatures
) -> None:
    if exists:
        add_to_lmdb(feature_files.write_pairs(user_dir / "old", ["00001", "00002"]))
    folder = feature_files.write_pairs(user_dir / "new", ["00003", "00004"])
    arguments = ["-X", "utf8", "-c", _DIE, moment, str(folder), str(mmf_paths.data_dir)]
    killed = subprocess.run([sys.executable, *arguments], stdin=subprocess.DEVNULL, capture_output=True)
    assert killed.returncode != 0
    if moment == "moving":
        assert is_install_incomplete(lmdb.parent)
    else:
        assert feature_state(lmdb, mmf_paths) == ("intact" if exists else "missing")
    add_to_lmdb(folder, force=True)
    assert set(feature_files.read_records(lmdb)) == {"00003", "00004"}
    assert feature_state(lmdb, mmf_paths) == "intact"
    assert not staging_folder(lmdb.parent).exists()


def test_full_disk_is_detected_before_anything_is_written(user_dir: Path) -> None:
    import mmf_win.files
    from mmf_win.features import builder

    usage = namedtuple("usage", "total used free")
    folder = feature_files.write_pairs(user_dir / "npy", ["00001"])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ResourceError):
        patch.setattr(mmf_win.files.shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
        builder.build_lmdb(user_dir / "a.lmdb", [folder])
    assert not (user_dir / "a.lmdb").exists()


def test_folder_with_another_manifest_is_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    (user_dir / "own").mkdir()
    (user_dir / "own" / "a.txt").write_bytes(b"a")
    Manifest(user_dir / "own", {"a.txt": ManifestEntry("0" * 64, 1)}, "archive").save()
    with pytest.raises(UsageError, match=r"a\.txt"):
        add_features([feature_files.write_pairs(user_dir / "npy", ["1"])], user_dir / "own" / "b.lmdb", mmf_paths)


def test_user_files_do_not_shadow_libraries(
    user_dir: Path, mmf_paths: MmfPaths, add_to_lmdb: AddFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_dir / "lmdb.py").write_text("raise SystemExit(9)", encoding="utf-8")
    monkeypatch.chdir(user_dir)
    assert add_to_lmdb(feature_files.write_pairs(user_dir / "npy", ["1"]))["images"] == 1


def test_damaged_lmdb_is_rebuilt_from_its_source_folders(
    user_dir: Path, lmdb: Path, mmf_paths: MmfPaths, add_to_lmdb: AddFeatures
) -> None:
    one, two = (feature_files.write_pairs(user_dir / name, [name]) for name in ("00001", "00002"))
    add_to_lmdb(one, two)
    content = feature_files.read_raw_records(lmdb)
    for damage in (lambda: hostile_archives.flip_byte(lmdb / "data.mdb", 9000), (lmdb / "data.mdb").unlink):
        damage()
        (finding,) = repair_parts(["features"], mmf_paths, (), Mirror())
        assert finding.state == "damaged" and isinstance(finding.error, DamagedFeaturesError)
        advice = finding.error.hint
        assert advice and str(one) in advice and str(two) in advice
        assert add_to_lmdb(one, two, force=True)["images"] == 2
        assert feature_files.read_raw_records(lmdb) == content
        assert feature_state(lmdb, mmf_paths) == "intact"


def test_archive_next_to_a_built_lmdb_is_not_its_source(
    user_dir: Path, lmdb: Path, mmf_paths: MmfPaths, add_to_lmdb: AddFeatures
) -> None:
    folder = feature_files.write_pairs(user_dir / "npy", ["00001"])
    add_to_lmdb(folder)
    archive = lmdb.parent / "features.tar.gz"
    archive.write_bytes(features_archive())
    url, digest = "http://127.0.0.1:9/nothing", sha256(archive.read_bytes())
    entry = ZooEntry(lmdb.parent, "1", url, archive.name, digest)
    names = ("detectron.lmdb/data.mdb",)
    features = RegionFeaturesInput("region features", lmdb.parent, mmf_paths, names, entry=entry)
    assert fetch_inputs([features], mmf_paths, Mirror())[0].state == "intact"
    hostile_archives.flip_byte(lmdb / "data.mdb", 9000)
    with pytest.raises(DataError) as raised:
        fetch_inputs([features], mmf_paths, Mirror())
    assert raised.value.hint == rebuild_features_hint(lmdb)
    add_to_lmdb(folder, force=True)
    assert set(feature_files.read_records(lmdb)) == {"00001"}


def test_rows_with_features_are_counted_per_split(
    user_dir: Path, mmf_paths: MmfPaths, add_to_lmdb: AddFeatures
) -> None:
    images = {"train": ["img/00001.png", "img/00002.png", "img/x.y.jpg"], "dev": ["img/00003.png"]}
    rows = {s: [{"id": n, "img": i, "text": ""} for n, i in enumerate(names)] for s, names in images.items()}
    write_tree(
        {f"{split}.jsonl": jsonl(split_rows) for split, split_rows in rows.items()}, mmf_paths.dataset.annotations
    )
    folder = feature_files.write_pairs(user_dir / "npy", ["1", "00002", "x", "other"])
    feature_files.write_pair(folder / "sub", "00003")  # MMF looks only for the file name, without folders
    assert add_to_lmdb(folder)["splits"] == {
        "train": {"rows": 3, "with_features": 3},
        "dev": {"rows": 1, "with_features": 0},
    }


@pytest.mark.parametrize(
    ("images", "keys", "expected"),
    [
        (
            ["img/12.png", "img/cat_12.png", "img/dog_7.png", "img/cow_7.png", "img/00008.png"],
            ["12", "cat_12", "7", "8"],
            {"img/cat_12.png": "12", "img/dog_7.png": "7", "img/cow_7.png": "7"},
        ),
        (["img/a/1.png", "img/b/1.png", "img/2.png", "img/2.png"], ["1", "2"], {"img/b/1.png": "1"}),
    ],
    ids=["number at the end of another name", "same name in two folders"],
)
def test_image_that_would_get_features_of_another_is_reported(
    images: list[str], keys: list[str], expected: dict[str, str]
) -> None:
    rows = [AnnotationRow(n, name, "", None, n) for n, name in enumerate(images)]
    assert find_mismatched_features(rows, keys) == expected


def test_damaged_annotation_file_is_named_before_anything_is_written(
    user_dir: Path, mmf_paths: MmfPaths, lmdb: Path, add_to_lmdb: AddFeatures
) -> None:
    write_tree({"train.jsonl": b"{"}, mmf_paths.dataset.annotations)
    with pytest.raises(DatasetError, match=r"train\.jsonl:1"):
        add_to_lmdb(feature_files.write_pairs(user_dir / "npy", ["1"]))
    assert not lmdb.exists()

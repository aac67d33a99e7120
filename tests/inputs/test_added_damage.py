"""A damaged LMDB of features that the user added, and how it is made again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mmf_win.commands.hints import hint_for
from mmf_win.doctor.verify import Scope, repair
from mmf_win.errors import (
    DamagedFeatures,
    DataError,
    DatasetError,
)
from mmf_win.inputs.added import Added, add_features
from mmf_win.inputs.fetch import Fetcher
from mmf_win.inputs.listing import Need
from mmf_win.inputs.verify import verify_need
from mmf_win.paths import Places
from tests.inputs.conftest import need_of, state_of
from tests.worlds import hostile, npy

pytestmark = pytest.mark.torch


def test_a_damaged_one_is_made_again_from_the_folders_it_was_made_of(
    user_dir: Path, lmdb: Path, places: Places, add: Callable[..., Added]
) -> None:
    one, two = (npy.write_pairs(user_dir / name, [name]) for name in ("00001", "00002"))
    add(one)
    add(two)
    content = npy.raw_records(lmdb)
    for damage in (lambda: hostile.flip_byte(lmdb / "data.mdb", 9000), (lmdb / "data.mdb").unlink):
        damage()
        (finding,) = repair(Scope.of(["features"], places), places)
        assert finding.state == "damaged" and isinstance(finding.error, DamagedFeatures)
        advice = hint_for(finding.error)
        assert advice and str(one) in advice and str(two) in advice
        with pytest.raises(DatasetError, match="damaged") as refused:
            add(two)
        assert hint_for(refused.value) == advice
        assert add(one, two, force=True).added == 2
        assert npy.raw_records(lmdb) == content
        assert state_of(lmdb, places) == "intact"


def test_an_archive_beside_it_is_not_taken_for_its_origin(
    user_dir: Path, lmdb: Path, places: Places, add: Callable[..., Added]
) -> None:
    from mmf_win.upstream.zoo import ZooEntry
    from tests.worlds.zoo import features_archive, sha256

    folder = npy.write_pairs(user_dir / "npy", ["00001"])
    add(folder)
    archive = lmdb.parent / "features.tar.gz"
    archive.write_bytes(features_archive())
    url, digest = "http://127.0.0.1:9/nothing", sha256(archive.read_bytes())
    need = Need(
        "features",
        "region features",
        lmdb.parent,
        ("detectron.lmdb/data.mdb",),
        ZooEntry(lmdb.parent, "1", url, archive.name, digest),
    )
    assert Fetcher(places).fetch([need])[0].state == "intact"
    hostile.flip_byte(lmdb / "data.mdb", 9000)
    with pytest.raises(DataError) as raised:
        Fetcher(places).fetch([need])
    assert hint_for(raised.value) == hint_for(DamagedFeatures("", lmdb=lmdb))
    add(folder, force=True)
    assert set(npy.records(lmdb)) == {"00001"}


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_cut_off_lmdb_of_unknown_origin_is_not_extended(
    share: float, user_dir: Path, lmdb: Path, add: Callable[..., Added]
) -> None:
    folder = npy.write_pairs(user_dir / "npy", ["00001", "00002", "00003"])
    add(folder)
    for path in (lmdb.parent / "SHA256SUMS", lmdb.parent / "SHA256SUMS.json"):
        path.unlink()
    os.truncate(lmdb / "data.mdb", int(npy.used_bytes(lmdb) * share))
    with pytest.raises(DatasetError, match="damaged") as raised:
        add(npy.write_pairs(user_dir / "more", ["00004"]))
    assert "--force" in str(hint_for(raised.value))
    assert add(folder, force=True).records == 3


def test_a_damaged_lmdb_is_not_taken_for_intact_when_another_comes_beside_it(
    user_dir: Path, places: Places
) -> None:
    one, two = (user_dir / "own" / f"{name}.lmdb" for name in ("one", "two"))
    add_features([npy.write_pairs(user_dir / "1", ["1"])], one, places)
    hostile.flip_byte(one / "data.mdb", 5000)
    os.utime(one / "data.mdb", (1, 1))
    add_features([npy.write_pairs(user_dir / "2", ["2"])], two, places)
    assert [verify_need(need_of(lmdb), places).state for lmdb in (one, two)] == ["damaged", "intact"]

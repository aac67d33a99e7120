"""A damaged LMDB of features that the user added, and how it is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.commands.hints import hint_for
from mmf_win.doctor.verify import repair
from mmf_win.errors import (
    DamagedFeatures,
    DataError,
)
from mmf_win.inputs.fetch import Fetcher
from mmf_win.inputs.listing import Need
from mmf_win.paths import Places
from tests.inputs.conftest import Add, state_of
from tests.worlds import hostile, npy

pytestmark = pytest.mark.torch


def test_a_damaged_one_is_made_again_from_the_folders_it_was_made_of(
    user_dir: Path, lmdb: Path, places: Places, add: Add
) -> None:
    one, two = (npy.write_pairs(user_dir / name, [name]) for name in ("00001", "00002"))
    add(one, two)
    content = npy.raw_records(lmdb)
    for damage in (lambda: hostile.flip_byte(lmdb / "data.mdb", 9000), (lmdb / "data.mdb").unlink):
        damage()
        (finding,) = repair(["features"], places)
        assert finding.state == "damaged" and isinstance(finding.error, DamagedFeatures)
        advice = hint_for(finding.error)
        assert advice and str(one) in advice and str(two) in advice
        assert add(one, two, force=True)["images"] == 2
        assert npy.raw_records(lmdb) == content
        assert state_of(lmdb, places) == "intact"


def test_an_archive_beside_it_is_not_taken_for_its_origin(
    user_dir: Path, lmdb: Path, places: Places, add: Add
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

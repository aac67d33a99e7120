"""``mmfw features add`` as a user types it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.inputs.keys import remake_features
from mmf_win.paths import Places
from tests.worlds import hostile, npy
from tests.worlds.memes import lay_out, memes
from tests.worlds.tools import typed

pytestmark = pytest.mark.torch


@pytest.fixture
def data(user_dir: Path) -> Path:
    """MMF's data folder with a dataset of which nobody has features."""
    data = user_dir / "data dir"
    annotations = {
        name: content for name, content in memes(top="", litter=False).items() if name.endswith(".jsonl")
    }
    lay_out(annotations, Places.resolve(data).dataset.annotations)
    return data


def test_features_are_put_where_mmf_looks(
    user_dir: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = npy.write_pairs(user_dir / "извлечено 特征", [f"{n:05}" for n in range(1, 7)])
    words = ["features", "add", str(folder), "--data-dir", str(data), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    lmdb = Places.resolve(data).dataset.features / "detectron.lmdb"
    assert (found["lmdb"], found["images"]) == (str(lmdb), 6)
    assert found["splits"]["train"] == {"rows": 6, "with_features": 6}
    assert found["splits"]["dev_seen"] == {"rows": 3, "with_features": 0}
    assert main(words[:-1]) == 3
    assert "--force" in capsys.readouterr().err
    assert main([*words[:-1], "--force"]) == 0
    said = capsys.readouterr()
    assert [line.split() for line in said.out.splitlines()][1] == ["train", "6", "6"]
    assert f"6 images: {lmdb}" in said.err


def test_what_models_may_not_take_is_told(
    user_dir: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = user_dir / "npy"
    npy.write_pair(folder / "sub", "00001", numbers=2054)
    npy.write_pair(folder / "sub", "00002", numbers=2054, regions=36)
    (folder / "sub" / "00001_info.npy").unlink()
    assert main(["features", "add", str(folder), "--data-dir", str(data)]) == 0
    said = capsys.readouterr().err
    for told in ("sub/00001", "10 to 36 regions", "2054", "ViLBERT", "max_features"):
        assert told in said


def test_another_lmdb_may_be_built(user_dir: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = npy.write_pairs(user_dir / "npy", ["1"])
    lmdb = user_dir / "own" / "memes.lmdb"
    words = ["features", "add", str(folder), "--data-dir", str(data)]
    assert main([*words, "-o", str(lmdb)]) == 0
    assert set(npy.records(lmdb)) == {"1"}
    assert not Places.resolve(data).dataset.features.exists()
    assert main([*words, "--output", str(user_dir / "own" / "memes")]) == 2
    assert ".lmdb" in capsys.readouterr().err


def test_bad_input_is_named(user_dir: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = npy.write_pairs(user_dir / "npy", ["1"])
    where = ["--data-dir", str(data)]
    assert main(["features", "add", str(user_dir / "no"), *where]) == 2
    assert main(["features", "add", str(data), *where]) == 3
    hostile.cut(folder / "1.npy")
    assert main(["features", "add", str(folder), *where]) == 3
    assert str(folder / "1.npy") in capsys.readouterr().err


def test_the_command_that_is_printed_for_a_damaged_lmdb_makes_it_again(
    user_dir: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = npy.write_pairs(user_dir / "npy", ["1", "2"])
    where = ["--data-dir", str(data)]
    save = ["--save-dir", str(user_dir / "save")]
    assert main(["features", "add", str(folder), *where]) == 0
    places = Places.resolve(data)
    lmdb = places.dataset.features / "detectron.lmdb"
    hostile.cut(lmdb / "data.mdb")
    capsys.readouterr()
    assert main(["verify", "visual_bert", *where, *save]) == 3
    advice = remake_features(lmdb)
    said = capsys.readouterr().err
    assert advice in said and "mmfw repair" not in said
    assert main(["repair", "visual_bert", *where, *save]) == 3
    assert advice in capsys.readouterr().err
    assert main(typed(advice.strip("`"))[1:]) == 0
    assert set(npy.records(lmdb)) == {"1", "2"}


def test_a_list_of_hashes_that_cannot_be_read_is_one_error_and_the_hints_replace_it(
    user_dir: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = npy.write_pairs(user_dir / "npy", ["1"])
    features = Places.resolve(data).dataset.features
    where = ["--data-dir", str(data)]
    assert main(["features", "add", str(folder), *where]) == 0
    archive = shutil.make_archive(str(user_dir / "features"), "gztar", features)
    given = {"ARCHIVE": archive, "FOLDER": str(folder)}
    capsys.readouterr()
    for chosen in ("features add", "features extract"):
        (features / "SHA256SUMS").unlink()
        (features / "SHA256SUMS").mkdir()
        assert main(["verify", "features", *where]) == 3
        assert f"{features / 'SHA256SUMS'}: it cannot be read" in capsys.readouterr().err
        assert main(["repair", "features", *where]) == 3
        commands = re.findall("`mmfw (.*?)`", capsys.readouterr().err)
        [command] = [command for command in commands if command.startswith(chosen)]
        assert main([given.get(word, word) for word in typed(command)]) == 0
        assert main(["verify", "features", *where]) == 0
        capsys.readouterr()

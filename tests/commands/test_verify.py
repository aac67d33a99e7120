"""``mmfw verify``."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.inputs.hub import LocalModelInput, make_model_input
from mmf_win.inputs.input_files import InputFiles
from mmf_win.integrity.verify import record_hashes
from mmf_win.paths import MmfPaths
from mmf_win.upstream.install import find_mmf, use_checkout
from tests.worlds import hostile_archives, pickles
from tests.worlds.memes import dataset_files, read_tree, tar_gz, write_tree
from tests.worlds.mounts import remount
from tests.worlds.tools import MmfwRunner, requires_tool, run_unprivileged

RUN = "run mmbt_grid/2026-01-01T00-00-00"


def run_verify(mmfw: MmfwRunner, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """Return the results of ``mmfw verify --json`` by item."""
    return {result["what"]: result for result in mmfw.json("verify", *arguments, code=code)}


def states(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {title: result["state"] for title, result in results.items()}


def test_empty_folders_have_no_damage(empty_paths: MmfPaths, mmfw: MmfwRunner) -> None:
    mmfw("verify")
    assert "nothing to verify yet" in mmfw.err
    assert run_verify(mmfw) == {}
    assert not empty_paths.data_dir.exists(), "the command must not create anything"


def test_each_item_shows_what_it_was_verified_against(world: MmfPaths, mmfw: MmfwRunner) -> None:
    mmf_archive = f"mmf-{str(find_mmf().commit)[:12]}.tar.gz"
    for arguments in ([], ["--full"]):
        results = run_verify(mmfw, *arguments)
        assert {title: (result["state"], result["against"]) for title, result in results.items()} == {
            "dataset": ("intact", "the archive memes.zip"),
            "region features": ("intact", "the archive features.tar.gz"),
            "models/visual_bert": ("intact", "the archive visual_bert.tar.gz"),
            RUN: ("intact", "the checksums that torch wrote"),
            f"MMF {find_mmf().version}": ("intact", f"the published archive {mmf_archive}"),
        }


def test_damaged_items_are_named_with_the_command_that_repairs_them(world: MmfPaths, mmfw: MmfwRunner) -> None:
    hostile_archives.flip_byte(world.dataset.images / "img/00003.png", 100)
    hostile_archives.truncate_file(world.dataset.features / "detectron.lmdb/data.mdb")
    model = world.data_dir / "models/visual_bert/model.pth"
    model.unlink()
    hostile_archives.truncate_file(world.save_dir / "mmbt_grid/2026-01-01T00-00-00/checkpoints/current.ckpt")
    (find_mmf().root / "mmf.txt").unlink()
    results = run_verify(mmfw, code=3)
    assert {title: result["problems"] for title, result in results.items()} == {
        "dataset": ["changed: images/img/00003.png (different content)"],
        "region features": ["changed: detectron.lmdb/data.mdb (8192 instead of 16384 bytes)"],
        "models/visual_bert": [f"missing: {model}"],
        RUN: ["current.ckpt: truncated or not a checkpoint"],
        f"MMF {find_mmf().version}": ["missing: mmf.txt"],
    }
    assert set(states(results).values()) == {"damaged"}
    assert {result["part"] for result in results.values()} == {"dataset", "features", "runs", "mmf"}

    mmfw("verify", code=3)
    assert mmfw.out.count(" damaged ") == 5
    for result in results.values():
        assert f"{result['what']}: {result['problems'][0]}" in mmfw.err
    assert "the newest intact checkpoint is best.ckpt" in mmfw.err
    assert "(5 of 5 items)" in mmfw.err
    assert "hint: run `mmfw repair dataset features mmf`\n" in mmfw.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dataset"], ["dataset"]),
        (["features"], ["region features", "models/visual_bert"]),
        (["runs"], [RUN]),
        (["mmbt_grid/2026-01-01T00-00-00"], [RUN]),
        (["mmf"], ["MMF 9.9.0"]),
        (["runs", "dataset"], ["dataset", RUN]),
    ],
)
def test_only_named_parts_are_verified(
    world: MmfPaths, mmfw: MmfwRunner, arguments: list[str], expected: list[str]
) -> None:
    assert set(run_verify(mmfw, *arguments)) == set(expected)


@pytest.mark.parametrize("arguments", [["--full"], []])
def test_hostile_features_are_damaged_and_the_rest_is_verified(
    world: MmfPaths, mmfw: MmfwRunner, arguments: list[str]
) -> None:
    """With --full, the features are damaged even if their hashes are known."""
    pytest.importorskip("lmdb")
    from mmf_win.features import lmdb_file

    features = world.dataset.features
    shutil.rmtree(features)
    record = pickles.HOSTILE_PICKLES["too few objects"]
    lmdb_file.write_lmdb(features / "detectron.lmdb", [("00001", record)], 1 << 20)
    if arguments:
        record_hashes(features, ["detectron.lmdb/data.mdb"])
    results = run_verify(mmfw, *arguments, code=3)
    others = {title: state for title, state in states(results).items() if title != "region features"}
    assert list(others.values()) == ["intact"] * 4
    hostile_features = results["region features"]
    assert hostile_features["state"] == "damaged"
    assert "record 00001: creates an array" in hostile_features["problems"][0]
    assert "a source that you trust" in hostile_features["hint"]


def test_archive_of_hostile_features_is_refused_before_anything_is_replaced(
    world: MmfPaths, user_dir: Path, mmfw: MmfwRunner
) -> None:
    pytest.importorskip("lmdb")
    from mmf_win.features import lmdb_file

    lmdb, features = user_dir / "packed/detectron.lmdb", world.dataset.features
    lmdb_file.write_lmdb(lmdb, [("00001", pickles.HOSTILE_PICKLES["too few objects"])], 1 << 20)
    archive = user_dir / "own.tar.gz"
    archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": (lmdb / "data.mdb").read_bytes()}))
    before = read_tree(features)
    mmfw("features", "extract", archive, "--force", code=3)
    assert f"{archive}: rejected" in mmfw.err and "a source that you trust" in mmfw.err
    assert read_tree(features) == before
    assert states(run_verify(mmfw, "features"))["region features"] == "intact"


def test_unknown_name_is_a_usage_error(world: MmfPaths, mmfw: MmfwRunner) -> None:
    assert "did you mean dataset?" in mmfw("verify", "datset", code=2)
    mmfw("verify", "quite something else", code=2)
    assert "training.seed=1" in mmfw("verify", "dataset", "training.seed=1", code=2)


def test_long_list_is_shortened(world: MmfPaths, mmfw: MmfwRunner) -> None:
    for image in (world.dataset.images / "img").iterdir():
        image.unlink()
    mmfw("verify", code=3)
    assert mmfw.err.count("dataset: missing: ") == 10
    assert "dataset: and 6 more" in mmfw.err


def test_files_without_known_hashes_are_not_called_intact(
    empty_paths: MmfPaths, user_dir: Path, mmfw: MmfwRunner
) -> None:
    write_tree({"annotations/train.jsonl": b""}, empty_paths.dataset.root)
    folder = write_tree({"model.pth": b"x"}, empty_paths.data_dir / "models" / "mine")
    record_hashes(folder, ["model.pth"])
    write_tree({"mmf/version.py": b'__version__ = "1.0.0rc12"\n', "mmf_cli/run.py": b""}, user_dir / "mmf")
    use_checkout(user_dir / "mmf")
    results = run_verify(mmfw)
    mmf_state = {"MMF 1.0.0rc12": "not verified"}
    assert states(results) == {"dataset": "not verified", "models/mine": "recorded", **mmf_state}
    assert results["models/mine"]["against"] == "hashes recorded at first use"


def test_files_in_shared_caches_are_verified_by_their_names(
    empty_paths: MmfPaths, user_dir: Path, mmfw: MmfwRunner
) -> None:
    content = b"weights" * 1000
    weights = user_dir / f"resnet-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    weights.write_bytes(content)
    InputFiles("weights", user_dir, empty_paths, (weights.name,)).verify()
    (result,) = run_verify(mmfw).values()
    assert (result["state"], result["against"]) == ("intact", "the hash in its name")
    hostile_archives.flip_byte(weights, 100)
    for _ in range(2):
        (result,) = run_verify(mmfw, code=3).values()
        assert result["problems"] == [f"changed: {weights} (hash does not match the file name)"]
    weights.unlink()
    assert run_verify(mmfw) == {}


@pytest.mark.torch
def test_changed_mmf_is_reported_once_before_training(world: MmfPaths, mmfw: MmfwRunner) -> None:
    find_mmf().root.joinpath("mmf_cli", "run.py").write_bytes(b"")
    mmfw("train", "mmbt_grid", code=2)  # fails because this MMF is a fake
    assert "changed or missing files of MMF: 1" in mmfw.err
    mmfw("train", "mmbt_grid", code=2)
    assert "changed or missing" not in mmfw.err, "the change must be reported only once per process"


def test_hint_repeats_the_given_folders(world: MmfPaths, user_dir: Path, mmfw: MmfwRunner) -> None:
    other_paths = MmfPaths.resolve(user_dir / "elsewhere")
    convert(user_dir / "memes.zip", other_paths)
    other_paths.dataset.annotation_file("train").unlink()
    run_verify(mmfw, "--data-dir", str(other_paths.data_dir), code=3)
    mmfw("verify", "dataset", "--data-dir", other_paths.data_dir, code=3)
    [hint] = [line for line in mmfw.err.splitlines() if line.startswith("hint: ")]
    assert "mmfw repair dataset " in hint and str(other_paths.data_dir) in hint


def test_read_only_dataset_is_verified(
    empty_paths: MmfPaths, small_disk: Path, user_dir: Path, mmfw: MmfwRunner
) -> None:
    mmf_paths = MmfPaths.resolve(small_disk / "data")
    convert(hostile_archives.write_zip(user_dir / "memes.zip", dataset_files()), mmf_paths)
    remount(small_disk, "ro")
    assert states(run_verify(mmfw, "--data-dir", str(mmf_paths.data_dir))) == {"dataset": "intact"}


def test_local_bert_is_damaged_if_a_file_is_missing(empty_paths: MmfPaths, mmfw: MmfwRunner) -> None:
    """A BERT in another data folder is not verified here."""
    files = {"config.json": b"{}", "vocab.txt": b"[PAD]\n", "model.safetensors": b"weights"}
    berts = [
        write_tree(files, folder / "bert") for folder in (empty_paths.data_dir, empty_paths.data_dir.parent / "other")
    ]
    for bert in berts:
        (bert.parent / "datasets" / "hateful_memes").mkdir(parents=True)
        assert LocalModelInput("BERT", bert, empty_paths).verify().state == "recorded"
    assert [result["folder"] for result in run_verify(mmfw).values()] == [str(berts[0])]
    (berts[0] / "config.json").unlink()
    (berts[1] / "config.json").unlink()
    assert LocalModelInput("BERT", berts[0], empty_paths).verify().state == "damaged"


def test_removed_file_of_a_local_model_is_reported_and_a_removed_folder_is_not(
    empty_paths: MmfPaths, user_dir: Path, mmfw: MmfwRunner
) -> None:
    folder = write_tree({"config.json": b"{}", "vocab.txt": b"{}"}, user_dir / "my-bert")
    assert make_model_input(str(folder), empty_paths, weights=()).verify().state == "recorded"
    mmfw("verify", "features")
    (folder / "vocab.txt").unlink()
    for command in ("verify", "repair"):
        mmfw(command, "features", code=3)
        message = mmfw.err
        assert message.count(f"missing: {folder / 'vocab.txt'}") == 1
        assert "put an intact copy there" in message and "mmfw repair" not in message
    shutil.rmtree(folder)
    assert str(folder) not in mmfw("verify", "features")


@requires_tool("setpriv", exists_on_windows=False)
def test_unreadable_run_does_not_prevent_other_verification(world: MmfPaths) -> None:
    [intact] = world.save_dir.glob("*/*")
    unreadable_run = intact.with_name("2026-01-02T00-00-00")
    shutil.copytree(intact, unreadable_run)
    unreadable_run.chmod(0)
    process = run_unprivileged("verify", "runs", "--json")
    unreadable_run.chmod(0o700)
    *lines, _ = process.stdout.splitlines()
    problems = {result["what"]: result["problems"] for result in json.loads("".join(lines))}
    assert (process.returncode, problems.pop(RUN)) == (3, [])
    [[run_problems]] = problems.values()
    assert run_problems.startswith(str(unreadable_run / "checkpoints")) and run_problems.endswith("Permission denied")

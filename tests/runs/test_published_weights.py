"""Fetching published weights; the files contain no model, so nothing is predicted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mmf_win.errors import DatasetError, MmfEnvironmentError, MmfwError, UsageError
from mmf_win.integrity.digest import file_digest
from mmf_win.paths import MmfPaths
from mmf_win.runs import presets, published_weights
from mmf_win.runs.history import RunRecord, run_state
from mmf_win.upstream.install import find_mmf
from mmf_win.upstream.versions import read_version
from mmf_win.upstream.zoo import Zoo
from tests.worlds import tiny_mmf, zoo
from tests.worlds.memes import tar_gz
from tests.worlds.tools import NEWEST_MMF, MmfwRunner
from tests.worlds.torch_files import write_checkpoint
from tests.worlds.web_server import WebServer

pytestmark = pytest.mark.torch

KEY = "mmbt.hateful_memes.images"
# Pretrained weights with which the configurations of MMF start.
PRETRAINED = ("vilbert.pretrained.cc.original", "visual_bert.pretrained.coco")
ARCHIVE = "mmbt.finetuned.hateful_memes_images.tar.gz"


@dataclass
class WeightsZoo:
    """A dataset, and a zoo that publishes weights for the preset mmbt_grid.

    Attributes:
        server: Serves the archive.
        mmf_paths: Folders of MMF.
        folder: Folder for other files of a test.
    """

    server: WebServer
    mmf_paths: MmfPaths
    folder: Path

    def write_zoo(self) -> None:
        """Write zoo files with the hash of the archive that the server has now."""
        keys = (key.replace(".", "__") for key in (KEY, *PRETRAINED))
        zoo.write_zoo_files(self.folder, self.server, **dict.fromkeys(keys, (ARCHIVE, ARCHIVE)))

    def make_archive(self, update: int) -> bytes:
        """Return an archive like those of MMF's zoo, with a checkpoint of this update."""
        path = write_checkpoint(self.folder / "model.pth", update)
        return tar_gz({"model.pth": path.read_bytes(), "config.yaml": b"model_config: {mmbt: {}}\n"})


@pytest.fixture
def weights_zoo(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightsZoo]:
    """Yield a zoo that publishes weights for one preset, with a dataset."""
    for name in ("data", "cache", "save"):
        monkeypatch.setenv(f"MMF_{name.upper()}_DIR", str(user_dir / name))
    mmf_paths = MmfPaths.resolve()
    tiny_mmf.build_dataset(mmf_paths.dataset.root)
    with WebServer.serving() as server:
        weights_zoo = WeightsZoo(server, mmf_paths, user_dir)
        server.files[ARCHIVE] = weights_zoo.make_archive(7)
        weights_zoo.write_zoo()
        monkeypatch.setenv("MMF_MODEL_ZOO", str(user_dir / "models.yaml"))
        yield weights_zoo


def write_preset(weights_zoo: WeightsZoo, text: str) -> str:
    path = weights_zoo.folder / "моё.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_second_call_reuses_run_without_download(weights_zoo: WeightsZoo) -> None:
    run = published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    request = run.request()
    weights = weights_zoo.mmf_paths.data_dir / "models" / KEY / "model.pth"
    assert (run.path.parent.name, RunRecord.read(run).summary.state) == ("mmbt_grid-published", "published")
    assert (request.published_weights, request.published_sha256) == (KEY, file_digest(weights).hex())
    assert (run.checkpoints / "best.ckpt").samefile(weights)
    assert (request.splits["val"], request.splits["test"]) == ("dev_seen", "test_seen")
    weights_zoo.server.requests.clear()
    assert published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths) == run
    assert weights_zoo.server.requests == []


def test_replaced_weights_get_a_new_run(weights_zoo: WeightsZoo) -> None:
    first = published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    weights_zoo.server.files[ARCHIVE] = weights_zoo.make_archive(8)
    weights_zoo.write_zoo()
    second = published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    assert second != first
    assert first.request().published_sha256 != second.request().published_sha256
    assert file_digest(first.checkpoints / "best.ckpt").hex() == first.request().published_sha256


def test_damaged_checkpoint_of_run_is_replaced(weights_zoo: WeightsZoo) -> None:
    best = published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths).checkpoints / "best.ckpt"
    content = best.read_bytes()
    best.unlink()
    best.write_bytes(content[:100])
    published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    assert best.read_bytes() == content


def test_archive_with_wrong_hash_is_rejected_without_run(weights_zoo: WeightsZoo) -> None:
    weights_zoo.server.files[ARCHIVE] = weights_zoo.make_archive(8)
    with pytest.raises(MmfEnvironmentError, match="SHA-256"):
        published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    assert not weights_zoo.mmf_paths.save_dir.exists()
    assert not list((weights_zoo.mmf_paths.data_dir / "models").rglob("*.pth"))


def test_folder_given_as_source_replaces_failed_download(weights_zoo: WeightsZoo) -> None:
    copy_dir = weights_zoo.folder / "copied files"
    copy_dir.mkdir()
    (copy_dir / ARCHIVE).write_bytes(weights_zoo.server.files.pop(ARCHIVE))
    with pytest.raises(MmfwError) as failed:
        published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    assert "--source" in str(failed.value.hint)
    assert (
        published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths, str(copy_dir))
        .request()
        .published_weights
        == KEY
    )


def test_offline_preset_downloads_nothing(weights_zoo: WeightsZoo) -> None:
    preset = write_preset(weights_zoo, "extends: mmbt_grid\noffline: true\n")
    with pytest.raises(MmfEnvironmentError, match="downloads are disabled") as missing:
        published_weights.get_or_create_run(preset, weights_zoo.mmf_paths)
    assert "--source" in str(missing.value.hint) and ARCHIVE in str(missing.value.hint)
    assert weights_zoo.server.requests == []
    (weights_zoo.folder / ARCHIVE).write_bytes(weights_zoo.server.files[ARCHIVE])
    assert (
        published_weights.get_or_create_run(preset, weights_zoo.mmf_paths, str(weights_zoo.folder)).path.parent.name
        == "моё-published"
    )
    assert weights_zoo.server.requests == []


def test_damaged_weights_are_repaired_by_command_from_verify(weights_zoo: WeightsZoo, mmfw: MmfwRunner) -> None:
    published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    weights = weights_zoo.mmf_paths.data_dir / "models" / KEY / "model.pth"
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content[:100])
    assert "mmfw repair features" in mmfw("verify", code=3)
    mmfw("repair", "features")
    assert weights.read_bytes() == content


def test_preset_without_published_weights_is_rejected(weights_zoo: WeightsZoo) -> None:
    with pytest.raises(UsageError, match="demo"):
        published_weights.get_or_create_run("demo", weights_zoo.mmf_paths)
    with pytest.raises(UsageError, match=r"concat_bert\.hateful_memes"):
        published_weights.get_or_create_run("concat_bert", weights_zoo.mmf_paths)


def test_missing_dataset_prevents_download_except_for_user_data(weights_zoo: WeightsZoo) -> None:
    shutil.rmtree(weights_zoo.mmf_paths.dataset.root)
    with pytest.raises(DatasetError):
        published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    assert weights_zoo.server.requests == []
    run = published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths, without_dataset=True)
    assert (run.checkpoints / "best.ckpt").is_file()


def test_phase_1_uses_other_names_for_splits_of_paper(weights_zoo: WeightsZoo) -> None:
    annotations = weights_zoo.mmf_paths.dataset.annotations
    for new, old in (("dev_seen", "dev"), ("test_seen", "test")):
        (annotations / f"{new}.jsonl").rename(annotations / f"{old}.jsonl")
    splits = published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths).request().splits
    assert (splits["val"], splits["test"]) == ("dev", "test")


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "--published", "mmbt_grid", "some_run"],
        ["predict", "--published", "mmbt_grid", "--checkpoint", "best"],
        ["predict", "--published", "mmbt_grid", "--ensemble", "mean"],
        ["predict", "--published", "mmbt_grid", "checkpoint.resume_pretrained=True"],
        ["predict", "--source", "somewhere"],
        ["train", "mmbt_grid", "--source", "somewhere"],
        ["train", "mmbt_grid", "--init", "published", "--resume", "last"],
        ["train", "mmbt_grid", "--init", "published", "checkpoint.resume_zoo=visual_bert.pretrained.coco"],
        ["train", "--init", "published"],
    ],
)
def test_conflicting_options_are_rejected_before_download(
    weights_zoo: WeightsZoo, arguments: list[str], mmfw: MmfwRunner
) -> None:
    mmfw(*arguments, code=2)
    assert weights_zoo.server.requests == [] and not weights_zoo.mmf_paths.save_dir.exists()


def test_missing_split_is_rejected_before_download(weights_zoo: WeightsZoo, mmfw: MmfwRunner) -> None:
    assert "test_hidden" in mmfw("predict", "--published", "mmbt_grid", "--split", "test_hidden", code=3)
    assert weights_zoo.server.requests == []


def test_run_of_published_weights_cannot_be_resumed(weights_zoo: WeightsZoo, mmfw: MmfwRunner) -> None:
    run = published_weights.get_or_create_run("mmbt_grid", weights_zoo.mmf_paths)
    assert run_state(run) == "killed", "a run without an outcome counts as killed"
    assert "no run yet" in mmfw("train", "--resume", "last", code=2)
    assert "mmfw train mmbt_grid --init published" in mmfw("train", "--resume", run.id, code=2)


def test_every_published_baseline_has_weights_in_the_zoo() -> None:
    roots = [find_mmf().root, *([] if NEWEST_MMF is None else [Path(NEWEST_MMF)])]
    published_presets = [preset for preset in map(presets.load_preset, presets.list_presets()) if preset.published]
    assert len({preset.zoo for preset in published_presets}) == len(published_presets) == 11
    for root in roots:
        for preset in published_presets:
            assert preset.zoo is not None
            entry = Zoo(root, MmfPaths.resolve()).model_entry(preset.zoo)
            assert entry is not None and preset.model in entry.url, (preset.name, str(root))
            assert entry.folder.name == preset.zoo, "the key must not be a group, whose default may change"


def test_list_shows_presets_with_weights_in_installed_mmf(
    weights_zoo: WeightsZoo, mmfw: MmfwRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    presets_by_name = {preset["name"]: preset for preset in mmfw.json("train", "--list")}
    assert [name for name, preset in presets_by_name.items() if preset["published_weights"]] == ["mmbt_grid"]
    assert {preset["mmf"] for preset in presets_by_name.values()} == {read_version(find_mmf().root)}
    assert mmfw("train", "--list").count(" published") == 1
    monkeypatch.setenv("MMFW_HOME", str(weights_zoo.folder / "no mmf"))
    assert {preset["published_weights"] for preset in mmfw.json("train", "--list")} == {None}

"""Weights as MMF's zoo publishes them, made of a tiny model: scored without training, and trained on from."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import read_annotations
from mmf_win.integrity import torch_file
from mmf_win.runs.folder import Run
from mmf_win.upstream.checkpoint_files import read_checkpoint_progress
from tests.endtoend.conftest import Tool, load_checkpoint, probabilities, start_updates
from tests.endtoend.test_predicting import predict
from tests.worlds import zoo
from tests.worlds.memes import tar_gz
from tests.worlds.tools import split_command
from tests.worlds.web_server import WebServer, drop_connection_after

KEY = "vilbert.finetuned.hateful_memes.direct"
ARCHIVE = "vilbert.finetuned.hateful_memes_direct.tar.gz"
# The first updates of MMF's schedule change next to nothing, and a learning rate of nothing changes nothing.
LEARNING = ("training.lr_scheduler=False", "optimizer.params.lr=0.01")
STILL = ("--updates", "2", "--seed", "1", "optimizer.params.lr=0.0")


@dataclass
class Shop:
    """A world in which a model was trained, and a zoo that publishes its weights."""

    tool: Tool
    server: WebServer
    trained: Run  # whose weights are published
    preset: str  # the run's own, which names the zoo's key

    @property
    def weights(self) -> Path:
        """Return the folder where the zoo's file is unpacked."""
        return self.tool.world.data / "models" / KEY / "model.pth"

    def publish(self, weights: Path) -> None:
        """Let the zoo have this file, in the layout of MMF's own archives."""
        config = {"model_config": {"vilbert": {}}}
        content = {"model.pth": weights.read_bytes(), "config.yaml": json.dumps(config).encode()}
        self.server.files[ARCHIVE] = tar_gz(content)
        zoo.write_zoo_files(self.tool.folder, self.server, **{KEY.replace(".", "__"): (ARCHIVE, ARCHIVE)})
        shutil.rmtree(self.weights.parent, ignore_errors=True)

    def probas(self, *words: str) -> list[list[float]]:
        """Return the predictions of ``mmfw predict``, a list for each split."""
        return [probabilities(result) for result in predict(self.tool, *words, "--no-report")]

    def run_named(self, name: str) -> Run:
        """The only run of a name."""
        [folder] = (self.tool.save_dir / name).iterdir()
        return Run(folder)


@pytest.fixture
def shop(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The world and its zoo; the model is trained once for each MMF."""
    kept = tool.trained_runs_dir / "published"
    own = tool.with_world_copy("мир")
    monkeypatch.setenv("MMF_CACHE_DIR", str(own.world.cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    vilbert = Path(tool.preset("vilbert", offline=False, zoo=KEY))  # with the BERT of the world of all tests
    preset = str(vilbert.rename(vilbert.with_name("крошка.yaml")))
    if not kept.exists():
        run = own.train(preset, "--updates", "3", "--seed", "5", "--name", "trained", *LEARNING)
        shutil.copytree(run.path, kept)
    trained = Run(own.save_dir / "trained" / "2026-01-01T00-00-00")
    shutil.rmtree(trained.path.parent, ignore_errors=True)
    shutil.copytree(kept, trained.path)
    trained.save_request(replace(trained.request(), data_dir=str(own.world.data)))
    with WebServer.serving() as server:
        monkeypatch.setenv("MMF_MODEL_ZOO", str(own.folder / "models.yaml"))
        shop = Shop(own, server, trained, preset)
        shop.publish(trained.checkpoints / "best.ckpt")
        yield shop


def rewritten(shop: Shop, *, legacy: bool = False, **changes: Any) -> Path:
    """The trained checkpoint with other contents."""
    import torch

    path = shop.tool.folder / "rewritten.pth"
    contents = {**load_checkpoint(shop.trained, "best.ckpt"), **changes}
    torch.save(contents, path, _use_new_zipfile_serialization=not legacy)
    return path


def hinted(errors: str) -> list[str]:
    """The words after ``mmfw`` of the command that an error tells to type."""
    [command] = re.findall("`mmfw (train .*?)`", errors)
    return split_command(command)


@pytest.mark.wide
def test_published_weights_are_scored_on_the_papers_splits_without_training(shop: Shop) -> None:
    expected = shop.probas("trained", "--split", "dev_seen", "--split", "test_seen", "--split", "dev_unseen")
    shop.server.faults = [drop_connection_after(10_000), drop_connection_after(5_000)]
    results = predict(shop.tool, "--published", shop.preset)
    assert [asked.headers["Range"] for asked in shop.server.content_requests[1:]] == ["bytes=10000-", "bytes=15000-"]
    assert [result["split"] for result in results] == ["dev_seen", "test_seen"]
    assert [probabilities(result) for result in results] == expected[:2]

    run = shop.run_named("крошка-published")
    assert {result["members"][0]["run"] for result in results} == {run.id}
    assert not list(run.checkpoints.glob("models/*")) and (run.checkpoints / "best.ckpt").is_file()
    states = {summary["id"]: summary["state"] for summary in shop.tool("runs")}
    assert states == {run.id: "published", shop.trained.id: "done"}
    assert [summary["id"] for summary in shop.tool("runs", "--state", "published")] == [run.id]
    assert shop.tool("runs", "show", run.id)["published_weights"] == KEY
    assert KEY in Path(results[0]["report"]).read_text(encoding="utf-8")

    shop.server.requests.clear()
    assert shop.probas("--published", shop.preset, "--split", "dev_unseen") == expected[2:]
    assert shop.run_named("крошка-published") == run, "the second call made another run"
    assert shop.server.requests == []
    assert shop.probas("крошка-published", "--split", "test_seen") == expected[1:2]
    rows = read_annotations(shop.tool.world.dataset / "annotations" / "dev_seen.jsonl")
    image = str(shop.tool.world.dataset / "images" / rows[0].img)
    [own] = predict(shop.tool, "--published", shop.preset, "--image", image, "--text", rows[0].text)
    assert own["proba"] == pytest.approx(expected[0][0], abs=1e-6)


@pytest.mark.wide
def test_a_run_of_published_weights_is_never_resumed_nor_averaged_with_trained_ones(shop: Shop) -> None:
    predict(shop.tool, "--published", shop.preset, "--split", "dev_seen")
    run = shop.run_named("крошка-published")
    assert shop.tool.run_for_exit_code("train", "--resume", "крошка-published") == 2
    assert "--init published" in shop.tool.errors
    assert shop.tool.run_for_exit_code("train", "--resume", str(run.checkpoints / "best.ckpt")) == 2
    words = hinted(shop.tool.errors)
    assert shop.tool.run_for_exit_code(*words, *STILL, "--name", "hint") == 0, shop.tool.errors
    shutil.rmtree(shop.tool.save_dir / "hint")

    resumed = shop.tool("train", "--resume", "last", "--updates", "4")
    assert (resumed["id"], resumed["updates"]) == (shop.trained.id, 4)
    shop.probas("trained", "--split", "dev_seen")
    page = shop.tool.folder / "page.html"
    assert shop.tool.run_for_exit_code("report", "trained", "крошка-published", "--output", str(page)) == 0
    assert page.read_text(encoding="utf-8").count('<tr class="group">') == 2


def test_training_on_from_weights_begins_at_update_0(shop: Shop) -> None:
    """The checkpoint's own score is never beaten, since nothing is learned: a best is a fresh one."""
    best = shop.trained.checkpoints / "best.ckpt"
    [final] = shop.trained.checkpoints.glob("*_final.pth")
    expected = shop.probas("trained", "--split", "dev_seen")
    for name, init in (("checkpoint", str(best)), ("weights", str(final))):
        run = shop.tool.train(shop.preset, "--init", init, "--name", name, *STILL)
        assert start_updates(run) == [0]
        known = read_checkpoint_progress(run.checkpoints / "best.ckpt")
        assert known is not None and known.best_update == 1, "the best score is the old run's"
        assert shop.tool("runs", "show", name)["init"] == init
        assert shop.probas(name, "--split", "dev_seen") == expected

    words = ("--name", "zoo", "--updates", "2", "--seed", "1", *LEARNING)
    run = shop.tool.train(shop.preset, "--init", "published", *words)
    assert shop.tool("runs", "show", "zoo")["init"] == KEY
    assert shop.probas("zoo", "--checkpoint", "last", "--split", "dev_seen") != expected
    going_on = shop.tool("train", "--resume", "last", "--updates", "3")
    assert (going_on["updates"], going_on["id"]) == (3, run.id)
    assert start_updates(run) == [0, 2], "the run's own checkpoint is not what it began with"
    assert shop.tool.run_for_exit_code("train", shop.preset, "--init", str(best), "--resume", "last") == 2
    assert shop.tool.run_for_exit_code("train", "--init", str(best)) == 2


def test_a_file_of_the_old_format_loads_and_one_with_classes_only_if_it_is_trusted(shop: Shop) -> None:
    """Write a file as torch 1.5 did, with an omegaconf configuration as MMF once stored it."""
    from omegaconf import OmegaConf

    expected = shop.probas("trained", "--split", "dev_seen")
    words = ("--published", shop.preset, "--split", "dev_seen")
    plain = rewritten(shop, legacy=True)
    assert plain.read_bytes()[:2] != b"PK" and torch_file.find_problem(plain) is None
    shop.publish(plain)
    assert shop.probas(*words) == expected

    shop.publish(rewritten(shop, legacy=True, config=OmegaConf.create({"training": {"seed": 1}})))
    train = ("train", shop.preset, "--init", "published", *STILL)
    for refused in (("predict", *words), train):
        assert shop.tool.run_for_exit_code(*refused) == 3
        assert "omegaconf.dictconfig.DictConfig" in shop.tool.errors
        assert "best.ckpt" in shop.tool.errors or "model.pth" in shop.tool.errors
        assert "--trust" in shop.tool.errors
    assert shop.probas(*words, "--trust") == expected
    assert start_updates(shop.tool.get_run(shop.tool(*train, "--trust"))) == [0]


@pytest.mark.wide
def test_weights_that_leave_the_head_unset_are_refused_whatever_asks_for_them(shop: Shop) -> None:
    whole = load_checkpoint(shop.trained, "best.ckpt")["model"]
    headless = {key: value for key, value in whole.items() if "classifier" not in key}
    assert len(headless) < len(whole)
    path = rewritten(shop, model=headless)
    shop.publish(path)
    for words in (
        ("predict", "--published", shop.preset),
        ("predict", "trained", "--checkpoint", str(path)),
        ("train", shop.preset, "--init", "published", *STILL),
        ("train", shop.preset, "--resume", str(path), "--updates", "9"),
    ):
        assert shop.tool.run_for_exit_code(*words) == 3, words
        assert "the checkpoint lacks" in shop.tool.errors and "classifier" in shop.tool.errors
        assert shop.tool.run_for_exit_code(*words, "checkpoint.resume_pretrained=True") == 2, words
        assert "checkpoint.resume_pretrained" in shop.tool.errors
    assert shop.tool.run_for_exit_code("train", shop.preset, f"checkpoint.resume_zoo={KEY}", *STILL) == 3
    assert f"error: {KEY}: the checkpoint lacks" in shop.tool.errors

"""Weights of a tiny model, published like those of MMF's zoo: scored without training, and used to start training."""

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
from tests.endtoend.test_predicting import run_predict
from tests.worlds import zoo
from tests.worlds.memes import tar_gz
from tests.worlds.tools import split_command
from tests.worlds.web_server import WebServer, drop_connection_after

KEY = "vilbert.finetuned.hateful_memes.direct"
ARCHIVE = "vilbert.finetuned.hateful_memes_direct.tar.gz"
# MMF's schedule starts with a tiny learning rate, which would hardly change the weights.
LEARNING = ("training.lr_scheduler=False", "optimizer.params.lr=0.01")
NO_LEARNING = ("--updates", "2", "--seed", "1", "optimizer.params.lr=0.0")


@dataclass
class PublishedModel:
    """Trained model in a copy of the world, and a zoo that publishes its weights.

    Attributes:
        trained: Run whose weights are published.
        preset: Path of the run's preset, which names the key of the zoo.
    """

    tool: Tool
    server: WebServer
    trained: Run
    preset: str

    @property
    def weights(self) -> Path:
        """Return the path where the zoo's file is unpacked."""
        return self.tool.world.data / "models" / KEY / "model.pth"

    def publish(self, weights: Path) -> None:
        """Publish a file of weights in the zoo, in the layout of MMF's archives."""
        config = {"model_config": {"vilbert": {}}}
        content = {"model.pth": weights.read_bytes(), "config.yaml": json.dumps(config).encode()}
        self.server.files[ARCHIVE] = tar_gz(content)
        zoo.write_zoo_files(self.tool.folder, self.server, **{KEY.replace(".", "__"): (ARCHIVE, ARCHIVE)})
        shutil.rmtree(self.weights.parent, ignore_errors=True)

    def predict_probabilities(self, *arguments: str) -> list[list[float]]:
        """Return the predictions of ``mmfw predict``, a list for each split."""
        return [probabilities(result) for result in run_predict(self.tool, *arguments, "--no-report")]

    def find_run(self, name: str) -> Run:
        """Return the only run with a name."""
        [folder] = (self.tool.save_dir / name).iterdir()
        return Run(folder)


@pytest.fixture
def published(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PublishedModel]:
    """Provide a trained model, its world and its zoo; the model is trained once per MMF version."""
    shared_run_dir = tool.trained_runs_dir / "published"
    zoo_tool = tool.with_world_copy("мир")
    monkeypatch.setenv("MMF_CACHE_DIR", str(zoo_tool.world.cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    vilbert = Path(tool.write_preset("vilbert", offline=False, zoo=KEY))  # uses the BERT of the shared world
    preset = str(vilbert.rename(vilbert.with_name("крошка.yaml")))
    if not shared_run_dir.exists():
        run = zoo_tool.train(preset, "--updates", "3", "--seed", "5", "--name", "trained", *LEARNING)
        shutil.copytree(run.path, shared_run_dir)
    trained_run = Run(zoo_tool.save_dir / "trained" / "2026-01-01T00-00-00")
    shutil.rmtree(trained_run.path.parent, ignore_errors=True)
    shutil.copytree(shared_run_dir, trained_run.path)
    trained_run.save_request(replace(trained_run.request(), data_dir=str(zoo_tool.world.data)))
    with WebServer.serving() as server:
        monkeypatch.setenv("MMF_MODEL_ZOO", str(zoo_tool.folder / "models.yaml"))
        published = PublishedModel(zoo_tool, server, trained_run, preset)
        published.publish(trained_run.checkpoints / "best.ckpt")
        yield published


def rewrite_checkpoint(published: PublishedModel, *, legacy: bool = False, **changes: Any) -> Path:
    """Write the trained checkpoint with changed contents and return its path."""
    import torch

    path = published.tool.folder / "rewritten.pth"
    contents = {**load_checkpoint(published.trained, "best.ckpt"), **changes}
    torch.save(contents, path, _use_new_zipfile_serialization=not legacy)
    return path


def read_hinted_train_command(errors: str) -> list[str]:
    """Return the arguments of the ``mmfw`` command that a hint suggests."""
    [command] = re.findall("`mmfw (train .*?)`", errors)
    return split_command(command)


@pytest.mark.wide
def test_published_weights_are_scored_on_splits_of_paper_without_training(published: PublishedModel) -> None:
    expected = published.predict_probabilities(
        "trained", "--split", "dev_seen", "--split", "test_seen", "--split", "dev_unseen"
    )
    published.server.faults = [drop_connection_after(10_000), drop_connection_after(5_000)]
    results = run_predict(published.tool, "--published", published.preset)
    assert [request.headers["Range"] for request in published.server.content_requests[1:]] == [
        "bytes=10000-",
        "bytes=15000-",
    ]
    assert [result["split"] for result in results] == ["dev_seen", "test_seen"]
    assert [probabilities(result) for result in results] == expected[:2]

    run = published.find_run("крошка-published")
    assert {result["members"][0]["run"] for result in results} == {run.id}
    assert not list(run.checkpoints.glob("models/*")) and (run.checkpoints / "best.ckpt").is_file()
    states = {summary["id"]: summary["state"] for summary in published.tool("runs")}
    assert states == {run.id: "published", published.trained.id: "done"}
    assert [summary["id"] for summary in published.tool("runs", "--state", "published")] == [run.id]
    assert published.tool("runs", "show", run.id)["published_weights"] == KEY
    assert KEY in Path(results[0]["report"]).read_text(encoding="utf-8")

    published.server.requests.clear()
    assert published.predict_probabilities("--published", published.preset, "--split", "dev_unseen") == expected[2:]
    assert published.find_run("крошка-published") == run, "the second call must use the same run"
    assert published.server.requests == []
    assert published.predict_probabilities("крошка-published", "--split", "test_seen") == expected[1:2]
    rows = read_annotations(published.tool.world.dataset / "annotations" / "dev_seen.jsonl")
    image = str(published.tool.world.dataset / "images" / rows[0].img)
    [result] = run_predict(published.tool, "--published", published.preset, "--image", image, "--text", rows[0].text)
    assert result["proba"] == pytest.approx(expected[0][0], abs=1e-6)


@pytest.mark.wide
def test_run_of_published_weights_is_not_resumed_or_averaged_with_trained_runs(published: PublishedModel) -> None:
    run_predict(published.tool, "--published", published.preset, "--split", "dev_seen")
    run = published.find_run("крошка-published")
    assert published.tool.run_for_exit_code("train", "--resume", "крошка-published") == 2
    assert "--init published" in published.tool.errors
    assert published.tool.run_for_exit_code("train", "--resume", str(run.checkpoints / "best.ckpt")) == 2
    arguments = read_hinted_train_command(published.tool.errors)
    assert published.tool.run_for_exit_code(*arguments, *NO_LEARNING, "--name", "hint") == 0, published.tool.errors
    shutil.rmtree(published.tool.save_dir / "hint")

    resumed = published.tool("train", "--resume", "last", "--updates", "4")
    assert (resumed["id"], resumed["updates"]) == (published.trained.id, 4)
    published.predict_probabilities("trained", "--split", "dev_seen")
    page = published.tool.folder / "page.html"
    assert published.tool.run_for_exit_code("report", "trained", "крошка-published", "--output", str(page)) == 0
    assert page.read_text(encoding="utf-8").count('<tr class="group">') == 2


def test_training_from_weights_starts_at_update_0(published: PublishedModel) -> None:
    """Nothing is learned, so a best checkpoint is saved only if the old best score was dropped."""
    best = published.trained.checkpoints / "best.ckpt"
    [final] = published.trained.checkpoints.glob("*_final.pth")
    expected = published.predict_probabilities("trained", "--split", "dev_seen")
    for name, init in (("checkpoint", str(best)), ("weights", str(final))):
        run = published.tool.train(published.preset, "--init", init, "--name", name, *NO_LEARNING)
        assert start_updates(run) == [0]
        progress = read_checkpoint_progress(run.checkpoints / "best.ckpt")
        assert progress is not None and progress.best_update == 1, "the best score must not come from the old run"
        assert published.tool("runs", "show", name)["init"] == init
        assert published.predict_probabilities(name, "--split", "dev_seen") == expected

    arguments = ("--name", "zoo", "--updates", "2", "--seed", "1", *LEARNING)
    run = published.tool.train(published.preset, "--init", "published", *arguments)
    assert published.tool("runs", "show", "zoo")["init"] == KEY
    assert published.predict_probabilities("zoo", "--checkpoint", "last", "--split", "dev_seen") != expected
    resumed = published.tool("train", "--resume", "last", "--updates", "3")
    assert (resumed["updates"], resumed["id"]) == (3, run.id)
    assert start_updates(run) == [0, 2], "the run must resume from its own checkpoint"
    assert published.tool.run_for_exit_code("train", published.preset, "--init", str(best), "--resume", "last") == 2
    assert published.tool.run_for_exit_code("train", "--init", str(best)) == 2


def test_checkpoint_of_old_format_loads_and_classes_need_trust(published: PublishedModel) -> None:
    """The files are like those of torch 1.5, with an omegaconf configuration that old versions of MMF stored."""
    from omegaconf import OmegaConf

    expected = published.predict_probabilities("trained", "--split", "dev_seen")
    arguments = ("--published", published.preset, "--split", "dev_seen")
    plain = rewrite_checkpoint(published, legacy=True)
    assert plain.read_bytes()[:2] != b"PK" and torch_file.find_problem(plain) is None
    published.publish(plain)
    assert published.predict_probabilities(*arguments) == expected

    published.publish(rewrite_checkpoint(published, legacy=True, config=OmegaConf.create({"training": {"seed": 1}})))
    train_arguments = ("train", published.preset, "--init", "published", *NO_LEARNING)
    for command in (("predict", *arguments), train_arguments):
        assert published.tool.run_for_exit_code(*command) == 3
        assert "omegaconf.dictconfig.DictConfig" in published.tool.errors
        assert "best.ckpt" in published.tool.errors or "model.pth" in published.tool.errors
        assert "--trust" in published.tool.errors
    assert published.predict_probabilities(*arguments, "--trust") == expected
    assert start_updates(published.tool.get_run(published.tool(*train_arguments, "--trust"))) == [0]


@pytest.mark.wide
def test_weights_without_classifier_are_refused_by_every_command(published: PublishedModel) -> None:
    weights = load_checkpoint(published.trained, "best.ckpt")["model"]
    weights_without_head = {key: value for key, value in weights.items() if "classifier" not in key}
    assert len(weights_without_head) < len(weights)
    path = rewrite_checkpoint(published, model=weights_without_head)
    published.publish(path)
    for arguments in (
        ("predict", "--published", published.preset),
        ("predict", "trained", "--checkpoint", str(path)),
        ("train", published.preset, "--init", "published", *NO_LEARNING),
        ("train", published.preset, "--resume", str(path), "--updates", "9"),
    ):
        assert published.tool.run_for_exit_code(*arguments) == 3, arguments
        assert "the checkpoint lacks" in published.tool.errors and "classifier" in published.tool.errors
        assert published.tool.run_for_exit_code(*arguments, "checkpoint.resume_pretrained=True") == 2, arguments
        assert "checkpoint.resume_pretrained" in published.tool.errors
    override = f"checkpoint.resume_zoo={KEY}"
    assert published.tool.run_for_exit_code("train", published.preset, override, *NO_LEARNING) == 3
    assert f"error: {KEY}: the checkpoint lacks" in published.tool.errors

"""``KEY=VALUE`` overrides that the commands reject, and the alternatives in their hints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import UsageError
from mmf_win.runs.override_rules import (
    ANNOTATIONS_KEY,
    require_optimizer_kept,
    require_predictable,
    require_trainable,
    split_arguments,
)
from mmf_win.runs.request import CommandOptions


def test_names_come_first_and_a_file_name_may_contain_an_equals_sign(tmp_path: Path) -> None:
    assert split_arguments(("mmbt", "a=b")) == (("mmbt",), ("a=b",))
    assert split_arguments(("a=b", "c=d=e")) == ((), ("a=b", "c=d=e"))
    assert split_arguments(()) == ((), ())
    assert split_arguments(("a", "b", "c=d")) == (("a", "b"), ("c=d",))
    with pytest.raises(UsageError, match="b: not a KEY=VALUE"):
        split_arguments(("a", "b", "c=d"), max_names=1)
    path = tmp_path / "lr=high.yaml"
    path.touch()
    assert split_arguments((str(path), "a=b")) == ((str(path),), ("a=b",))


@pytest.mark.parametrize(
    "word",
    [
        *("training.seed", "=1", "env.save_dir=x", "env.cache_dir=x", "training.trainer=mine"),
        *("training.callbacks[0].type=x", "model=vilbert", "config=x.yaml", "dataset=vqa2", "datasets=vqa2"),
        *("dataset_config.hateful_memes.data_dir=x", "trainer.params.gpus=2", "checkpoint.max_to_keep=3"),
    ],
)
def test_invalid_override_is_rejected(word: str) -> None:
    with pytest.raises(UsageError):
        split_arguments(("mmbt", word), max_names=1)


def test_repeated_override_is_reported_with_the_value_that_is_used(caplog: pytest.LogCaptureFixture) -> None:
    arguments = ("mmbt", "training.seed=1", "a.b=c", "training.seed=2")
    assert split_arguments(arguments)[1] == arguments[1:]
    assert "training.seed=2" in caplog.text


@pytest.mark.parametrize("word", ["optimizer.params.lr=1e-5", "optimizer.type=SGD"])
def test_override_of_the_optimizer_is_rejected_when_resuming(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_optimizer_kept(["training.num_workers=2", word])
    reset = str(caught.value.hint).split()[1]
    for typed in (reset, reset.replace("True", "true")):
        require_optimizer_kept([word, typed])
    require_optimizer_kept(["training.num_workers=2"])


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        (f"{ANNOTATIONS_KEY}.test[0]=own.jsonl", "--memes FILE"),
        (f"{ANNOTATIONS_KEY}.test=['own.jsonl']", "--split NAME"),
        (f"{ANNOTATIONS_KEY}={{}}", "--split NAME"),
        ("checkpoint.resume_file=x.ckpt", "--checkpoint"),
        ("checkpoint.reset.all=True", "--checkpoint"),
        ("run_type=val", "mmfw predict"),
        ("evaluation.predict=False", "mmfw predict"),
        ("evaluation.reporter.type=x", "CSV"),
        ("training.batch_size=2", "--batch-size"),
        ("training.batch_size_per_device=2", "--batch-size"),
    ],
)
def test_override_without_effect_on_a_prediction_is_rejected(word: str, instead: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_predictable(CommandOptions(overrides=[word], batch_size=4))
    assert instead in f"{caught.value} {caught.value.hint}"
    require_predictable(CommandOptions(overrides=["training.num_workers=2", "evaluation.use_cpu=True"]))


@pytest.mark.parametrize(
    ("word", "resumes"),
    [
        ("checkpoint.resume=True", False),
        ("checkpoint.resume_best=True", False),
        ("run_type=val", False),
        ("checkpoint.resume_zoo=visual_bert.pretrained.coco", True),
        ("checkpoint.resume_file=x.ckpt", True),
        ("checkpoint.resume_pretrained=True", True),
        ("checkpoint.resume=True", True),
        ("checkpoint={}", True),
    ],
)
def test_override_without_effect_on_training_is_rejected(word: str, resumes: bool) -> None:
    with pytest.raises(UsageError, match=word.partition("=")[0]) as caught:
        require_trainable(CommandOptions(overrides=["training.batch_size=2", word]), resumes=resumes)
    assert caught.value.hint
    kept = ["checkpoint.reset.optimizer=True", "run_type=train_inference"]
    kept += [] if resumes else ["checkpoint.resume_zoo=KEY"]
    require_trainable(CommandOptions(overrides=kept), resumes=resumes)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"seed": 0}, "training.seed=2"),
        ({"batch_size": 1}, "training.batch_size=2"),
        ({"batch_size": 1}, "training.batch_size_per_device=2"),
        ({"updates": 1}, "training.max_updates=2"),
        ({"updates": 1}, "training.max_epochs=2"),
        ({"epochs": 1}, "training.max_updates=2"),
        ({"detect_anomaly": True}, "training.detect_anomaly=False"),
        ({"precision": "bf16"}, "training.fp16=True"),
    ],
)
def test_option_and_override_for_the_same_setting_are_rejected(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        require_trainable(CommandOptions(overrides=[word], **options), resumes=False)
    require_trainable(CommandOptions(overrides=[word], batch_size="auto", seed=None), resumes=False)

"""The user's ``KEY=VALUE`` words, over the life of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.commands.hints import hint_for
from mmf_win.errors import UsageError
from mmf_win.runs.overrides import (
    BATCH_SIZE,
    lasting,
    of_prediction,
    require_optimizer_kept,
    require_predictable,
    require_trainable,
    split_words,
)
from mmf_win.runs.request import RunRequest

ANNOTATIONS = "dataset_config.hateful_memes.annotations"


def request(*words: str, **values: int) -> RunRequest:
    return RunRequest("mmbt", "mmbt", None, {}, list(words), {}, "data", **values)  # type: ignore[arg-type]


def test_a_name_may_come_first() -> None:
    assert split_words(("mmbt", "a=b")) == ("mmbt", ("a=b",))
    assert split_words(("a=b", "c=d=e")) == (None, ("a=b", "c=d=e"))
    assert split_words(()) == (None, ())


def test_a_preset_file_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "lr=high.yaml"
    path.touch()
    assert split_words((str(path), "a=b")) == (str(path), ("a=b",))


@pytest.mark.parametrize(
    "word",
    [
        *("training.seed", "=1", "env.save_dir=x", "env.cache_dir=x", "training.trainer=mine"),
        *("training.callbacks[0].type=x", "model=vilbert", "config=x.yaml", "dataset=vqa2", "datasets=vqa2"),
        *("dataset_config.hateful_memes.data_dir=x", "trainer.params.gpus=2", "checkpoint.max_to_keep=3"),
    ],
)
def test_a_word_that_cannot_be_handed_on_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        split_words(("mmbt", word))


def test_of_a_word_that_is_given_twice_the_user_is_told_which_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = ("mmbt", "training.seed=1", "a.b=c", "training.seed=2")
    assert split_words(words)[1] == words[1:]
    assert "training.seed=2" in caplog.text


@pytest.mark.parametrize("word", ["optimizer.params.lr=1e-5", "optimizer.type=SGD"])
def test_an_optimizer_that_a_checkpoint_would_put_back_is_refused(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_optimizer_kept(["training.num_workers=2", word])
    reset = str(hint_for(caught.value)).split()[0]
    require_optimizer_kept([word, reset])
    require_optimizer_kept(["training.num_workers=2"])


def test_what_started_a_run_does_not_steer_how_it_goes_on() -> None:
    words = ["checkpoint.resume_file=other.ckpt", "checkpoint.reset.all=True", "run_type=train", "a.b=c"]
    assert lasting(words) == ["run_type=train", "a.b=c"]


def test_what_started_a_run_does_not_steer_how_it_is_predicted() -> None:
    """Else it would be predicted with other weights, or another split, than those that are named."""
    steering = [
        *("checkpoint.resume_file=other.ckpt", "run_type=train", "evaluation.predict=True"),
        f"{ANNOTATIONS}.test=['own.jsonl']",
        f"{ANNOTATIONS}.test[0]=own.jsonl",
    ]
    kept = ["evaluation.use_cpu=True", f"{ANNOTATIONS}.val[0]=own.jsonl", "a.b=c"]
    assert of_prediction([*steering, *kept]) == kept


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        (f"{ANNOTATIONS}.test[0]=own.jsonl", "--memes FILE"),
        (f"{ANNOTATIONS}.test=['own.jsonl']", "--split NAME"),
        (f"{ANNOTATIONS}={{}}", "--split NAME"),
        ("checkpoint.resume_file=x.ckpt", "--checkpoint"),
        ("checkpoint.reset.all=True", "--checkpoint"),
        ("run_type=val", "prediction"),
        ("evaluation.predict=False", "prediction"),
        ("evaluation.reporter.type=x", "CSV"),
        ("training.batch_size=2", "--batch-size"),
        ("training.batch_size_per_device=2", "--batch-size"),
    ],
)
def test_a_word_that_a_prediction_would_undo_is_refused(word: str, instead: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_predictable([word], {"--batch-size": BATCH_SIZE})
    assert instead in f"{caught.value} {hint_for(caught.value)}"
    require_predictable(["training.num_workers=2", "evaluation.use_cpu=True"], {})


@pytest.mark.parametrize(
    ("word", "resumes"),
    [
        ("checkpoint.resume=True", False),
        ("checkpoint.resume_best=True", False),
        ("run_type=val", False),
        ("checkpoint.resume_zoo=visual_bert.pretrained.coco", True),
        ("checkpoint.resume_file=x.ckpt", True),
    ],
)
def test_a_word_that_training_would_undo_is_refused(word: str, resumes: bool) -> None:
    with pytest.raises(UsageError) as caught:
        require_trainable([word], {}, resumes=resumes)
    assert hint_for(caught.value)
    kept = ["checkpoint.reset.optimizer=True", "run_type=train_inference"]
    require_trainable([*kept, *([] if resumes else ["checkpoint.resume_zoo=KEY"])], {}, resumes=resumes)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (RunRequest(seed=1), "training.seed=2"),
        (RunRequest(batch_size=1), "training.batch_size=2"),
        (RunRequest(batch_size=1), "training.batch_size_per_device=2"),
        (RunRequest(updates=1), "training.max_updates=2"),
        (RunRequest(updates=1), "training.max_epochs=2"),
        (RunRequest(epochs=1), "training.max_updates=2"),
        (RunRequest(detect_anomaly=True), "training.detect_anomaly=False"),
    ],
)
def test_an_option_and_a_word_that_say_the_same_are_refused(asked: RunRequest, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        require_trainable([word], asked.keys, resumes=False)
    require_trainable([word], RunRequest(auto_batch=True).keys, resumes=False)


def test_an_option_replaces_the_word_that_said_the_same_before() -> None:
    before = request("training.max_updates=100", "training.batch_size=8", "training.num_workers=0")
    after = RunRequest(updates=200, batch_size=4).over(before)
    assert after.overrides == ["training.num_workers=0"]
    assert (after.updates, after.batch_size) == (200, 4)


def test_todays_words_replace_those_of_the_run_that_set_the_same_or_a_part_of_it() -> None:
    before = request("a=1", "b=1", "c[0]=1")
    after = RunRequest(overrides=["a=2", "c=[2]", "checkpoint.reset.all=True"]).over(before)
    assert after.overrides == ["b=1", "a=2", "c=[2]", "checkpoint.reset.all=True"]


def test_a_new_total_replaces_the_old_one_however_it_was_given() -> None:
    after = RunRequest(epochs=3).over(request(updates=100))
    assert (after.updates, after.epochs) == (None, 3)
    assert RunRequest().over(request(updates=100)).updates == 100


@pytest.mark.parametrize(
    "word", ["checkpoint.resume_pretrained=True", "checkpoint.resume=True", "checkpoint={}"]
)
def test_a_word_that_loads_other_weights_than_an_option_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=word.partition("=")[0]):
        require_trainable(["training.batch_size=2", word], {}, resumes=True)
    require_trainable(["checkpoint.reset.optimizer=True"], {}, resumes=True)

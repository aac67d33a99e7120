"""The user's ``KEY=VALUE`` overrides, over the life of a run."""

from __future__ import annotations

from mmf_win.runs.overrides import ANNOTATIONS, lasting, of_prediction
from mmf_win.runs.request import RunRequest


def request(*words: str, **values: int) -> RunRequest:
    return RunRequest("mmbt", preset="mmbt", overrides=list(words), data_dir="data", **values)  # type: ignore[arg-type]


def test_what_started_a_run_does_not_steer_how_it_goes_on() -> None:
    words = ["checkpoint.resume_file=other.ckpt", "checkpoint.reset.all=True", "run_type=train", "a.b=c"]
    assert lasting(words) == ["run_type=train", "a.b=c"]


def test_what_started_a_run_does_not_steer_how_it_is_predicted() -> None:
    """Else it would be predicted with other weights, or another split, than those that are named."""
    steering = [
        *("checkpoint.resume_file=other.ckpt", "run_type=train", "evaluation.predict=True"),
        f"{ANNOTATIONS}.test=['own.jsonl']",
        f"{ANNOTATIONS}.val[0]=own.jsonl",
    ]
    kept = ["evaluation.use_cpu=True", "a.b=c"]
    assert of_prediction([*steering, *kept]) == kept


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
    again = RunRequest(overrides=["training.max_updates=9"]).over(after)
    assert again.epochs is None, "it would win over the override"
    assert RunRequest().over(request(updates=100)).updates == 100

"""The user's ``KEY=VALUE`` words, over the life of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.errors import UsageError
from mmf_win.runs.folder import RunRequest
from mmf_win.runs.overrides import lasting, split_words
from mmf_win.runs.training import Options


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


@pytest.mark.parametrize("word", ["training.seed", "=1", "env.save_dir=x", "training.trainer=mine"])
def test_a_word_that_cannot_be_handed_on_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        split_words(("mmbt", word))


def test_what_started_a_run_does_not_steer_how_it_goes_on() -> None:
    """Else a run that began from other weights would be predicted with those instead of its own."""
    words = ["checkpoint.resume_file=other.ckpt", "run_type=train", "evaluation.predict=True", "a.b=c"]
    assert lasting(words) == ["a.b=c"]


def test_an_option_replaces_the_word_that_said_the_same_before() -> None:
    before = request("training.max_updates=100", "training.batch_size=8", "training.num_workers=0")
    after = Options(updates=200, batch_size=4).over(before)
    assert after.overrides == ["training.num_workers=0"]
    assert (after.updates, after.batch_size) == (200, 4)


def test_todays_words_come_after_those_of_the_run() -> None:
    after = Options(overrides=("a=2", "checkpoint.reset.all=True")).over(request("a=1"))
    assert after.overrides == ["a=1", "a=2", "checkpoint.reset.all=True"]


def test_a_new_total_replaces_the_old_one_however_it_was_given() -> None:
    after = Options(epochs=3).over(request(updates=100))
    assert (after.updates, after.epochs) == (None, 3)
    assert Options().over(request(updates=100)).updates == 100

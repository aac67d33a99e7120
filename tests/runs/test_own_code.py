"""Whose code a run imports, and from where: found in every place that may name it; needs no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.commands.hints import hint_for
from mmf_win.errors import DataError, NoOwnCode, UsageError
from mmf_win.runs import own_code, presets
from mmf_win.runs.request import RunRequest

pytestmark = pytest.mark.usefixtures("home")


def request(folder: str | None = None, *overrides: str, trust: bool = False) -> RunRequest:
    settings = {"env": {"user_dir": folder}} if folder else {}
    return RunRequest("mine", settings=settings, overrides=[*overrides], trust=trust)


def code_of(asked: RunRequest, *typed: str) -> str:
    """The folder in the settings of the run, which has no other."""
    settled = own_code.with_own_code(asked, typed, Path("no MMF"), "run r")
    assert not settled.overrides
    return str(settled.settings["env"]["user_dir"])


def test_code_that_a_preset_names_is_trusted_once(user_dir: Path) -> None:
    (user_dir / "code").mkdir()
    (user_dir / "other").mkdir()
    named = request(str(user_dir / "code"))
    with pytest.raises(DataError) as caught:
        code_of(named)
    assert str(user_dir / "code") in str(caught.value) and "--trust" in str(hint_for(caught.value))
    code_of(request(str(user_dir / "code"), trust=True))
    assert code_of(named) == str(user_dir / "code")
    with pytest.raises(DataError):
        code_of(request(str(user_dir / "other")))
    own_code.file().write_text("cut off [", encoding="utf-8")
    with pytest.raises(DataError):
        code_of(named)


@pytest.mark.parametrize("name", ["code", "code, [1]=2"])
@pytest.mark.parametrize("by", ["override", "environment"])
def test_what_the_user_names_is_trusted_and_found_from_another_folder(
    by: str, name: str, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_dir / name).mkdir()
    monkeypatch.chdir(user_dir)
    if by == "override":
        found = code_of(request(None, f"env.user_dir={name}"), f"env.user_dir={name}")
    else:
        monkeypatch.setenv("MMF_USER_DIR", name)
        found = code_of(request())
        monkeypatch.delenv("MMF_USER_DIR")
    assert found == str(user_dir / name)
    monkeypatch.chdir(user_dir.parent)
    assert code_of(request(found)) == found
    own_code.file().unlink()
    with pytest.raises(DataError):  # a run's overrides come from elsewhere, where its folder does
        code_of(request(None, f"env.user_dir={found}"))


def test_code_that_is_gone_is_told_with_whose_it_is_and_the_way_out(user_dir: Path) -> None:
    with pytest.raises(NoOwnCode) as caught:
        code_of(request(str(user_dir / "gone")))
    assert str(user_dir / "gone") in str(caught.value) and "run r" in str(caught.value)
    assert "env.user_dir=FOLDER" in str(hint_for(caught.value))
    new = f"env.user_dir={user_dir}"
    assert code_of(request(str(user_dir / "gone"), new), new) == str(user_dir)


def test_a_relative_folder_in_a_preset_lies_beside_it_or_where_the_user_is(user_dir: Path) -> None:
    text = "{model: mine, settings: {env: {user_dir: code}}}"
    (user_dir / "mine.yaml").write_text(text, encoding="utf-8")
    assert presets.load(str(user_dir / "mine.yaml")).settings["env"]["user_dir"] == "code"
    (user_dir / "code").mkdir()
    assert presets.load(str(user_dir / "mine.yaml")).settings["env"]["user_dir"] == str(user_dir / "code")


def test_a_hint_names_code_that_another_command_would_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_code.words_for(request("here")) == ["env.user_dir=here"]
    monkeypatch.setenv("MMF_USER_DIR", "here")
    assert own_code.words_for(request("here")) == own_code.words_for(request()) == []


def test_the_worker_gets_the_folder_that_was_asked_about_and_no_interpolation(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_dir / "code").mkdir()
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # the worker has it
    asked = request("${oc.env:PYTHONSAFEPATH,''}")
    assert code_of(asked) == ""
    monkeypatch.setenv("PYTHONSAFEPATH", str(user_dir / "code"))
    with pytest.raises(DataError):
        code_of(asked)
    assert code_of(replace(asked, trust=True)) == str(user_dir / "code")


@pytest.mark.parametrize("env", [5, "text", ["code"], "${beside}", "${oc.create:'{user_dir: code}'}"])
def test_an_env_that_is_no_group_of_keys_is_refused(env: object) -> None:
    with pytest.raises(UsageError, match="env: "):
        code_of(RunRequest("mine", settings={"env": env, "beside": {"user_dir": "code"}}))

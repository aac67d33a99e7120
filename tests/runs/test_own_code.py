"""Whose code a run imports, and from where: found in every place that may name it; needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import DataError, UsageError
from mmf_win.files import write_json
from mmf_win.locking import file_lock
from mmf_win.paths import MmfPaths
from mmf_win.runs import presets, user_code
from mmf_win.runs.preflight import file_overrides
from mmf_win.runs.request import CommandOptions, RunRequest
from mmf_win.upstream import config
from mmf_win.upstream.config import ConfigSpec
from tests.worlds.mmf_sources import write_minimal_mmf

pytestmark = pytest.mark.usefixtures("mmfw_home")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An MMF of which there is nothing but what every configuration is made of."""
    return write_minimal_mmf(tmp_path / "an MMF")


@pytest.fixture
def code_of(root: Path, mmf_paths: MmfPaths) -> Any:
    """A function that says which folder a run's settings get, as whoever starts it asks for it."""

    def code_of(named: Any = None, *typed: str, trust: bool = False, **beside: Any) -> str | None:
        settings = {"env": named if isinstance(named, dict) else {"user_dir": named}} if named else {}
        parts = ConfigSpec("mine", settings={**settings, **beside})
        once = CommandOptions(overrides=typed, trust=trust)
        found = config.resolve_config(root, mmf_paths, parts, typed)["user_dir"]
        return user_code.resolve_user_dir(found, once, "run r")

    return code_of


def test_code_that_a_preset_names_is_trusted_once(code_of: Any, user_dir: Path) -> None:
    (user_dir / "code").mkdir()
    (user_dir / "other").mkdir()
    named = str(user_dir / "code")
    with pytest.raises(DataError) as caught:
        code_of(named)
    assert named in str(caught.value) and "--trust" in str(caught.value.hint)
    code_of(named, trust=True)
    assert code_of(named) == named
    with pytest.raises(DataError):
        code_of(str(user_dir / "other"))
    user_code.trusted_folders_path().write_text("cut off [", encoding="utf-8")
    with pytest.raises(DataError):
        code_of(named)


def test_folders_that_two_commands_trust_at_the_same_time_are_both_trusted(
    code_of: Any, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (str(user_dir / name) for name in ("one", "other"))
    for folder in (one, other):
        Path(folder).mkdir()

    def after_the_other(*args: Any, **options: Any) -> Any:
        write_json(user_code.trusted_folders_path(), [other])
        return file_lock(*args, **options)

    monkeypatch.setattr("mmf_win.runs.user_code.file_lock", after_the_other)
    code_of(one, trust=True)
    assert (code_of(one), code_of(other)) == (one, other)


def test_a_folder_is_not_remembered_beside_another_command_that_writes(
    code_of: Any, user_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (user_dir / "code").mkdir()
    monkeypatch.setattr("mmf_win.runs.user_code.file_lock", lambda path, timeout: file_lock(path))
    user_code.trusted_folders_path().parent.mkdir()
    with file_lock(user_code.trusted_folders_path().with_suffix(".lock")):
        code_of(str(user_dir / "code"), trust=True)
    assert "is asked about again: another process holds this lock" in caplog.text
    assert not user_code.trusted_folders_path().exists()


@pytest.mark.parametrize("name", ["code", "code, [1]=2"])
@pytest.mark.parametrize("by", ["override", "environment"])
def test_what_the_user_names_is_trusted_and_found_from_another_folder(
    code_of: Any, by: str, name: str, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_dir / name).mkdir()
    monkeypatch.chdir(user_dir)
    if by == "override":
        found = code_of(None, f"env.user_dir={name}")
    else:
        monkeypatch.setenv("MMF_USER_DIR", name)
        found = code_of()
        monkeypatch.delenv("MMF_USER_DIR")
    assert found == str(user_dir / name)
    monkeypatch.chdir(user_dir.parent)
    assert code_of(found) == found
    user_code.trusted_folders_path().unlink()
    with pytest.raises(DataError):  # a run's settings come from elsewhere, where its folder does
        code_of(found)


def test_a_dry_run_trusts_nothing_later(user_dir: Path) -> None:
    (user_dir / "code").mkdir()
    once = CommandOptions(overrides=[f"env.user_dir={user_dir / 'code'}"], dry_run=True)
    assert user_code.resolve_user_dir(str(user_dir / "code"), once, "run r") == str(user_dir / "code")
    assert not user_code.trusted_folders_path().exists()


def test_code_that_is_gone_is_told_with_whose_it_is_and_the_way_out(code_of: Any, user_dir: Path) -> None:
    with pytest.raises(UsageError) as caught:
        code_of(str(user_dir / "gone"))
    assert str(user_dir / "gone") in str(caught.value) and "run r" in str(caught.value)
    assert "env.user_dir=FOLDER" in str(caught.value.hint)
    assert code_of(str(user_dir / "gone"), f"env.user_dir={user_dir}") == str(user_dir)


def test_a_relative_folder_in_a_preset_lies_beside_it_or_where_the_user_is(user_dir: Path) -> None:
    text = "{model: mine, settings: {env: {user_dir: code}}}"
    (user_dir / "mine.yaml").write_text(text, encoding="utf-8")
    assert presets.load(str(user_dir / "mine.yaml")).settings["env"]["user_dir"] == "code"
    (user_dir / "code").mkdir()
    assert presets.load(str(user_dir / "mine.yaml")).settings["env"]["user_dir"] == str(user_dir / "code")


def test_a_hint_names_code_that_the_preset_does_not() -> None:
    settings = {"env": {"user_dir": "here"}}
    assert file_overrides(RunRequest("mine", settings=settings)) == ["env.user_dir=here"]
    assert file_overrides(RunRequest("mine", settings=settings, preset_settings=settings)) == []


def test_the_worker_gets_the_folder_that_was_asked_about_and_no_interpolation(
    code_of: Any, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_dir / "code").mkdir()
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # the worker has it
    monkeypatch.delenv("MMF_USER_DIR", raising=False)
    named = "${oc.env:PYTHONSAFEPATH,''}"
    assert code_of(named) == "" and code_of() is None
    monkeypatch.setenv("PYTHONSAFEPATH", str(user_dir / "code"))
    with pytest.raises(DataError):
        code_of(named)
    assert code_of(named, trust=True) == str(user_dir / "code")


@pytest.mark.parametrize("env", [5, "text", ["code"], "${beside}", "${oc.create:'{user_dir: code}'}"])
def test_an_env_that_is_no_group_of_keys_is_refused(env: object, root: Path, mmf_paths: MmfPaths) -> None:
    parts = ConfigSpec("mine", settings={"env": env, "beside": {"user_dir": "code"}})
    with pytest.raises(UsageError, match=r"^(the configuration of mine cannot be put together: )?env: "):
        config.resolve_config(root, mmf_paths, parts)

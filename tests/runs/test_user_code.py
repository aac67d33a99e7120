"""Trust in user code, and the settings that name it; needs no torch."""

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
    """Return a minimal MMF with only its default configuration."""
    return write_minimal_mmf(tmp_path / "an MMF")


@pytest.fixture
def resolve_code(root: Path, mmf_paths: MmfPaths) -> Any:
    """Return a function that resolves the user code of a run's settings."""

    def resolve_code(
        user_dir_setting: Any = None, *overrides: str, trust: bool = False, **settings_of_preset: Any
    ) -> str | None:
        env = user_dir_setting if isinstance(user_dir_setting, dict) else {"user_dir": user_dir_setting}
        settings = {"env": env} if user_dir_setting else {}
        spec = ConfigSpec("mine", settings={**settings, **settings_of_preset})
        options = CommandOptions(overrides=overrides, trust=trust)
        user_dir = config.resolve_config(root, mmf_paths, spec, overrides)["user_dir"]
        return user_code.resolve_user_dir(user_dir, options, "run r")

    return resolve_code


def test_user_code_of_preset_must_be_trusted_once(resolve_code: Any, user_dir: Path) -> None:
    (user_dir / "code").mkdir()
    (user_dir / "other").mkdir()
    folder = str(user_dir / "code")
    with pytest.raises(DataError) as caught:
        resolve_code(folder)
    assert folder in str(caught.value) and "--trust" in str(caught.value.hint)
    resolve_code(folder, trust=True)
    assert resolve_code(folder) == folder
    with pytest.raises(DataError):
        resolve_code(str(user_dir / "other"))
    user_code.trusted_folders_path().write_text("cut off [", encoding="utf-8")
    with pytest.raises(DataError):
        resolve_code(folder)


def test_concurrently_trusted_folders_are_both_stored(
    resolve_code: Any, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_folder, second_folder = (str(user_dir / name) for name in ("one", "other"))
    for path in (first_folder, second_folder):
        Path(path).mkdir()

    def lock_after_second_process(*args: Any, **options: Any) -> Any:
        write_json(user_code.trusted_folders_path(), [second_folder])
        return file_lock(*args, **options)

    monkeypatch.setattr("mmf_win.runs.user_code.file_lock", lock_after_second_process)
    resolve_code(first_folder, trust=True)
    assert (resolve_code(first_folder), resolve_code(second_folder)) == (first_folder, second_folder)


def test_folder_is_not_stored_while_list_is_locked(
    resolve_code: Any, user_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (user_dir / "code").mkdir()
    monkeypatch.setattr("mmf_win.runs.user_code.file_lock", lambda path, timeout: file_lock(path))
    user_code.trusted_folders_path().parent.mkdir()
    with file_lock(user_code.trusted_folders_path().with_suffix(".lock")):
        resolve_code(str(user_dir / "code"), trust=True)
    assert "is not remembered: locked by another process" in caplog.text
    assert not user_code.trusted_folders_path().exists()


@pytest.mark.parametrize("name", ["code", "code, [1]=2"])
@pytest.mark.parametrize("source", ["override", "environment"])
def test_user_dir_given_by_user_is_trusted_and_made_absolute(
    resolve_code: Any, source: str, name: str, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_dir / name).mkdir()
    monkeypatch.chdir(user_dir)
    if source == "override":
        resolved = resolve_code(None, f"env.user_dir={name}")
    else:
        monkeypatch.setenv("MMF_USER_DIR", name)
        resolved = resolve_code()
        monkeypatch.delenv("MMF_USER_DIR")
    assert resolved == str(user_dir / name)
    monkeypatch.chdir(user_dir.parent)
    assert resolve_code(resolved) == resolved
    user_code.trusted_folders_path().unlink()
    with pytest.raises(DataError):  # a folder in the settings of a copied run is not trusted
        resolve_code(resolved)


def test_dry_run_does_not_store_trust(user_dir: Path) -> None:
    (user_dir / "code").mkdir()
    options = CommandOptions(overrides=[f"env.user_dir={user_dir / 'code'}"], dry_run=True)
    assert user_code.resolve_user_dir(str(user_dir / "code"), options, "run r") == str(user_dir / "code")
    assert not user_code.trusted_folders_path().exists()


def test_missing_user_code_is_an_error_with_owner_and_hint(resolve_code: Any, user_dir: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_code(str(user_dir / "gone"))
    assert str(user_dir / "gone") in str(caught.value) and "run r" in str(caught.value)
    assert "env.user_dir=FOLDER" in str(caught.value.hint)
    assert resolve_code(str(user_dir / "gone"), f"env.user_dir={user_dir}") == str(user_dir)


def test_relative_user_dir_is_resolved_next_to_preset_or_in_working_dir(user_dir: Path) -> None:
    text = "{model: mine, settings: {env: {user_dir: code}}}"
    (user_dir / "mine.yaml").write_text(text, encoding="utf-8")
    assert presets.load_preset(str(user_dir / "mine.yaml")).settings["env"]["user_dir"] == "code"
    (user_dir / "code").mkdir()
    assert presets.load_preset(str(user_dir / "mine.yaml")).settings["env"]["user_dir"] == str(user_dir / "code")


def test_file_overrides_include_user_dir_missing_from_preset() -> None:
    settings = {"env": {"user_dir": "here"}}
    assert file_overrides(RunRequest("mine", settings=settings)) == ["env.user_dir=here"]
    assert file_overrides(RunRequest("mine", settings=settings, preset_settings=settings)) == []


def test_worker_gets_resolved_user_dir_without_interpolation(
    resolve_code: Any, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_dir / "code").mkdir()
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # only the worker sets this variable
    monkeypatch.delenv("MMF_USER_DIR", raising=False)
    user_dir_setting = "${oc.env:PYTHONSAFEPATH,''}"
    assert resolve_code(user_dir_setting) == "" and resolve_code() is None
    monkeypatch.setenv("PYTHONSAFEPATH", str(user_dir / "code"))
    with pytest.raises(DataError):
        resolve_code(user_dir_setting)
    assert resolve_code(user_dir_setting, trust=True) == str(user_dir / "code")


@pytest.mark.parametrize("env", [5, "text", ["code"], "${beside}", "${oc.create:'{user_dir: code}'}"])
def test_env_that_is_not_a_mapping_is_rejected(env: object, root: Path, mmf_paths: MmfPaths) -> None:
    spec = ConfigSpec("mine", settings={"env": env, "beside": {"user_dir": "code"}})
    with pytest.raises(UsageError, match=r"^(cannot compose the configuration of mine: )?env: "):
        config.resolve_config(root, mmf_paths, spec)

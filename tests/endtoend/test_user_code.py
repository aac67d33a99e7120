"""User-provided models and code: found from any folder, used with the data of both phases, and run only if trusted."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mmf_win.runs import user_code
from mmf_win.upstream.config import merge_settings
from tests.endtoend.conftest import Tool
from tests.worlds.tiny_mmf import SPLIT_SIZES

GUIDE = Path(__file__).parents[2] / "docs" / "own-model.md"


@pytest.fixture
def guide(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder with the files of docs/own-model.md, whose commands the tests run."""
    monkeypatch.setenv("MMF_CACHE_DIR", str(tmp_path / "without GloVe"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # no network
    text = GUIDE.read_text(encoding="utf-8")
    code_blocks, preset_blocks = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "yaml"))
    folder = tmp_path / "моя work, 1=2"
    (folder / "my_models").mkdir(parents=True)
    (folder / "my_models" / "__init__.py").write_text(code_blocks[0], encoding="utf-8")
    (folder / "small_cnn.yaml").write_text(preset_blocks[0], encoding="utf-8")
    assert "mmfw train small_cnn.yaml --trust\nmmfw predict\nmmfw predict small_cnn --image" in text
    return folder


def test_guide_model_trains_and_predicts_other_phase_after_its_code_moves(
    tool: Tool, guide: Path, phase_1_tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("extras", "features"):  # the guide's model needs neither vocabulary nor region features
        shutil.rmtree(phase_1_tool.world.dataset / name)
    monkeypatch.chdir(guide)
    assert tool.run_for_exit_code("train", "small_cnn.yaml", "--updates", "1") == 3
    assert "--trust" in tool.errors
    assert tool.run_for_exit_code("sweep", "run", "small_cnn.yaml", "env.user_dir=my_models", "--dry-run") == 0
    assert not user_code.trusted_folders_path().exists()  # a dry run must not record trust
    run = tool.train("small_cnn.yaml", "--trust", "--updates", "1")
    monkeypatch.chdir(tmp_path)
    assert phase_1_tool("predict", "--split", "test")["rows"] == SPLIT_SIZES["test_seen"]
    image = next(phase_1_tool.world.dataset.glob("images/img/*"))
    for text in ("look how many people love you", ""):
        assert 0 < tool("predict", "small_cnn", "--image", str(image), "--text", text)["proba"] < 1

    moved = (guide / "my_models").rename(tmp_path / "elsewhere")
    for arguments in (["predict"], ["train", "--resume", "last", "--updates", "2"]):
        assert tool.run_for_exit_code(*arguments) == 2
        assert run.id in tool.errors and "env.user_dir=FOLDER" in tool.errors
    assert tool("train", "--resume", "last", "--updates", "2", "env.user_dir=elsewhere")["updates"] == 2
    assert run.request().settings["env"]["user_dir"] == str(moved)


@pytest.mark.wide
def test_code_from_environment_is_recorded_and_trusted_only_on_this_machine(
    tool: Tool, guide: Path, phase_1_tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = guide / "small_cnn.yaml"
    preset.write_text(preset.read_text(encoding="utf-8").replace("env: {user_dir: my_models}", ""), "utf-8")
    monkeypatch.delenv("MMF_USER_DIR")
    assert tool.run_for_exit_code("train", str(preset)) == 2
    assert "small_cnn" in tool.errors and "env.user_dir=FOLDER" in tool.errors

    monkeypatch.chdir(guide)
    monkeypatch.setenv("MMF_USER_DIR", "my_models")
    phase_1_tool("train", str(preset), "--updates", "1")
    monkeypatch.delenv("MMF_USER_DIR")
    monkeypatch.chdir(tmp_path)
    assert tool("predict", "--split", "test_unseen")["rows"] == SPLIT_SIZES["test_unseen"]
    assert phase_1_tool("train", "--resume", "last", "--updates", "2")["updates"] == 2

    user_code.trusted_folders_path().unlink()  # like on another machine to which the run was copied
    for arguments in (["predict"], ["train", "--resume", "last", "--updates", "3"]):
        assert phase_1_tool.run_for_exit_code(*arguments) == 3
        assert str(guide / "my_models") in phase_1_tool.errors and "--trust" in phase_1_tool.errors


@pytest.mark.wide
def test_model_not_registered_by_user_code_is_named(tool: Tool, guide: Path) -> None:
    preset = guide / "small_cnn.yaml"
    preset.write_text(preset.read_text(encoding="utf-8").replace("small_cnn", "other_cnn"), "utf-8")
    assert tool.run_for_exit_code("train", str(preset), "--trust", "--updates", "1") != 0
    assert "other_cnn" in tool.errors.partition("error: ")[2].splitlines()[0]
    assert "is not registered by MMF or by user code" in tool.errors


def test_code_in_model_folder_runs_only_with_trust(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, marker = tmp_path / "with code", tmp_path / "ran"
    shutil.copytree(tool.world.bert, folder)
    code = f"from pathlib import Path\nfrom transformers import BertTokenizer\nPath({str(marker)!r}).touch()\n"
    (folder / "own.py").write_text(f"{code}class Own(BertTokenizer): pass\n", encoding="utf-8")
    tokenizer_config = json.dumps({"auto_map": {"AutoTokenizer": ["own.Own", None]}})
    (folder / "tokenizer_config.json").write_text(tokenizer_config, encoding="utf-8")
    overrides: Any = {"type": str(folder), "params": {"trust_remote_code": True}}
    for name in ("tokenizer_config", "params", "text_processor", "processors", "hateful_memes"):
        overrides = {name: overrides}
    settings = merge_settings(tool.recipe_settings("bert"), {"dataset_config": overrides})
    preset = tool.write_preset("bert", settings=settings)
    assert tool.run_for_exit_code("train", preset, "--updates", "1") == 3
    assert "own.py" in tool.errors and "--trust" in tool.errors
    assert not marker.exists()
    run = tool.train(preset, "--updates", "1", "--trust")
    marker.unlink()
    assert tool.run_for_exit_code("predict", run.id) == 3
    assert "own.py" in tool.errors and not marker.exists()

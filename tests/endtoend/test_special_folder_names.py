"""Runs in a folder whose name MMF would parse; test_wheel_workflow.py runs the complete workflow in another one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.endtoend.conftest import Tool
from tests.worlds.tools import split_command


def test_run_with_user_code_works_in_folder_with_special_characters(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tool.folder / "OneDrive - Doe, Jane [1] ${x} a=b 100% #1"
    folder.mkdir()
    special_tool = replace(tool, folder=folder).with_world_copy("world")
    for name in ("MMF_CACHE_DIR", "HF_HOME"):
        monkeypatch.setenv(name, special_tool.world.environment[name])
    code = folder / "code"
    code.mkdir()
    (code / "__init__.py").write_text("", encoding="utf-8")
    run = special_tool.train(special_tool.write_preset("visual_bert"), "--updates", "2", f"env.user_dir={code}")
    assert special_tool("predict", "--split", "dev_seen")["rows"] == 4
    assert special_tool.train("--resume", "last", "--updates", "3").path == run.path
    (special_tool.world.dataset / "features" / "detectron.lmdb" / "data.mdb").unlink()
    assert special_tool.run_for_exit_code("train", "--resume", "last", "--updates", "4") == 3
    [command] = re.findall("^hint: .*?`mmfw (features .*?)`", special_tool.errors, re.MULTILINE)
    assert str(special_tool.world.data) in split_command(command)

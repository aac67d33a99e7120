"""Runs in a folder whose name MMF would take apart; test_users_way.py goes the whole way in another."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.endtoend.conftest import Tool
from tests.worlds.tools import split_command


def test_runs_with_code_of_ones_own_and_pretrained_weights_go_in_a_folder_of_any_name(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tool.folder / "OneDrive - Doe, Jane [1] ${x} a=b 100% #1"
    folder.mkdir()
    odd = replace(tool, folder=folder).with_world_copy("world")
    for name in ("MMF_CACHE_DIR", "HF_HOME"):
        monkeypatch.setenv(name, odd.world.environment[name])
    code = folder / "code"
    code.mkdir()
    (code / "__init__.py").write_text("", encoding="utf-8")
    run = odd.train(odd.preset("visual_bert"), "--updates", "2", f"env.user_dir={code}")
    assert odd("predict", "--split", "dev_seen")["rows"] == 4
    assert odd.train("--resume", "last", "--updates", "3").path == run.path
    (odd.world.dataset / "features" / "detectron.lmdb" / "data.mdb").unlink()
    assert odd.run_for_exit_code("train", "--resume", "last", "--updates", "4") == 3
    [command] = re.findall("^hint: .*?`mmfw (features .*?)`", odd.errors, re.MULTILINE)
    assert str(odd.world.data) in split_command(command)

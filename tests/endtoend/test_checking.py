"""``mmfw check`` on the real MMF: silent about sound models, and what it says of planted faults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.endtoend.conftest import Tool
from tests.worlds import tiny_mmf


def unsound(found: Any) -> list[tuple[str, str, str]]:
    """What is more than a note."""
    return [
        (each["verdict"], each["check"], each["text"])
        for each in found["findings"]
        if each["verdict"] in ("warning", "error") and "not in the vocabulary" not in each["text"]
    ]


@pytest.mark.parametrize("name", sorted(tiny_mmf.recipes()))
def test_sound(tool: Tool, name: str) -> None:
    found = tool("check", tool.preset(name))
    print(tool.errors)
    for each in found["findings"]:
        print(each["verdict"], each["check"], each["text"], each["seconds"], each["advice"])
    assert not unsound(found)

"""Every command that reads runs, on a run with a damaged file: one clear error, and no harm to others.

``python scripts/fuzz.py runs`` tries more of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from tests.worlds.damaged_runs import DamagedRuns


@pytest.mark.parametrize("part", range(4))
def test_a_damaged_file_of_a_run_is_one_clear_error(user_dir: Path, part: int) -> None:
    world, can_report = DamagedRuns(user_dir), all(map(find_spec, ("jinja2", "matplotlib", "PIL", "numpy")))
    wrong: list[str] = []
    for seed in range(part, 40, 4):
        found = world.wrong(Random(seed), reports=can_report and seed % 3 == part % 3)
        wrong += [f"seed {seed}, {line}" for line in found]
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:20])

